"""Accept lengths predicted from 100 outputs, beside those of replaying the rest of the set."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from agentspec.engine import Engine
from agentspec.progress import Progress
from agentspec.replay import Call, Tokenizer, read_trace
from agentspec.replay.traces import decompressed, message_text
from agentspec.report import learning
from agentspec.report.facts import WIDTH
from agentspec.report.log import read_log
from agentspec.report.replays import engine_config, serve, serve_cold, serve_warm
from agentspec.report.sample import SampleLimits

OUTPUTS = 100
_STRETCHES = 8
_CALLS_A_SESSION = 8
_ORDERS = 6
_BUDGET = 1 << 30


def prediction_rows(traces: Sequence[Path], tokenizer: Tokenizer, seeds: int, folder: Path) -> list[dict[str, Any]]:
    """A row for each trace.

    A report's sample is written to a log of requests, read as any log is, and its curve carried on over as many outputs
    as the set has. The set is replayed once, in the order of the file, from nothing; what the sample's own sessions
    took is left out of the sums.
    """
    rows = []
    for path in traces:
        trace = read_trace(str(path), tokenizer)
        config = engine_config(WIDTH, _BUDGET)
        steps = np.zeros(len(trace.calls))
        with Progress(f"replaying {trace.name}", len(trace.calls)) as progress:
            engine = Engine(config)
            for i in range(len(trace.calls)):
                steps[i] = serve(engine, trace.calls, np.array([i]), i).steps[0]
                progress.update(i, "calls")
        tokens = np.array([len(call.output) - 1 for call in trace.calls])
        lines = json_lines(path)
        predicted: list[float] = []
        replayed: list[float] = []
        samples: list[float] = []
        for seed in range(seeds):
            log, sessions = _write_sample(lines, trace.calls, seed, folder / f"{trace.name}-{seed}.jsonl")
            rest = np.array([_key(call) not in sessions for call in trace.calls])
            replayed.append(float(tokens[rest].sum() / steps[rest].sum()))
            predicted.append(predict(log, tokenizer, len(trace.calls), seed, samples))
        errors = np.array(predicted) / np.array(replayed) - 1.0
        rows.append(
            {
                "set": trace.name,
                "calls": len(trace.calls),
                "replayed": round(float(np.mean(replayed)), 4),
                "predicted": [round(value, 3) for value in predicted],
                "of_the_sample": [round(value, 3) for value in samples],
                "errors": [round(float(error), 4) for error in errors],
                "median_error": round(float(np.median(errors)), 4),
                "mean_absolute_error": round(float(np.abs(errors).mean()), 4),
                "within_goal": f"{int((np.abs(errors) <= 0.1).sum())} of {seeds}",
            }
        )
    return rows


def predict(log: Path, tokenizer: Tokenizer, num_outputs: int, seed: int, samples: list[float]) -> float:
    """The accept length over `num_outputs` outputs of a server that begins with nothing.

    Args:
        log: Of the sample.
        tokenizer: The model's.
        num_outputs: How many outputs are served one after another.
        seed: Of the report.
        samples: Takes the accept length of the sample itself, cold.
    """
    config = engine_config(WIDTH, _BUDGET)
    sampled = read_log([log], tokenizer, SampleLimits(), seed).sampled
    cold, warm = serve_cold(sampled, config, _ORDERS, seed), serve_warm(sampled, config)
    later = learning.later_points(sampled, config, seed)
    growth = learning.fit_growth(learning.curve_points(cold, later, warm, sampled, seed))
    assert growth is not None
    samples.append(cold.accept_length() or 1.0)
    return growth.over(0, num_outputs)


def json_lines(path: Path) -> list[dict[str, Any]]:
    """The lines of a trace."""
    with path.open("rb") as file:
        return [json.loads(line) for line in decompressed(file, path)]


def _key(call: Call) -> tuple[str, str, str]:
    return call.session, call.task, call.run


def _write_sample(
    lines: Sequence[dict[str, Any]], calls: Sequence[Call], seed: int, path: Path
) -> tuple[Path, set[tuple[str, str, str]]]:
    """Writes stretches of consecutive sessions with some 100 outputs in all; returns the file and those sessions."""
    counts = [_num_outputs(line) for line in lines]
    wanted = max(round(OUTPUTS / np.mean(counts)), 1)
    stretches = min(_STRETCHES, wanted)
    rng = np.random.default_rng(seed)
    chosen: list[int] = []
    for stretch in range(stretches):
        size = wanted // stretches + (stretch < wanted % stretches)
        room = len(lines) // stretches
        start = stretch * room + int(rng.integers(max(room - size, 1)))
        chosen += range(start, start + size)
    with path.open("w", encoding="utf-8") as file:
        for i in chosen:
            for record in _records(lines[i], rng):
                file.write(json.dumps(record) + "\n")
    names = {tuple(str(lines[i].get(key, "")) for key in ("session", "task", "run")) for i in chosen}
    return path, names  # type: ignore[return-value]


def _num_outputs(line: dict[str, Any]) -> int:
    if "calls" in line:
        return len(line["calls"])
    num_answers: int = sum(message["role"] == "assistant" for message in line["messages"])
    return min(num_answers, _CALLS_A_SESSION)


def _records(line: dict[str, Any], rng: np.random.Generator) -> list[dict[str, Any]]:
    """A staged session as it is; a chat as requests with their answers, some of them."""
    if "calls" in line:
        return [line]
    messages = line["messages"]
    places = [i for i, message in enumerate(messages) if message["role"] == "assistant"]
    if len(places) > _CALLS_A_SESSION:
        places = sorted(rng.choice(places, _CALLS_A_SESSION, replace=False).tolist())
    session = "/".join(str(line.get(key, "")) for key in ("session", "task", "run"))
    return [
        {
            "session": session,
            "messages": [{"role": m["role"], "content": message_text(m)} for m in messages[:i]],
            "completion": message_text(messages[i]),
        }
        for i in places
    ]
