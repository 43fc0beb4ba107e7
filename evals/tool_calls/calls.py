"""Random tool calls, and the tools that they call."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

Arguments = dict[str, Any]

_SCHEMAS: dict[str, dict[str, str]] = {
    "get_weather": {"city": "string", "unit": "string", "days": "integer"},
    "write_file": {"path": "string", "content": "string", "append": "boolean"},
    "search_orders": {"query": "string", "limit": "integer", "max_price": "number", "open": "boolean"},
    "update_record": {"key": "string", "record": "object", "tags": "array"},
    "list_users": {},
}
TOOLS: tuple[dict[str, Any], ...] = tuple(
    {
        "type": "function",
        "function": {
            "name": name,
            "description": name.replace("_", " "),
            "parameters": {"type": "object", "properties": {field: {"type": kind} for field, kind in fields.items()}},
        },
    }
    for name, fields in _SCHEMAS.items()
)

_WORDS = (
    *("the", "order", "of", "seven", "pumps", "is late", "Zürich", "São Paulo", "東京", "naïve", "😀", "42", "3.5"),
    *("a/b.py", "x == 1", "def run(self):", "return None", "SELECT id FROM orders;", "it's", "e-mail", "100%", "#7"),
)
_HARD = (
    '"quoted"',
    "line\nbreak",
    "tab\there",
    "back\\slash",
    "{braces}",
    "[1, 2]",
    "a, b",
    "if a < b:",
    "->",
    "null",
    "true",
)
"""Texts that a format may have to escape, or that look like a part of one."""
_PROSE = (
    *("I will look that up.", "Let me check the data first.", "One moment, please:", "Two steps are needed."),
    *("Das dauert nicht lange.", "Done? Not yet.", "Here is the plan: read, then write."),
)


@dataclass(frozen=True)
class Call:
    """A call of a tool."""

    name: str
    arguments: Arguments


def draw_text(rng: random.Random, most_words: int, *, hard: bool) -> str:
    words = _WORDS + _HARD if hard else _WORDS
    return " ".join(rng.choice(words) for _ in range(rng.randint(1, most_words)))


def draw_prose(rng: random.Random) -> str:
    return " ".join(rng.choice(_PROSE) for _ in range(rng.randint(1, 3)))


def draw_call(rng: random.Random, *, hard: bool, most_words: int = 40) -> Call:
    """`hard`: with texts that have to be escaped."""
    name = rng.choice(list(_SCHEMAS))
    fields = {field: kind for field, kind in _SCHEMAS[name].items() if rng.random() < 0.85}
    return Call(
        name, {field: _draw_value(rng, kind, hard=hard, most_words=most_words) for field, kind in fields.items()}
    )


def _draw_value(rng: random.Random, kind: str, *, hard: bool, most_words: int = 4) -> Any:
    if kind == "integer":
        return rng.randint(-5, 12_000)
    if kind == "number":
        return rng.randint(-500, 99_999) / 4 + 0.125
    if kind == "boolean":
        return rng.random() < 0.5
    if kind == "array":
        return [draw_text(rng, 2, hard=hard) for _ in range(rng.randint(0, 3))]
    if kind == "object":
        return {
            f"field_{i}": _draw_value(rng, rng.choice(("string", "integer", "boolean")), hard=hard)
            for i in range(rng.randint(1, 3))
        }
    return draw_text(rng, rng.choice((2, 4, most_words)), hard=hard)
