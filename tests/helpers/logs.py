"""Logs made up for reports: agents that write the same few forms again and again, and texts that never repeat."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

TABLES = ("singer", "concert", "stadium", "airport", "orders", "customer")
COLUMNS = ("name", "age", "year", "country", "total", "city")


def sql_sessions(count: int, seed: int) -> list[dict[str, Any]]:
    """Staged sessions of two stages, `link` and `write`, whose outputs resemble each other."""
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
    """Letters that never repeat on purpose."""
    return bytes(rng.integers(97, 123, length).astype(np.uint8)).decode()


def request(prompt: str, answer: str, **fields: Any) -> dict[str, Any]:
    """An OpenAI-style request with its answer."""
    return {"messages": [{"role": "user", "content": prompt}], "completion": answer, **fields}


def write_lines(path: Path, records: Iterable[Any]) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    return path
