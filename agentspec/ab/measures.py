"""The facts of a comparison, from the turns.

Everything is over tasks that both servers did in the same turn without an error, so that both did the same work.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from agentspec.ab.arms import LABELS, Arm
from agentspec.ab.calls import UNDERSTOOD, Call, busy_seconds
from agentspec.ab.experiment import Turn
from agentspec.ab.intervals import SHARE, Ratio, ratio_of_sums
from agentspec.ab.workload import TaskResult

_FEW_TURNS = 6
"""With fewer pairs of turns than this, intervals are over tasks."""

Sums = Mapping[str, float]


@dataclass(frozen=True, slots=True)
class _Done:
    """A task that was done once, with the sums that its figures are made of."""

    result: TaskResult
    sums: Sums


@dataclass(frozen=True, slots=True)
class _Pair:
    """A turn of both servers."""

    turns: Mapping[str, Turn]
    """By label."""
    tasks: Mapping[str, Mapping[str, _Done]]
    """By label and task: those that both did without an error."""
    sums: Mapping[str, Sums]
    """By label."""


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure that both servers are compared by: a quotient of two sums."""

    key: str
    title: str
    unit: str
    above: str
    below: str
    lower_is_better: bool
    by_task: bool = True
    """Whether it is known for single tasks."""


FIGURES = (
    Figure("wall", "Wall time of a task", "s", "seconds", "tasks", True),
    Figure("model", "Time in the model", "s a task", "model_seconds", "tasks", True),
    Figure("outside", "Time outside the model", "s a task", "outside_seconds", "tasks", True),
    Figure("tools", "Time in tools", "s a task", "tool_seconds", "tool_tasks", True),
    Figure("framework", "Time in the agent's framework", "s a task", "framework_seconds", "tool_tasks", True),
    Figure("rate", "Tasks an hour", "", "hour_tasks", "turn_seconds", False, by_task=False),
    Figure("speed", "Tokens a second of a call", "", "completion_tokens", "call_seconds", False, by_task=False),
    Figure("throughput", "Tokens a second of the server", "", "turn_tokens", "turn_seconds", False, by_task=False),
    Figure("ttft", "Time to first token", "s", "first_seconds", "streamed", True, by_task=False),
    Figure("tpot", "Time per output token", "s", "later_seconds", "later_tokens", True, by_task=False),
    Figure("accept", "Accept length", "tokens a step", "stepped_tokens", "verify_steps", False, by_task=False),
    Figure("calls", "Calls of the model", "a task", "calls", "called_tasks", True),
    Figure("tokens", "Tokens written", "a task", "completion_tokens", "called_tasks", True, by_task=False),
)


def facts_of(turns: Sequence[Turn], arms: Mapping[str, Arm], notes: Sequence[str]) -> dict[str, Any]:
    """All figures of a comparison, without the turns of its warm-up. `notes` say what is known to limit it."""
    counted = [turn for turn in turns if turn.slice >= 0]
    pairs = _pairs(counted)
    unit = "turns" if len(pairs) >= _FEW_TURNS else "tasks"
    rows = [row for figure in FIGURES if (row := _row(figure, pairs, unit)) is not None]
    answers = _answers(pairs)
    success = _success(pairs)
    limits = [*notes, *_limits(counted, pairs, rows, answers, arms)]
    result = {
        "arms": {label: {"name": arms[label].name, **_arm_facts(label, counted, arms[label])} for label in LABELS},
        "pairs": len(pairs),
        "tasks": sum(len(pair.tasks["a"]) for pair in pairs),
        "interval": {"share": SHARE, "over": unit},
        "figures": rows,
        "answers": answers,
        "success": success,
        "by_task": _by_task(pairs),
        "could_not_compare": limits,
    }
    result["headline"] = _headline(result)
    return result


def _pairs(turns: Sequence[Turn]) -> list[_Pair]:
    grouped: dict[tuple[int, int], dict[str, Turn]] = defaultdict(dict)
    for turn in turns:
        grouped[turn.repeat, turn.slice][turn.label] = turn
    pairs = []
    for both in grouped.values():
        if len(both) < len(LABELS):
            continue
        done = {label: _done(turn) for label, turn in both.items()}
        common = [task for task in done["a"] if task in done["b"]]
        tasks = {label: {task: found[task] for task in common} for label, found in done.items()}
        is_whole = all(result.task in tasks["a"] for turn in both.values() for result in turn.results)
        if common:
            sums = {label: _turn_sums(both[label], tasks[label], is_whole) for label in LABELS}
            pairs.append(_Pair(both, tasks, sums))
    return pairs


