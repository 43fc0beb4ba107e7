"""Rows of results from servers: tokens a second and accept lengths, beside other systems in the same run."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from agentspec.evals.page.row import CONTROLS, Files, Reader, Row, at_least, at_most, clients, mean

NAMES = {
    "none": "plain",
    "ngram": "NGRAM",
    "standalone": "STANDALONE",
    "eagle3": "EAGLE-3",
    "suffix": "suffix drafts",
    "hybrid": "hybrid with EAGLE-3",
}
SENSITIVITY = "sensitivity.json"
"""The file of settings that differ from each other; sensitivity.py has its rows."""
_OURS = ("suffix", "hybrid")

Record = Mapping[str, Any]
Cell = Mapping[str, Sequence[Record]]
"""The records of one task, pass and number of clients: the repeats of each system."""


def cells(records: Sequence[Record]) -> dict[tuple[str, str, int], dict[str, list[Record]]]:
    """Records without an error by task, pass and number of clients, and then by system, in the order of the records."""
    found: dict[tuple[str, str, int], dict[str, list[Record]]] = {}
    for record in records:
        if not record.get("error"):
            cell = found.setdefault((record["task"], record["pass"], record["concurrency"]), {})
            cell.setdefault(record["system"], []).append(record)
    return found


def speed(repeats: Sequence[Record]) -> float:
    """Tokens a second, the mean of the repeats."""
    return mean(record["tokens_per_second"] for record in repeats)


def told_speed(repeats: Sequence[Record]) -> str:
    """Tokens a second, and the accept length of a system that drafts."""
    length = mean(record["accept_length"] for record in repeats)
    return f"{speed(repeats):,.0f}" + ("" if repeats[0]["system"] == "none" else f" ({length:.2f})")


def called(system: str) -> str:
    base, _, number = system.partition("-")
    unit = {"eagle3": "steps", "ngram": "tokens"}.get(base)
    return NAMES.get(base, base) + (f" with {number} {unit}" if number and unit else f" {number}" if number else "")


def emulated_rows(files: Files) -> Iterator[Row]:
    """What the cells of a file tell together; docs/step.md has the cells."""
    for name, content in files.items():
        if name != SENSITIVITY:
            is_eval = "records" in content
            yield from _emulated(name, content["records"]) if is_eval else _step_costs(name, content["rows"])


def _emulated(name: str, records: Sequence[Record]) -> Iterator[Row]:
    over_best: list[float] = []
    over_head: list[float] = []
    over_plain: dict[str, list[float]] = defaultdict(list)
    for (task, _, _), cell in cells(records).items():
        # The same system with another width limit is no rival.
        single = [
            speed(some) for system, some in cell.items() if system.split("-")[0] not in _OURS or system == "suffix"
        ]
        if task not in CONTROLS:
            # Suffix drafts are often the best single system, so a cell without them tells of EAGLE-3 alone.
            ratios = over_best if "suffix" in cell else over_head
            ratios += [speed(cell["hybrid"]) / max(single)] if "hybrid" in cell else []
        elif "none" in cell:
            for system in [system for system in _OURS if system in cell]:
                over_plain[system].append(speed(cell[system]) / speed(cell["none"]))
    head = {"4.0": "", None: ""}.get(records[0].get("head", "4.0"), f", head {records[0].get('head')}")
    title = f"{records[0]['emulated']} emulated{head}"
    if over_best:
        goals = (
            at_least("mean x the best single system", mean(over_best), 1.1),
            at_least("least x the best single system", min(over_best), 0.99),
        )
        figure = f"{min(over_best):.2f} to {max(over_best):.2f} x the best single system"
        yield Row(name, f"agents, {len(over_best)} cells, {title}", NAMES["hybrid"], figure, goals=goals)
    if over_head:
        figure = f"{min(over_head):.2f} to {max(over_head):.2f} x EAGLE-3, {mean(over_head):.2f} in the mean"
        yield Row(name, f"agents, {len(over_head)} cells, {title}", NAMES["hybrid"], figure)
    for system, ratios in over_plain.items():
        harm = (at_least("least x plain", min(ratios), 0.98),)
        figure = f"{min(ratios):.2f} to {max(ratios):.2f} x plain"
        yield Row(name, f"controls, {len(ratios)} cells, {title}", NAMES[system], figure, goals=harm)


def _step_costs(name: str, measured: Sequence[Record]) -> Iterator[Row]:
    """The cost of a step beside SGLang's own drafters, by the batch in which it is worst."""
    at = {(row["system"], row["rows"]): row for row in measured}

    def worst(system: str, rival: str, key: str) -> tuple[float, float, int]:
        pairs = [(row[key], at[rival, rows][key], rows) for (one, rows), row in at.items() if one == system]
        return max(pairs, key=lambda pair: pair[0] - pair[1])

    for system, rival, key, unit, factor, margin in (
        ("suffix", "ngram", "idle_share", " %", 100.0, 0.0),
        ("hybrid", "eagle3", "python_ms", " ms", 1.0, 0.5),
    ):
        if any(one == system for one, _ in at):
            ours, theirs, rows = worst(system, rival, key)
            goal = at_most(f"{key.split('_')[0]}", factor * ours, factor * theirs + margin, unit)
            yield Row(name, f"a step of {rows} rows, the worst batch", NAMES[system], "", NAMES[rival], (goal,))


