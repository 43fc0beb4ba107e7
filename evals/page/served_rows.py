"""Rows of results from servers: tokens a second and accept lengths, beside other systems in the same run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from agentspec.evals.page.row import Content, Files, Goal, Row, at_least, at_most, clients, mean, short, told

NAMES = {
    "none": "plain",
    "ngram": "NGRAM",
    "standalone": "STANDALONE",
    "eagle3": "EAGLE-3",
    "suffix": "suffix drafts",
    "hybrid": "hybrid with EAGLE-3",
}
_OURS = ("suffix", "hybrid")
_PREDICTED_GOAL = 3.0
_CONTROLS = ("chat_mt_bench", "math_gsm8k")
_LIVE = {"text_to_sql": "text-to-SQL agents", "open_chat": "open prompts"}
# For a draft model beside suffix drafts on the agents' work. The goal of the bench itself is lower.
_HYBRID_GOAL = 1.2
_HYBRID_WORKLOADS = {
    "agents-cold": "text-to-SQL agents, cold",
    "agents": "text-to-SQL agents, warm",
    "open": "open prompts",
    "mix": "half agents, half open prompts",
    "change": "agents, then open prompts, then agents",
}

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


def eval_rows(files: Files) -> list[Row]:
    rows: list[Row] = []
    for name, content in files.items():
        found = cells(content["records"])
        tasks = dict.fromkeys(task for task, _, _ in found)
        for task in tasks:
            some = {key: cell for key, cell in found.items() if key[0] == task}
            rows += _live(name, some) if task in _LIVE else _replayed(name, task, list(some.values()))
    return rows


def _live(name: str, found: Mapping[tuple[str, str, int], Cell]) -> Iterator[Row]:
    for (task, pass_name, number), cell in found.items():
        for system in [system for system in _OURS if system in cell]:
            ratios = {base: speed(cell[system]) / speed(cell[base]) for base in ("none", "ngram") if base in cell}
            goals: list[Goal] = []
            if task == "open_chat":
                goals = [at_least("x plain", ratios["none"], 0.98)]
            elif pass_name == "warm":
                goals = [at_least("x plain", ratios["none"], 2.5), at_least("x NGRAM", ratios["ngram"], 1.3)]
            parts = [f"{ratio:.2f} x {NAMES[base]}{_span(cell[system], base)}" for base, ratio in ratios.items()]
            yield Row(
                f"{_LIVE[task]}, {pass_name}, {clients(number)}, {cell[system][0]['requests']} calls",
                NAMES[system],
                f"{told_speed(cell[system])} tokens/s: {', '.join(parts)}",
                ", ".join(f"{called(base)} {told_speed(cell[base])}" for base in cell if base not in _OURS),
                tuple(goals),
                name,
            )


def _span(repeats: Sequence[Record], base: str) -> str:
    """The least and the greatest ratio of a repeat to the same repeat of the baseline."""
    ratios = [record[f"speedup_over_{base}"] for record in repeats]
    return f" ({min(ratios):.2f}-{max(ratios):.2f})" if len(ratios) > 1 else ""


def told_speed(repeats: Sequence[Record]) -> str:
    """Tokens a second, and the accept length of a system that drafts."""
    length = mean(record["accept_length"] for record in repeats)
    return f"{speed(repeats):,.0f}" + ("" if repeats[0]["system"] == "none" else f" ({length:.2f})")


def _replayed(name: str, task: str, found: Sequence[Cell]) -> Iterator[Row]:
    """All cells of a set together: recorded answers, forced through the server."""
    systems = [system for system in ("none", "ngram", "suffix") if all(system in cell for cell in found)]
    if len(systems) < 3:
        return
    speeds = {system: mean(speed(cell[system]) for cell in found) for system in systems}
    lengths = {system: mean(record["accept_length"] for cell in found for record in cell[system]) for system in systems}
    of_plain = [speed(cell["suffix"]) / speed(cell["none"]) for cell in found]
    if task in _CONTROLS:
        goal = at_least("least x plain", min(of_plain), 0.98)
    else:
        goal = at_least("accept length x NGRAM", lengths["suffix"] / lengths["ngram"], 1.1)
    records = [record for cell in found for record in cell["suffix"]]
    asked = sum(record["prompt_tokens"] for record in records)
    kept = asked / (asked + sum(record["prompt_tokens_cut"] for record in records))
    fewest = min(record["requests"] for record in records)
    yield Row(
        f"{task}{', control' if task in _CONTROLS else ''}: mean of {len(found)} cells, {fewest} or more calls each, "
        f"{kept:.1%} of the prompts' tokens kept",
        NAMES["suffix"],
        f"{speeds['suffix']:.0f} ({lengths['suffix']:.2f}) tokens/s: {min(of_plain):.2f} to {max(of_plain):.2f} x plain",
        f"plain {speeds['none']:.0f}, NGRAM {speeds['ngram']:.0f} ({lengths['ngram']:.2f})",
        (goal,),
        name,
    )


def emulated_rows(files: Files) -> list[Row]:
    rows: list[Row] = []
    for name, content in files.items():
        rows += _emulated(name, content["records"]) if "records" in content else _step_costs(name, content["rows"])
    return rows


def _emulated(name: str, records: Sequence[Record]) -> list[Row]:
    rows, over_best, wide = [], [], []
    for (task, pass_name, number), cell in cells(records).items():
        # The same system with another width limit is no rival.
        single = {system: speed(some) for system, some in cell.items() if system.split("-")[0] not in _OURS}
        if "suffix" in cell:
            single["suffix"] = speed(cell["suffix"])
        if {"suffix-16", "suffix-64"} <= set(cell):
            wide.append((number, speed(cell["suffix-64"]) / speed(cell["suffix-16"])))
        for system in [system for system in _OURS if system in cell]:
            best = max((base for base in single if base != system), key=lambda base: single[base])
            goals = []
            if task in _CONTROLS:
                if "none" in cell:
                    goals = [at_least("x plain", speed(cell[system]) / speed(cell["none"]), 0.98)]
            elif system == "suffix" and "ngram" in cell:
                busy, peer = (mean(record["device_busy"] for record in cell[one]) for one in (system, "ngram"))
                goals = [Goal(f"device busy {busy:.1%}, goal >= NGRAM's {peer:.1%}", busy >= peer)]
            elif system == "hybrid":
                over_best.append(speed(cell[system]) / single[best])
                goals = [at_least("x the best single system", over_best[-1], 0.99)]
            rows.append(
                Row(
                    f"{task}, {pass_name}, {clients(number)}, {cell[system][0]['emulated']} emulated{_head(cell[system][0])}",
                    NAMES[system],
                    f"{told_speed(cell[system])} tokens/s: {speed(cell[system]) / single[best]:.2f} x {called(best)}",
                    ", ".join(f"{called(base)} {told_speed(cell[base])}" for base in single if base != system),
                    tuple(goals),
                    name,
                )
            )
    if over_best:
        goal = at_least("mean x the best single system", mean(over_best), 1.1)
        rows.append(Row("all cells", NAMES["hybrid"], f"{mean(over_best):.2f} x the best", "", (goal,), name))
    if wide:
        goals = [at_least("least x at most 16", min(ratio for _, ratio in wide), 0.99)]
        alone = [ratio for number, ratio in wide if number == 1]
        goals += [at_least("x at most 16, 1 client", mean(alone), 1.1)] if alone else []
        figure = f"{min(ratio for _, ratio in wide):.2f} to {max(ratio for _, ratio in wide):.2f} x at most 16"
        rows.append(Row("all cells", "at most 64 tokens a row", figure, "", tuple(goals), name))
    return rows


def _head(record: Record) -> str:
    """What is told of the emulated head, unless it has the default accept length."""
    head = record.get("head", "4.0")
    return "" if head in ("4.0", None) else f", head {head}"


def predicted_rows(files: Files) -> list[Row]:
    """Edits beside plain decoding, with a predicted output and without."""
    rows = []
    for name, content in files.items():
        for (task, pass_name, number), cell in cells(content["records"]).items():
            ratio = speed(cell["suffix"]) / speed(cell["none"])
            is_predicted = task.endswith("_predicted")
            place = "in the prompt" if task.startswith("edits_shown") else "not in the prompt"
            first = cell["suffix"][0]
            rows.append(
                Row(
                    f"edits, the function {place}, {'predicted' if is_predicted else 'no prediction'}, {pass_name}, "
                    f"{clients(number)}, {first['requests']} calls, {first['emulated']} emulated",
                    NAMES["suffix"],
                    f"{told_speed(cell['suffix'])} tokens/s: {ratio:.2f} x plain",
                    f"plain {told_speed(cell['none'])}",
                    (at_least("x plain", ratio, _PREDICTED_GOAL),) if is_predicted else (),
                    name,
                )
            )
    return rows


def called(system: str) -> str:
    base, _, number = system.partition("-")
    unit = {"eagle3": "steps", "ngram": "tokens"}.get(base)
    return NAMES.get(base, base) + (f" with {number} {unit}" if number and unit else f" {number}" if number else "")


def _step_costs(name: str, measured: Sequence[Record]) -> Iterator[Row]:
    at = {(row["system"], row["rows"]): row for row in measured}
    for (system, number), row in at.items():
        ngram, eagle3 = at.get(("ngram", number)), at.get(("eagle3", number))
        if system == "suffix" and ngram:
            goals = [
                at_most("host reads", row["host_reads"], ngram["host_reads"]),
                at_most("idle", 100 * row["idle_share"], 100 * ngram["idle_share"], " %"),
            ]
        elif system == "hybrid" and eagle3:
            goals = [
                at_most("host reads", row["host_reads"], eagle3["host_reads"] + 1),
                at_most("eager operations", row["eager_ops"], eagle3["eager_ops"] + 20),
                at_most("Python", row["python_ms"], eagle3["python_ms"] + 0.5, " ms"),
            ]
        else:
            continue
        rows = f"a step of {number} {'row' if number == 1 else 'rows'}"
        yield Row(rows, NAMES[system], f"{row['idle_share']:.1%} of the step idle", "", tuple(goals), name)


def hybrid_rows(files: Files) -> list[Row]:
    """The latest run of each workload; further files hold workloads that the bench's own file lacks."""
    rows: dict[str, Row] = {}
    for name, content in sorted(files.items(), key=lambda item: item[0] != "bench.json"):
        for row in content["rows"]:
            if row["system"] == "hybrid" and row["workload"] not in rows:
                rows[row["workload"]] = _hybrid(name, row, content)
    return list(rows.values())