def _done(turn: Turn) -> dict[str, _Done]:
    calls: dict[str, list[Call]] = defaultdict(list)
    for call in turn.calls:
        calls[call.task].append(call)
    found = {}
    for result in turn.results:
        if result.error:
            continue
        own = calls.get(result.task, [])
        model = result.model_seconds
        if model is None and own:
            model = busy_seconds(own)
        sums = {"tasks": 1.0, "seconds": result.seconds}
        if model is not None:
            sums |= {"model_seconds": model, "outside_seconds": max(0.0, result.seconds - model)}
        if result.tool_seconds is not None:
            sums |= {"tool_seconds": result.tool_seconds, "tool_tasks": 1.0}
            if model is not None:
                sums["framework_seconds"] = max(0.0, result.seconds - model - result.tool_seconds)
        if own:
            sums |= {"calls": float(sum(not call.error for call in own)), "called_tasks": 1.0}
        found[result.task] = _Done(result, sums)
    return found


def _turn_sums(turn: Turn, tasks: Mapping[str, _Done], is_whole: bool) -> Sums:
    """The sums over the tasks of a turn that both servers did, and over their calls. Unless the turn `is_whole`, it has other
    tasks too: then its own seconds tell nothing, nor do calls that no task claims."""
    sums: dict[str, float] = defaultdict(float)
    for done in tasks.values():
        for name, value in done.sums.items():
            sums[name] += value
    good = [call for call in turn.calls if not call.error and (call.task in tasks if call.task else is_whole)]
    if is_whole:
        sums["turn_seconds"] = turn.seconds
        sums["turn_tokens"] = sum(call.completion_tokens or 0 for call in good)
        sums["hour_tasks"] = 3600.0 * len(tasks)
    sums["calls"] = len(good)
    sums["called_tasks"] = len(tasks) if is_whole or any(call.task for call in turn.calls) else 0
    for call in good:
        if call.completion_tokens is not None:
            sums["completion_tokens"] += call.completion_tokens
            sums["call_seconds"] += call.seconds
        if call.first is not None:
            sums["streamed"] += 1
            sums["first_seconds"] += call.first - call.began
            if call.completion_tokens is not None and call.completion_tokens > 1:
                sums["later_seconds"] += call.ended - call.first
                sums["later_tokens"] += call.completion_tokens - 1
        # The first token comes from the prefill, not from a step.
        if call.verify_steps and call.completion_tokens:
            sums["verify_steps"] += call.verify_steps
            sums["stepped_tokens"] += call.completion_tokens - 1
    return sums


def _row(figure: Figure, pairs: Sequence[_Pair], unit: str) -> dict[str, Any] | None:
    """The figure of both servers, and how many times better B is; None if neither server's is known."""
    sums: dict[str, dict[str, float]] = {label: defaultdict(float) for label in LABELS}
    for pair in pairs:
        for label in LABELS:
            for name, value in pair.sums[label].items():
                sums[label][name] += value
    values = {
        label: sums[label][figure.above] / sums[label][figure.below] if sums[label][figure.below] else None
        for label in LABELS
    }
    if all(value is None for value in values.values()):
        return None
    ratio: Ratio | None = None
    if None not in values.values():
        if unit == "turns" or not figure.by_task:
            items = [(pair.sums["a"], pair.sums["b"]) for pair in pairs]
        else:
            items = [
                (pair.tasks["a"][task].sums, pair.tasks["b"][task].sums) for pair in pairs for task in pair.tasks["a"]
            ]
        items = [item for item in items if item[0].get(figure.below) or item[1].get(figure.below)]
        a_above, b_above = _column(items, 0, figure.above), _column(items, 1, figure.above)
        a_below, b_below = _column(items, 0, figure.below), _column(items, 1, figure.below)
        ratio = (
            ratio_of_sums([a_above, b_below], [b_above, a_below])
            if figure.lower_is_better
            else ratio_of_sums([b_above, a_below], [a_above, b_below])
        )
    return {
        "key": figure.key,
        "title": figure.title,
        "unit": figure.unit,
        "lower_is_better": figure.lower_is_better,
        **{label: _rounded(value) for label, value in values.items()},
        "ratio": ratio and _rounded(ratio.value),
        "low": ratio and _rounded(ratio.low),
        "high": ratio and _rounded(ratio.high),
    }


def _column(items: Sequence[tuple[Sums, Sums]], place: int, name: str) -> NDArray[np.float64]:
    return np.array([item[place].get(name, 0.0) for item in items], np.float64)


