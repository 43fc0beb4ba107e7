"""Rows of results from servers: tokens a second and accept lengths, beside other systems in the same run."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from agentspec.evals.page.row import Files, Row, at_least, at_most, clients, mean

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
_CONTROLS = ("chat_mt_bench", "math_gsm8k")
_LIVE = {"text_to_sql": "text-to-SQL agents", "open_chat": "open prompts"}
_AGENTS = {"none": 2.5, "ngram": 1.3}
"""Goals of the warm agents, by baseline."""

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


def eval_rows(files: Files) -> list[Row]:
    """The rows of each cell or set, and what the cells of a task tell together."""
    rows: list[Row] = []
    ratios: dict[tuple[str, str], list[float]] = defaultdict(list)
    control: list[float] = []
    sets: list[tuple[str, float, float]] = []
    last = dict.fromkeys(("agents", "open", "sets"), "")
    for name, content in files.items():
        found = cells(content["records"])
        for task in dict.fromkeys(task for task, _, _ in found):
            some = {key: cell for key, cell in found.items() if key[0] == task}
            if task not in _LIVE:
                sets += [(task, *told) for told in _replayed(name, task, list(some.values()), rows)]
                last["sets"] = name
                continue
            last["open" if task == "open_chat" else "agents"] = name
            for (_, pass_name, _), system, base, ratio in _live(name, some, rows):
                if task == "open_chat" and base == "none":
                    control.append(ratio)
                elif task != "open_chat" and pass_name == "warm":
                    ratios[system, base].append(ratio)
    for system in dict.fromkeys(system for system, _ in ratios):
        of = {base: mean(some) for (one, base), some in ratios.items() if one == system}
        goals = tuple(at_least(f"x {NAMES[base]}", value, _AGENTS[base]) for base, value in of.items())
        rows.append(Row(last["agents"], "text-to-SQL agents, mean of the warm cells", NAMES[system], goals=goals))
    if control:
        goals = (at_least("least x plain", min(control), 0.98),)
        rows.append(Row(last["open"], "open prompts, all cells", NAMES["suffix"], goals=goals))
    if agents := [length for task, length, _ in sets if task not in _CONTROLS]:
        goals = (at_least("accept length x NGRAM", mean(agents), 1.1),)
        rows.append(Row(last["sets"], "recorded agents, mean of the sets", NAMES["suffix"], goals=goals))
    if plain := [least for task, _, least in sets if task in _CONTROLS]:
        goals = (at_least("least x plain", min(plain), 0.98),)
        rows.append(Row(last["sets"], "recorded controls, all cells", NAMES["suffix"], goals=goals))
    return rows


def _live(
    name: str, found: Mapping[tuple[str, str, int], Cell], rows: list[Row]
) -> Iterator[tuple[tuple[str, str, int], str, str, float]]:
    """Adds a row for each cell and system of ours; gives its ratios to plain decoding and NGRAM."""
    for (task, pass_name, number), cell in found.items():
        for system in [system for system in _OURS if system in cell]:
            ratios = {base: speed(cell[system]) / speed(cell[base]) for base in _AGENTS if base in cell}
            parts = [f"{ratio:.2f} x {NAMES[base]}{_span(cell[system], base)}" for base, ratio in ratios.items()]
            rows.append(
                Row(
                    name,
                    f"{_LIVE[task]}, {pass_name}, {clients(number)}, {cell[system][0]['requests']} calls",
                    NAMES[system],
                    f"{told_speed(cell[system])} tokens/s: {', '.join(parts)}",
                    ", ".join(f"{called(base)} {told_speed(cell[base])}" for base in cell if base not in _OURS),
                )
            )
            yield from (((task, pass_name, number), system, base, ratio) for base, ratio in ratios.items())


def _span(repeats: Sequence[Record], base: str) -> str:
    """The least and the greatest ratio of a repeat to the same repeat of the baseline."""
    ratios = [record[f"speedup_over_{base}"] for record in repeats]
    return f" ({min(ratios):.2f}-{max(ratios):.2f})" if len(ratios) > 1 else ""


def _replayed(name: str, task: str, found: Sequence[Cell], rows: list[Row]) -> Iterator[tuple[float, float]]:
    """Adds a row for all cells of a set with recorded answers; gives accept length over NGRAM's, and least ratio to plain."""
    systems = [system for system in ("none", "ngram", "suffix") if all(system in cell for cell in found)]
    if len(systems) < 3:
        return
    speeds = {system: mean(speed(cell[system]) for cell in found) for system in systems}
    lengths = {system: mean(record["accept_length"] for cell in found for record in cell[system]) for system in systems}
    of_plain = [speed(cell["suffix"]) / speed(cell["none"]) for cell in found]
    records = [record for cell in found for record in cell["suffix"]]
    asked = sum(record["prompt_tokens"] for record in records)
    kept = asked / (asked + sum(record["prompt_tokens_cut"] for record in records))
    rows.append(
        Row(
            name,
            f"{task}{', control' if task in _CONTROLS else ''}: mean of {len(found)} cells, "
            f"{min(record['requests'] for record in records)} or more calls each, {kept:.1%} of the prompts' tokens kept",
            NAMES["suffix"],
            f"{speeds['suffix']:.0f} ({lengths['suffix']:.2f}) tokens/s: {min(of_plain):.2f} to {max(of_plain):.2f} x plain",
            f"plain {speeds['none']:.0f}, NGRAM {speeds['ngram']:.0f} ({lengths['ngram']:.2f})",
        )
    )
    yield lengths["suffix"] / lengths["ngram"], min(of_plain)


