"""Made-up logs for tests of reports: agents that repeat a few forms again and again, and texts without repeats."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

TABLES = ("singer", "concert", "stadium", "airport", "orders", "customer")
COLUMNS = ("name", "age", "year", "country", "total", "city")


def sql_sessions(count: int, seed: int) -> list[dict[str, Any]]:
    """Makes sessions of two stages, `link` and `write`, whose outputs resemble each other."""
    rng = np.random.default_rng(seed)
    sessions = []
    for i in range(count):
        table, column, other = rng.choice(TABLES), *rng.choice(COLUMNS, 2)
        calls = [
            {"stage": "link", "output": json.dumps({"tables": [table], "columns": [column, other]})},
            {
                "stage": "write",
                "output": f"SELECT {column} FROM {table} WHERE {other} = {rng.integers(100)} ORDER BY {column}",
            },
        ]
        sessions.append({"session": f"s{i}", "tenant": f"t{i % 2}", "calls": calls})
    return sessions


def noise_text(rng: np.random.Generator, length: int) -> str:
    """Random letters, which repeat only by chance."""
    return bytes(rng.integers(97, 123, length).astype(np.uint8)).decode()


def request(prompt: str, answer: str, **fields: Any) -> dict[str, Any]:
    """Makes an OpenAI-style request with its answer."""
    return {"messages": [{"role": "user", "content": prompt}], "completion": answer, **fields}


def write_lines(path: Path, records: Iterable[Any]) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    return path