def _answers(pairs: Sequence[_Pair]) -> dict[str, Any]:
    """How many greedy answers are the same on both servers, and on one server when it is asked again."""
    compared = identical = 0
    alone: Counter[str] = Counter()
    own: dict[str, dict[str, list[str]]] = {label: defaultdict(list) for label in LABELS}
    different: list[str] = []
    for pair in pairs:
        found: dict[str, dict[tuple[str, str], list[str]]] = {label: defaultdict(list) for label in LABELS}
        for label in LABELS:
            for call in pair.turns[label].calls:
                if call.is_greedy and call.answer:
                    found[label][call.task, call.request].append(call.answer)
                    own[label][call.request].append(call.answer)
        for key in found["a"].keys() | found["b"].keys():
            a, b = found["a"].get(key, []), found["b"].get(key, [])
            common = min(len(a), len(b))
            same = sum((Counter(a) & Counter(b)).values())
            compared += common
            identical += min(same, common)
            if same < common and key[0]:
                different.append(key[0])
            alone["a"] += len(a) - common
            alone["b"] += len(b) - common
    return {
        "compared": compared,
        "identical": identical,
        "only_a": alone["a"],
        "only_b": alone["b"],
        "again": {label: _again(own[label].values()) for label in LABELS},
        "different_tasks": sorted(set(different))[:20],
    }


def _again(answers: Iterable[Sequence[str]]) -> dict[str, int]:
    """Greedy requests that one server got more than once, and how many of them had the same answer each time."""
    repeated = [found for found in answers if len(found) > 1]
    return {"requests": len(repeated), "same": sum(len(set(found)) == 1 for found in repeated)}


def _success(pairs: Sequence[_Pair]) -> dict[str, Any] | None:
    """Tasks by who succeeded; None where nothing decides."""
    counts = Counter(
        (pair.tasks["a"][task].result.success, pair.tasks["b"][task].result.success)
        for pair in pairs
        for task in pair.tasks["a"]
    )
    graded = sum(number for (a, b), number in counts.items() if a is not None and b is not None)
    if not graded:
        return None
    both, only_a, only_b = counts[True, True], counts[True, False], counts[False, True]
    return {
        "graded": graded,
        "both": both,
        "only_a": only_a,
        "only_b": only_b,
        "neither": counts[False, False],
        "a": round((both + only_a) / graded, 4),
        "b": round((both + only_b) / graded, 4),
    }


def _arm_facts(label: str, turns: Sequence[Turn], arm: Arm) -> dict[str, Any]:
    own = [turn for turn in turns if turn.label == label]
    results = [result for turn in own for result in turn.results]
    calls = [call for turn in own for call in turn.calls]
    good = [call for call in calls if not call.error]
    return {
        "model": arm.model,
        "server": dict(arm.facts),
        "tasks": len(results),
        "failed_tasks": sum(bool(result.error) for result in results),
        "calls": len(calls),
        "failed_calls": len(calls) - len(good),
        "prompt_tokens": _known_sum(call.prompt_tokens for call in good),
        "cached_tokens": _known_sum(call.cached_tokens for call in good),
        "completion_tokens": _known_sum(call.completion_tokens for call in good),
        "verify_steps": _known_sum(call.verify_steps for call in good),
        "seconds": round(sum(turn.seconds for turn in own), 3),
        "task_seconds": _quantiles([result.seconds for result in results if not result.error]),
        "ttft_seconds": _quantiles([call.first - call.began for call in good if call.first is not None]),
        "tpot_seconds": _quantiles([gap for call in good if (gap := call.seconds_a_token) is not None]),
    }


def _by_task(pairs: Sequence[_Pair]) -> list[dict[str, Any]]:
    """The mean seconds of each task on both servers."""
    seconds: dict[str, dict[str, list[float]]] = defaultdict(lambda: {label: [] for label in LABELS})
    for pair in pairs:
        for label in LABELS:
            for task, done in pair.tasks[label].items():
                seconds[task][label].append(done.result.seconds)
    return [
        {"task": task, **{label: round(float(np.mean(found[label])), 4) for label in LABELS}}
        for task, found in seconds.items()
    ]