def emulated_rows(files: Files) -> list[Row]:
    """What the cells of a file tell together; docs/step.md has the cells."""
    rows: list[Row] = []
    for name, content in files.items():
        if name != SENSITIVITY:
            rows += _emulated(name, content["records"]) if "records" in content else _step_costs(name, content["rows"])
    return rows


def _emulated(name: str, records: Sequence[Record]) -> Iterator[Row]:
    over_best: list[float] = []
    over_plain: dict[str, list[float]] = defaultdict(list)
    for (task, _, _), cell in cells(records).items():
        # The same system with another width limit is no rival.
        single = [
            speed(some) for system, some in cell.items() if system.split("-")[0] not in _OURS or system == "suffix"
        ]
        if task not in _CONTROLS:
            over_best += [speed(cell["hybrid"]) / max(single)] if "hybrid" in cell else []
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


def predicted_rows(files: Files) -> list[Row]:
    """Edits beside plain decoding, with a predicted output and without."""
    rows: list[Row] = []
    ratios: list[float] = []
    for name, content in files.items():
        for (task, pass_name, number), cell in cells(content["records"]).items():
            ratio, first = speed(cell["suffix"]) / speed(cell["none"]), cell["suffix"][0]
            is_predicted = task.endswith("_predicted")
            ratios += [ratio] if is_predicted else []
            place = "in the prompt" if task.startswith("edits_shown") else "not in the prompt"
            rows.append(
                Row(
                    name,
                    f"edits, the function {place}, {'predicted' if is_predicted else 'no prediction'}, {pass_name}, "
                    f"{clients(number)}, {first['requests']} calls, {first['emulated']} emulated",
                    NAMES["suffix"],
                    f"{told_speed(cell['suffix'])} tokens/s: {ratio:.2f} x plain",
                    f"plain {told_speed(cell['none'])}",
                )
            )
    if ratios:
        goals = (at_least("least x plain", min(ratios), 3.0),)
        rows.append(Row(list(files)[-1], "predicted edits, all cells", NAMES["suffix"], goals=goals))
    return rows


READERS: dict[str, Callable[[Files], list[Row]]] = {
    "eval": eval_rows,
    "emulated": emulated_rows,
    "predictions": predicted_rows,
}
