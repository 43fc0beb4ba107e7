"""Rows of figures as lines of text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Row = Mapping[str, Any]

# figure -> (title, format)
_COLUMNS = {
    "arrivals": ("arrivals", "<22"),
    "controller": ("controller", "<14"),
    "seed": ("seed", ">4"),
    "latency_mean": ("latency s", ">10.4g"),
    "latency_p50": ("p50", ">8.4g"),
    "latency_p99": ("p99", ">8.4g"),
    "ttft_mean": ("TTFT s", ">8.3g"),
    "tpot_mean": ("TPOT s", ">8.3g"),
    "queueing_mean": ("queue s", ">8.3g"),
    "goodput": ("goodput", ">9.5g"),
    "throughput": ("tokens/s", ">9.5g"),
    "rows_mean": ("rows", ">7.4g"),
    "width_mean": ("width", ">6.3g"),
    "accept_length": ("accepted", ">9.4g"),
    "retractions": ("retracted", ">9"),
}


def row_line(row: Row | None, columns: Mapping[str, tuple[str, str]] = _COLUMNS) -> str:
    """One row as a line of text, by its keys' titles and formats; None gives the header."""
    cells = []
    for name, (title, form) in columns.items():
        value = title if row is None else row[name]
        is_number = isinstance(value, int | float)
        cells.append(f"{'-' if value is None else value:{form if is_number else form.split('.')[0]}}")
    return " ".join(cells).rstrip()
