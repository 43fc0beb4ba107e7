"""Prints the results of `agentspec store`."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime


def show(values: Mapping[str, object], as_json: bool) -> None:
    """Prints one value per line, or all values as one JSON object."""
    if as_json:
        print(json.dumps(values))
        return
    width = max(len(name) for name in values) + 1
    for name, value in values.items():
        print(f"{name.replace('_', ' ') + ':':<{width}} {value}")


def show_table(titles: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Prints columns: the first one flush left, the others flush right."""
    # Ids come from clients, so they must not contain control characters for the terminal.
    cells = [[text if (text := str(cell)).isprintable() else ascii(text) for cell in row] for row in [titles, *rows]]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for row in cells:
        first, *others = (
            cell.ljust(width) if not at else cell.rjust(width)
            for at, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        print("  ".join([first, *others]).rstrip())


def as_time(seconds: float) -> str:
    """The time in readable form, UTC to the second; "-" for 0, which means never."""
    if not seconds:
        return "-"
    try:
        return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S")
    except (OverflowError, ValueError, OSError):
        return f"{seconds:.0f} s"
