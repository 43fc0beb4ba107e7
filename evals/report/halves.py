"""Whether the intervals hold: a report on a random half of a log's sessions predicts the replay of the other half.

A draw deals the sessions of a log into two halves. The first half gets the intervals that a report on it would give.
The second half is replayed step by step, in the same two states of the server. The intervals are for 9 of 10 logs, so
they should contain about that share of the replays.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from agentspec.analysis.logs.log import Log, read_log
from agentspec.analysis.logs.sample import SampleLimits
from agentspec.analysis.measures.replays import (
    Pass,
    Sampled,
    cold_passes,
    engine_config,
    num_orders,
    serve,
    warm_passes,
)
from agentspec.analysis.measures.states import adapted_estimates, record
from agentspec.analysis.replay import Tokenizer
from agentspec.analysis.report.facts import WIDTH

STATES: dict[str, Callable[[Sampled, int], list[Pass]]] = {
    "cold": lambda sampled, seed: cold_passes(sampled, num_orders(sampled), seed),
    "warm": warm_passes,
}
COVERAGE = (0.8, 0.98)
"""The share of draws whose interval should contain the replay."""
_BUDGET = 1 << 28
_WHOLE = SampleLimits(learnt_bytes=1 << 32, measured_bytes=1 << 32, measured_outputs=1 << 31)


def halves_row(path: Path, tokenizer: Tokenizer, draws: int, outputs: int, most: int | None = None) -> dict[str, Any]:
    """The coverage of one set.

    Args:
        path: The set.
        tokenizer: The served model's.
        draws: The number of random halves.
        outputs: The number of outputs of the first half whose drafts are recorded, as a report's time allows.
        most: The number of outputs of the second half that are replayed; None: all. The others are only learnt.
    """
    log = read_log([path], tokenizer, _WHOLE, 0)
    names = np.array(sorted({call.session for call in log.sampled.outputs}))
    found: list[dict[str, Any]] = []
    for draw in range(draws):
        order = np.random.default_rng([draw, 1]).permutation(len(names))
        first, second = (set(names[some].tolist()) for some in np.array_split(order, 2))
        found.append(_draw(log, first, second, draw, outputs, most))
    return _row(path, log, found)


def _draw(log: Log, first: set[str], second: set[str], seed: int, outputs: int, most: int | None) -> dict[str, Any]:
    # Every draw has calls of its own; a report always takes the same ones of a log.
    order = np.random.default_rng([seed, 2]).permutation(len(log.sampled.measured))
    reported, replayed = (half(log, order, names, number) for names, number in ((first, outputs), (second, most)))
    found: dict[str, Any] = {"outputs": len(reported.measured), "replayed_outputs": len(replayed.measured)}
    estimates = adapted_estimates(reported, seed, _BUDGET)
    for state, passes in STATES.items():
        recorded = record(state, reported, passes(reported, seed), _BUDGET, estimates=estimates)
        ratio = recorded.lengths(WIDTH).ratio(reported) if recorded is not None else None
        truth = serve(replayed, passes(replayed, seed), engine_config(WIDTH, _BUDGET)).accept_length()
        if ratio is None or truth is None:
            continue
        interval = ratio.interval()
        found[state] = {**interval, "replayed": round(truth, 4), "held": interval["low"] <= truth <= interval["high"]}
    return found


def half(log: Log, order: NDArray[np.int64], names: set[str], number: int | None) -> Sampled:
    """The log of some sessions only, of which the first `number` calls in `order` are measured; None: all of them."""
    whole = log.sampled
    is_kept = np.array([call.session in names for call in whole.outputs], np.bool_)
    new_places = np.cumsum(is_kept) - 1
    drawn = [i for i in order.tolist() if is_kept[whole.places[i]]]
    chosen = whole.chosen(np.sort(np.array(drawn[:number], np.int64)))
    outputs = tuple(call for call, kept in zip(whole.outputs, is_kept, strict=True) if kept)
    return replace(chosen, places=new_places[chosen.places], outputs=outputs)


def _row(path: Path, log: Log, found: list[dict[str, Any]]) -> dict[str, Any]:
    row: dict[str, Any] = {
        "set": path.name.split(".jsonl")[0],
        "sessions": len({call.session for call in log.sampled.outputs}),
        "calls": len(log.sampled.outputs),
        "draws": len(found),
        "outputs": found[0]["outputs"],
        "replayed_outputs": found[0]["replayed_outputs"],
    }
    for state in STATES:
        of_state = [draw[state] for draw in found if state in draw]
        if not of_state:
            continue
        values: dict[str, NDArray[np.float64]] = {
            key: np.array([one[key] for one in of_state]) for key in ("mean", "low", "high", "replayed", "held")
        }
        row[state] = {
            "held": round(float(values["held"].mean()), 3),
            "reported": round(float(values["mean"].mean()), 3),
            "replayed": round(float(values["replayed"].mean()), 3),
            "below": round(float((1.0 - values["low"] / values["mean"]).mean()), 4),
            "above": round(float((values["high"] / values["mean"] - 1.0).mean()), 4),
            "draws": of_state,
        }
    return row


def shown(row: dict[str, Any]) -> str:
    """A row as a line."""
    parts = [f"{row['set']:<24}{row['sessions']:>6} sessions{row['draws']:>4} draws"]
    for state in STATES:
        if found := row.get(state):
            parts.append(
                f"{state} {found['reported']:.2f} -{found['below']:.0%} +{found['above']:.0%}, replayed "
                f"{found['replayed']:.2f}, held {found['held']:.0%}"
            )
    return "  ".join(parts)