def _hybrid(name: str, row: Record, content: Content) -> Row:
    workload = row["workload"]
    others = {
        one["system"]: one
        for one in content["rows"]
        if one["workload"] == workload and one["system"].split("-")[0] in NAMES and one["system"] != "hybrid"
    }
    best = max(others, key=lambda system: float(others[system]["tokens_per_second"]))
    ratio = row["tokens_per_second"] / others[best]["tokens_per_second"]
    prefixes = (f"{workload}:", f"{workload} ")
    goals = [
        told(goal, _wanted(goal["name"].removeprefix(workload).lstrip(": ")))
        for goal in content["goals"]
        if goal["name"].startswith(prefixes)
    ]
    if workload in ("agents-cold", "agents"):
        goals.append(at_least(f"x {called(best)}", ratio, _HYBRID_GOAL))
    return Row(
        f"{_HYBRID_WORKLOADS.get(workload, workload)}, {row['requests']} calls",
        NAMES["hybrid"],
        f"{row['tokens_per_second']:.0f} ({row['accept_length']:.2f}) tokens/s: {ratio:.2f} x {called(best)}",
        ", ".join(
            f"{called(system)} {one['tokens_per_second']:.0f}"
            + ("" if system == "none" else f" ({one['accept_length']:.2f})")
            for system, one in others.items()
        ),
        tuple(goals),
        name,
    )