def _limits(
    turns: Sequence[Turn],
    pairs: Sequence[_Pair],
    rows: Sequence[dict[str, Any]],
    answers: Mapping[str, Any],
    arms: Mapping[str, Arm],
) -> list[str]:
    """What could not be compared, and why."""
    limits = []
    calls = [call for turn in turns for call in turn.calls]
    known = {row["key"]: row for row in rows}
    for label in LABELS:
        own = [turn for turn in turns if turn.label == label]
        failed = [result for turn in own for result in turn.results if result.error]
        if failed:
            limits.append(
                f"{len(failed)} tasks failed on server {label} and are left out of every figure; the first: "
                f"{failed[0].task}: {failed[0].error}"
            )
        broken = [call for turn in own for call in turn.calls if call.error]
        if broken:
            limits.append(f"{len(broken)} calls failed on server {label}; the first: {broken[0].error}")
    if not calls:
        limits.append(
            "No call of a model was recorded: does the workload use the base URL that it is given, and one of the calls "
            f"{', '.join(UNDERSTOOD)}?"
        )
        return limits
    sampled = sum(not call.is_greedy for call in calls)
    if sampled:
        limits.append(
            f"{sampled} of {len(calls)} calls do not ask for temperature 0. Their answers are drawn and were not compared."
        )
    one_sided = answers["only_a"] + answers["only_b"]
    if one_sided:
        limits.append(
            f"{one_sided} greedy answers were not compared because only one server answered the request: the work took "
            "another course there, after a different or a drawn answer, or the other server failed."
        )
    unstreamed = sum(call.first is None and not call.error for call in calls)
    if unstreamed:
        limits.append(
            f"{unstreamed} of {len(calls)} calls were not streamed, so their time to first token and time per output "
            "token are not known."
        )
    if "model" not in known:
        limits.append("The time in the model is not known for single tasks, because calls were not told apart by task.")
    for label in LABELS:
        own_calls = [call for turn in turns if turn.label == label for call in turn.calls if not call.error]
        if own_calls and all(call.completion_tokens is None for call in own_calls):
            limits.append(f"Server {label} does not tell numbers of tokens.")
        if own_calls and all(call.verify_steps is None for call in own_calls):
            limits.append(
                f"Server {label} tells no accept length: a server without speculation has none, nor has an answer of one token."
            )
    if arms["a"].model.rpartition("/")[2] != arms["b"].model.rpartition("/")[2]:
        limits.append(f"The servers name their models differently: {arms['a'].model} and {arms['b'].model}.")
    for key in ("version", "dtype", "tp_size", "device"):
        a, b = arms["a"].facts.get(key), arms["b"].facts.get(key)
        if a != b and None not in (a, b):
            limits.append(f"The servers differ in {key} as well: {a} and {b}.")
    if not pairs:
        limits.append("No task was done by both servers.")
    cut = sum(not pair.sums["a"].get("turn_seconds") for pair in pairs)
    if cut:
        limits.append(f"Figures over the time of turns leave out {cut} of {len(pairs)} pairs, in which tasks failed.")
    return limits


def _headline(facts: Mapping[str, Any]) -> str:
    row = next((row for row in facts["figures"] if row["key"] == "wall"), None)
    names = [facts["arms"][label]["name"] for label in LABELS]
    if names[0] == names[1]:
        names = [f"{name} ({label.upper()})" for name, label in zip(names, LABELS, strict=True)]
    if row is None or row["ratio"] is None:
        return "The servers could not be compared."
    if not all(facts["arms"][label]["calls"] for label in LABELS):
        return "The servers could not be compared: no call of a model was recorded on one of them."
    ratio, low, high = row["ratio"], row["low"], row["high"]
    bounds = f" ({low:.2f} to {high:.2f})" if low is not None else ""
    if low is not None and low <= 1 <= high:
        said = f"No difference was found: a task takes {ratio:.2f} times{bounds} as long on {names[0]} as on {names[1]}"
    elif ratio >= 1:
        said = f"A task is {ratio:.2f} times{bounds} as fast on {names[1]} as on {names[0]}"
    else:
        inverse = f" ({1 / high:.2f} to {1 / low:.2f})" if low is not None else ""
        said = f"A task takes {1 / ratio:.2f} times{inverse} as long on {names[1]} as on {names[0]}"
    failed = [
        f"{arm['failed_tasks']} of {arm['tasks']} failed on {name}"
        for name, arm in zip(names, facts["arms"].values(), strict=True)
        if arm["failed_tasks"]
    ]
    if failed:
        said += f", of the tasks that both did ({', '.join(failed)})"
    answers = facts["answers"]
    if not answers["compared"]:
        return f"{said}; no answers could be compared."
    if answers["compared"] == answers["identical"]:
        return f"{said}; all {answers['compared']} answers that were compared are identical."
    return f"{said}; {answers['identical']} of {answers['compared']} answers that were compared are identical."


def _quantiles(values: Sequence[float]) -> dict[str, float] | None:
    if not values:
        return None
    return {
        "mean": round(float(np.mean(values)), 5),
        **{f"p{percent}": round(float(np.percentile(values, percent)), 5) for percent in (50, 90, 99)},
    }


def _known_sum(values: Iterable[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _rounded(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.5g}")