def predicted_rows(files: Files) -> Iterator[Row]:
    """Edits beside plain decoding, with a predicted output and without."""
    ratios: list[float] = []
    for name, content in files.items():
        for (task, pass_name, number), cell in cells(content["records"]).items():
            ratio, first = speed(cell["suffix"]) / speed(cell["none"]), cell["suffix"][0]
            is_predicted = task.endswith("_predicted")
            ratios += [ratio] if is_predicted else []
            place = "in the prompt" if task.startswith("edits_shown") else "not in the prompt"
            yield Row(
                name,
                f"edits, the function {place}, {'predicted' if is_predicted else 'no prediction'}, {pass_name}, "
                f"{clients(number)}, {first['requests']} calls, {first['emulated']} emulated",
                NAMES["suffix"],
                f"{told_speed(cell['suffix'])} tokens/s: {ratio:.2f} x plain",
                f"plain {told_speed(cell['none'])}",
            )
    if ratios:
        goals = (at_least("least x plain", min(ratios), 3.0),)
        yield Row(list(files)[-1], "predicted edits, all cells", NAMES["suffix"], goals=goals)


_WORK = {"sql": "SQL agents", "swe": "coding agents"}
_ON_GPU = {**NAMES, "none": "SGLang", "ngram": "NGRAM, 12 tokens"}


def gpu_rows(files: Files) -> Iterator[Row]:
    """Each system of each cell: the mean over its repetitions, beside plain decoding in the same ones where it was
    measured."""
    for name, content in files.items():
        measured: dict[tuple[str, int, str], list[Record]] = {}
        for record in content["records"]:
            if record["part"] == "replay" and "tokens_per_second" in record:
                measured.setdefault((record["trace"], record["clients"], record["system"]), []).append(record)
        for (trace, number, system), some in sorted(measured.items()):
            plain = {one["repetition"]: one["tokens_per_second"] for one in measured.get((trace, number, "none"), ())}
            over = [one["tokens_per_second"] / plain[one["repetition"]] for one in some if one["repetition"] in plain]
            accepted = mean(record["accept_length"] for record in some)
            yield Row(
                name,
                f"{_WORK[trace]}, {clients(number)}, {sum(record['calls'] for record in some)} calls",
                _ON_GPU.get(system, system),
                f"{speed(some):.0f} tokens/s ({accepted:.2f})",
                f"{mean(over):.2f} x plain" if over and system != "none" else "",
            )


READERS: dict[str, Reader] = {"emulated": emulated_rows, "predictions": predicted_rows, "gpu": gpu_rows}
