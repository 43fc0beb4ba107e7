"""Accept lengths predicted from 100 outputs, beside those of a replay of the rest of the set.

Three errors are distinguished: the error of the prediction; the error of the sample if the steps that each of its
outputs takes in the whole set were known; and the error of the sample's own replay, which has learnt from its few
outputs only.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from agentspec.analysis.logs.account import Account
from agentspec.analysis.logs.formats.messages import read_messages
from agentspec.analysis.logs.log import read_log
from agentspec.analysis.logs.sample import SampleLimits
from agentspec.analysis.measures import learning
from agentspec.analysis.measures.intervals import NORMAL
from agentspec.analysis.measures.replays import engine_config, serve_alone, serve_call
from agentspec.analysis.measures.states import adapted_estimates, record
from agentspec.analysis.replay import Tokenizer, read_trace
from agentspec.analysis.replay.traces import decompressed
from agentspec.analysis.report.facts import WIDTH
from agentspec.engine import Engine
from agentspec.evals.report.halves import STATES
from agentspec.progress import Progress

OUTPUTS = 100
GOAL = 0.1
_STRETCHES = 8
_BUDGET = 1 << 30


@dataclass(frozen=True, slots=True)
class Prediction:
    """Of the accept length over some number of outputs."""

    mean: float
    low: float
    high: float
    """The interval that should contain the true value nine times out of ten."""
    of_sample: float
    """The sample's own accept length, cold."""


def prediction_rows(traces: Sequence[Path], tokenizer: Tokenizer, seeds: int, folder: Path) -> list[dict[str, Any]]:
    """A row for each trace.

    A sample is written to a log of requests, which is read as any log is, and its curve is extrapolated to the number
    of outputs of the set. The set is replayed once, in the order of the file, starting from nothing. The sample's own
    calls are excluded from the sums.
    """
    rows = []
    for path in traces:
        trace = read_trace(str(path), tokenizer)
        config = engine_config(WIDTH, _BUDGET)
        steps = np.zeros(len(trace.calls))
        with Progress(f"replaying {trace.name}", len(trace.calls)) as progress:
            engine = Engine(config)
            for i in range(len(trace.calls)):
                steps[i] = serve_call(engine, trace.calls[i])
                progress.update(i, "calls")
        tokens = np.array([len(call.output) - 1 for call in trace.calls])
        lines = json_lines(path)
        predictions: list[Prediction] = []
        replayed: list[float] = []
        known: list[float] = []
        for seed in range(seeds):
            log = folder / f"{trace.name}-{seed}.jsonl"
            chosen = _write_sample(lines, seed, log)
            replayed.append(float(tokens[~chosen].sum() / steps[~chosen].sum()))
            known.append(float(tokens[chosen].sum() / steps[chosen].sum()))
            predictions.append(predict(log, tokenizer, len(trace.calls), seed))
        rows.append(_row(trace.name, len(trace.calls), np.array(replayed), np.array(known), predictions))
    return rows


def predict(log: Path, tokenizer: Tokenizer, num_outputs: int, seed: int) -> Prediction:
    """The prediction for `num_outputs` outputs of a server that begins with nothing.

    Args:
        log: Of the sample.
        tokenizer: The model's.
        num_outputs: Number of outputs that are served one after another.
        seed: Of the report.
    """
    sampled = read_log([log], tokenizer, SampleLimits(), seed).sampled
    estimates = adapted_estimates(sampled, seed, _BUDGET)
    cold, warm = (
        recorded.lengths(WIDTH)
        for state, passes in STATES.items()
        if (recorded := record(state, sampled, passes(sampled, seed), None, _BUDGET, estimates=estimates)) is not None
    )
    points = learning.curve_points(cold, warm, serve_alone(sampled, engine_config(WIDTH, _BUDGET)), sampled)
    growth = learning.fit_growth(points, learning.first_of(sampled))
    assert growth is not None
    mean, low, high = (growth.over(0, num_outputs, k * NORMAL) for k in (0, -1, 1))
    return Prediction(mean, low, high, cold.accept_length() or 1.0)