def load_rows(files: Files) -> list[Row]:
    rows = []
    for name, content in files.items():
        by_cell: dict[str, list[Mapping[str, Any]]] = {}
        for goal in content["goals"]:
            by_cell.setdefault(goal["name"].partition(":")[0], []).append(goal)
        for cell, goals in by_cell.items():
            workload, _, number = cell.partition(", ")
            at = {
                row["system"]: row["tokens_per_second"]
                for row in content["rows"]
                if row["workload"] == workload and row["concurrency"] == int(number.split()[0])
            }
            rows.append(
                Row(
                    f"{_HYBRID_WORKLOADS.get(workload, workload)}, {clients(int(number.split()[0]))}".replace(
                        ", warm", ""
                    ),
                    "suffix drafts, objective `run`",
                    f"{at['agentspec']:.0f} tokens/s",
                    ", ".join(
                        f"{called(system)} {value:.0f}"
                        for system, value in at.items()
                        if system not in ("agentspec", "ahead")
                    ),
                    tuple(told(goal, _wanted(goal["name"].partition(": ")[2])) for goal in goals),
                    name,
                )
            )
    return rows


def _wanted(name: str) -> str:
    """In words, what a bench calls a goal."""
    ratio, _, base = name.rpartition("tokens/s over ")
    return name.replace("drafter", "draft model") if ratio or not base or base == name else f"x {called(base)}"


