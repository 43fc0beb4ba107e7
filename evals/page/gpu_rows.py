"""Rows of the trips to a lent GPU."""

from __future__ import annotations

from typing import Any

from agentspec.evals.page.row import Files, Row, clients, mean

_WORK = {"sql": "SQL agents", "swe": "coding agents"}
_SYSTEMS = {
    "none": "SGLang",
    "ngram": "NGRAM, 12 tokens",
    "eagle3": "EAGLE-3",
    "suffix": "suffix drafts",
    "hybrid": "hybrid with EAGLE-3",
}


def gpu_rows(files: Files) -> list[Row]:
    """Each system of each cell: the mean over its repetitions, beside plain decoding in the same ones."""
    rows = []
    for name, content in files.items():
        cells: dict[tuple[str, int, str], list[dict[str, Any]]] = {}
        for record in content["records"]:
            if record["part"] == "replay" and "tokens_per_second" in record:
                cells.setdefault((record["trace"], record["clients"], record["system"]), []).append(record)
        for (trace, number, system), some in sorted(cells.items()):
            plain = {record["repetition"]: record["tokens_per_second"] for record in cells[trace, number, "none"]}
            over = mean(record["tokens_per_second"] / plain[record["repetition"]] for record in some)
            speed = mean(record["tokens_per_second"] for record in some)
            accepted = mean(record["accept_length"] for record in some)
            rows.append(
                Row(
                    name,
                    f"{_WORK[trace]}, {clients(number)}, {sum(record['calls'] for record in some)} calls",
                    _SYSTEMS.get(system, system),
                    f"{speed:.0f} tokens/s ({accepted:.2f})",
                    "" if system == "none" else f"{over:.2f} x plain",
                )
            )
    return rows