def _row(
    name: str, calls: int, replayed: NDArray[np.float64], known: NDArray[np.float64], predictions: Sequence[Prediction]
) -> dict[str, Any]:
    errors = np.array([prediction.mean for prediction in predictions]) / replayed - 1.0
    known_errors = known / replayed - 1.0
    held = [p.low <= truth <= p.high for p, truth in zip(predictions, replayed.tolist(), strict=True)]
    return {
        "set": name,
        "calls": calls,
        "replayed": round(float(np.mean(replayed)), 4),
        "predicted": [round(prediction.mean, 3) for prediction in predictions],
        "intervals": [[round(prediction.low, 3), round(prediction.high, 3)] for prediction in predictions],
        "of_the_sample": [round(prediction.of_sample, 3) for prediction in predictions],
        "errors": [round(float(error), 4) for error in errors],
        "median_error": round(float(np.median(errors)), 4),
        "mean_absolute_error": round(float(np.abs(errors).mean()), 4),
        "within_goal": _share(np.abs(errors) <= GOAL),
        "in_interval": _share(np.array(held)),
        "errors_if_known": [round(float(error), 4) for error in known_errors],
        "within_goal_if_known": _share(np.abs(known_errors) <= GOAL),
    }


def _share(of: NDArray[np.bool_]) -> str:
    return f"{int(of.sum())} of {len(of)}"


def json_lines(path: Path) -> list[dict[str, Any]]:
    """The lines of a trace."""
    with path.open("rb") as file:
        return [json.loads(line) for line in decompressed(file, path)]


def _write_sample(lines: Sequence[dict[str, Any]], seed: int, path: Path) -> NDArray[np.bool_]:
    """Writes about 100 outputs from all over the set; gives a mask of its calls.

    Of chats it takes single outputs with their prompts, one from each of 100 equal parts of the set. Of staged
    sessions, whose prompts are not recorded, it takes whole ones in eight stretches of neighbours; otherwise the
    repetition between neighbours would be lost.
    """
    rng = np.random.default_rng(seed)
    counts = np.array([_num_outputs(line) for line in lines])
    starts = np.concatenate([[0], np.cumsum(counts)])
    chosen = np.zeros(starts[-1], np.bool_)
    with path.open("w", encoding="utf-8") as file:
        if "calls" in lines[0]:
            for line in _stretches(len(lines), max(round(OUTPUTS / float(counts.mean())), 1), rng):
                chosen[starts[line] : starts[line + 1]] = True
                file.write(json.dumps(lines[line]) + "\n")
            return chosen
        edges = np.linspace(0, len(chosen), min(OUTPUTS, len(chosen)) + 1).astype(int)
        for low, high in itertools.pairwise(edges):
            place = int(rng.integers(low, high))
            chosen[place] = True
            line = int(np.searchsorted(starts, place, side="right")) - 1
            file.write(json.dumps(_request(lines[line], place - int(starts[line]))) + "\n")
    return chosen


def _stretches(number: int, wanted: int, rng: np.random.Generator) -> list[int]:
    """Lines in up to eight stretches of consecutive ones, each from its own part of the set."""
    stretches = min(_STRETCHES, wanted)
    room = number // stretches
    drawn: list[int] = []
    for stretch in range(stretches):
        size = wanted // stretches + (stretch < wanted % stretches)
        start = stretch * room + int(rng.integers(max(room - size, 1)))
        drawn += range(start, start + size)
    return drawn


def _num_outputs(line: dict[str, Any]) -> int:
    if "calls" in line:
        return len(line["calls"])
    return sum(message["role"] == "assistant" for message in line["messages"])


def _request(line: dict[str, Any], output: int) -> dict[str, Any]:
    """The request for the chat's answer of that number, with the answer."""
    messages = read_messages(line["messages"], Account(), prompt=False)
    i = [i for i, message in enumerate(messages) if message.role == "assistant"][output]
    return {
        "session": "/".join(str(line.get(key, "")) for key in ("session", "task", "run")),
        "messages": [{"role": message.role, "content": message.read} for message in messages[:i]],
        "completion": messages[i].written,
    }