def fidelity_rows(files: Files) -> list[Row]:
    rows = []
    for name, content in files.items():
        if "goals" not in content:
            continue
        at = {f"{row['system']}, {row['limit']} at most, {row['share']:g} of its rate": row for row in content["rows"]}
        for goal in content["goals"]:
            cell = goal["name"].partition(":")[0]
            row = at[cell]
            rows.append(
                Row(
                    f"plain SGLang, at most {row['limit']} requests at once, {row['share']:g} x its capacity",
                    "simulator",
                    f"mean latency {1e3 * row['simulated_mean']:.0f} ms",
                    f"measured {1e3 * row['measured_mean']:.0f} ms, {row['steady_runs']} of {row['runs']} runs steady",
                    (Goal(f"error {100 * row['error']:+.1f} %, goal {goal['target']}", bool(goal["met"])),),
                    name,
                )
            )
    return rows


def store_rows(files: Files) -> list[Row]:
    rows = []
    for name, content in files.items():
        for row in content["rows"]:
            if "target" not in row:
                continue
            case = "_".join(part for part in row["case"].split("_") if part not in ("sqlite", "redis"))
            what = _STORE_CASES.get(case, case)
            store = "SQLite" if "sqlite" in row["case"] else "Redis"
            unit = _STORE_UNITS.get(row["unit"], row["unit"])
            figure = f"{short(row['value'])} {unit}"
            rows.append(
                Row(what, store, figure, "", (Goal(f"{figure}, goal {row['target']}", bool(row["met"])),), name)
            )
    return rows


_STORE_CASES = {
    "warm_start": "accepted tokens a step of a restarted engine over those of the one that learnt, replay",
    "warm_start_server": "the same of servers on the demo's questions",
    "step_overhead_percent_healthy": "more time for a step, store healthy",
    "step_overhead_percent_slow": "more time for a step, 300 ms a reply",
    "step_overhead_percent_dead": "more time for a step, store stopped",
    "publish_us_healthy": "CPU time of the step's thread for a finished output, store healthy",
    "publish_us_slow": "CPU time of the step's thread for a finished output, 300 ms a reply",
    "publish_us_dead": "CPU time of the step's thread for a finished output, store stopped",
    "follower_lag_p99_s": "lag from a finished output to another replica, p99, 200 outputs a second",
    "lost_outputs": "lost outputs of 12,000",
    "ready_10m_s": "10 million tokens ready to draft from",
}
_STORE_UNITS = {"ratio of accepted tokens a step": "x", "% of a step": "%", "us of CPU": "us"}

READERS: dict[str, Callable[[Files], list[Row]]] = {
    "eval": eval_rows,
    "emulated": emulated_rows,
    "predictions": predicted_rows,
    "hybrid": hybrid_rows,
    "load": load_rows,
    "fidelity": fidelity_rows,
    "store": store_rows,
}
