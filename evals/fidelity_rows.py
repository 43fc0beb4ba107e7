"""Runs of `agentspec bench fidelity` simulated again, and its table and picture."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from agentspec.config import EngineConfig
from agentspec.control import ControlConfig, Profile, ServingCosts, StepCost, make_controller
from agentspec.errors import ConfigError
from agentspec.evals.open_loop import Answered, AskedCall
from agentspec.evals.server import RunningServer
from agentspec.evals.serving_costs import Cell, ServingMeter
from agentspec.replay.traces import Call
from agentspec.simulation import Arrivals, Requests, RunLog, ServerConfig, measure, record_acceptance, simulate

# Defaults of `agentspec serve`.
MAX_DRAFT_TOKENS, _KV_TOKENS = 15, 32768
# Every tokenizer has so many.
_VOCABULARY = 256
_PACE_PROMPT = 160
_PACE_ROWS = (1, 4)


@dataclass(slots=True, eq=False)
class LoadedServer:
    """A server and what it was asked so far, which is what it drafts from."""

    system: str
    limit: int
    """Requests of a batch at most."""
    server: RunningServer
    learnt: list[Call] = field(default_factory=list)

    @property
    def is_plain(self) -> bool:
        return self.system == "plain"

    def take(self, calls: Sequence[AskedCall], answers: Sequence[Answered]) -> None:
        """Remembers what was answered, in the order in which answers ended."""
        order = np.argsort([answer.answered for answer in answers])
        self.learnt += [as_call(calls[i], answers[i]) for i in order.tolist()]


def as_call(call: AskedCall, answer: Answered) -> Call:
    return Call(call.kind, "", "", (np.array(call.prompt, np.int32),), answer.output)


def service_rate(
    profile: Profile, server: LoadedServer, calls: Sequence[AskedCall], answers: Sequence[Answered]
) -> float:
    """Requests a second that the simulated server answers while as many wait as it may run.

    Args:
        profile: What steps and prefills take.
        server: Whose limit and system; of agentspec also what it has learnt.
        calls: What is asked, each once.
        answers: Of any server; outputs are the same on all.
    """
    arrival = np.full(len(calls), math.inf)
    arrival[: server.limit] = 0.0
    log = _simulated(profile, server, _requests(server, calls, answers, arrival))
    return len(calls) / float(log.finished.max())


def compared(
    profile: Profile,
    factors: Sequence[float],
    server: LoadedServer,
    calls: Sequence[AskedCall],
    answers: Sequence[Answered],
) -> dict[str, Any]:
    """Simulates what a server was asked, and says how far that is from what happened; the server then knows the calls.

    `factors` are the server's `pace` before and after; the profile is taken at their mean, and once as it is.

    Raises:
        ConfigError: An answer has another length than it was to have.
    """
    for call, answer in zip(calls, answers, strict=True):
        if len(answer.output) != call.output_tokens:
            raise ConfigError(f"an answer must have {call.output_tokens} tokens, got {len(answer.output)}")
    sent = np.array([answer.sent for answer in answers])
    requests = _requests(server, calls, answers, sent - sent[0])
    factor = statistics.fmean(factors)
    found, as_profiled = (
        measure(_simulated(some, server, requests), Arrivals(intervals=(1.0,)))
        for some in (at_pace(profile, factor), profile)
    )
    server.take(calls, answers)
    latencies = np.array([answer.seconds for answer in answers])
    decoded = sum(len(answer.output) - 1 for answer in answers)
    steps = decoded if server.is_plain else sum(answer.verify_steps for answer in answers)
    mean, simulated = float(latencies.mean()), found.latencies
    return {
        "requests": len(calls),
        "output_tokens": decoded + len(calls),
        "computed_prompt_tokens": int((requests.prompt_tokens - requests.cached_tokens).sum()),
        "measured_mean": round(mean, 4),
        "simulated_mean": round(simulated.latency_mean, 4),
        "error": round(simulated.latency_mean / mean - 1, 4),
        "pace": [round(one, 4) for one in factors],
        "error_as_profiled": round(as_profiled.latencies.latency_mean / mean - 1, 4),
        "measured_p50": round(float(np.percentile(latencies, 50)), 4),
        "simulated_p50": round(simulated.latency_p50, 4),
        "measured_p99": round(float(np.percentile(latencies, 99)), 4),
        "simulated_p99": round(simulated.latency_p99, 4),
        "measured_accept_length": round(decoded / max(steps, 1), 3),
        "simulated_accept_length": round(found.steps.accept_length, 3),
        "simulated_rows": round(found.steps.rows_mean, 2),
        "simulated_width": round(found.steps.width_mean, 2),
        "simulated_busy": round(found.busy_share, 3),
    }


def pace(profile: Profile, server: LoadedServer, rng: random.Random) -> float:
    """How many times as long as the profile says steps without drafts take now: what else happens on the machine, and
    how this process differs from the one that was profiled, is no error of the simulator."""
    costs = profile.plain if server.is_plain else profile.speculative
    if costs is None:
        raise ConfigError("the profile must hold what serving takes beside verification; measure it with --serving")
    parts = [costs.step] if server.is_plain else [costs.step, profile.target]
    meter = ServingMeter(server.server, _VOCABULARY, rng, drafts=False)
    totals = meter.steps([Cell(rows, _PACE_PROMPT) for rows in _PACE_ROWS])
    return statistics.fmean(
        total.wall
        / sum(part.alpha * total.context + part.gamma * total.batched + part.delta * total.steps for part in parts)
        for total in totals
    )


def at_pace(profile: Profile, factor: float) -> Profile:
    """The profile of a machine on which everything takes `factor` times as long."""
    return replace(
        profile,
        target=_slower(profile.target, factor),
        plain=_costs_at_pace(profile.plain, factor),
        speculative=_costs_at_pace(profile.speculative, factor),
        points=(),
        residuals=(),
    )


def _costs_at_pace(costs: ServingCosts | None, factor: float) -> ServingCosts | None:
    if costs is None:
        return None
    return replace(
        costs,
        request_seconds=factor * costs.request_seconds,
        prefill=_slower(costs.prefill, factor),
        step=_slower(costs.step, factor),
    )


def _slower(cost: StepCost, factor: float) -> StepCost:
    return StepCost(factor * cost.alpha, factor * cost.gamma, factor * cost.delta)


def _requests(
    server: LoadedServer, calls: Sequence[AskedCall], answers: Sequence[Answered], arrival: NDArray[np.float64]
) -> Requests:
    """The calls as they were asked: what was cached is as the server said, and what was learnt as they were answered."""
    times = [(answer.sent, answer.answered) for answer in answers]
    acceptance = record_acceptance(
        "asked",
        [as_call(call, answer) for call, answer in zip(calls, answers, strict=True)],
        EngineConfig(max_draft_tokens=1 if server.is_plain else MAX_DRAFT_TOKENS),
        warm=() if server.is_plain else server.learnt,
        times=None if server.is_plain else times,
    )
    return Requests(
        acceptance=acceptance,
        arrival=arrival,
        phase=np.zeros(len(calls), np.int32),
        prompt_tokens=acceptance.prompt_tokens.astype(np.int64),
        cached_tokens=np.array([answer.cached_tokens for answer in answers], np.int64),
        output_tokens=acceptance.output_tokens,
        first_place=acceptance.starts[:-1],
    )


def _simulated(profile: Profile, server: LoadedServer, requests: Requests) -> RunLog:
    config = ServerConfig(
        max_running=server.limit,
        kv_tokens=_KV_TOKENS,
        max_width=MAX_DRAFT_TOKENS + 1,
        costs=profile.plain if server.is_plain else profile.speculative,
        plain=server.is_plain,
    )
    control = ControlConfig(controller="fixed", length=0) if server.is_plain else ControlConfig()
    return simulate(requests, profile, config, make_controller(control, profile))


def markdown(content: Mapping[str, Any], bound: float) -> str:
    """The table of the runs."""
    titles = (
        *("server", "at most", "rate", "requests/s", "measured ms", "simulated ms", "error"),
        *("p50 error", "p99 error", "accept length, measured and simulated"),
        *("pace before, after", "error at the profile's pace"),
    )
    lines = [
        f"    {' '.join(content['command'])}",
        "",
        *(f"    {line}" for line in content["profile"]),
        "",
        f"| {' | '.join(titles)} |",
        "|---" * len(titles) + "|",
    ]
    for row in content["rows"]:
        mark = "**" if row["system"] == "plain" and abs(row["error"]) > bound else ""
        cells = (
            *(row["system"], str(row["limit"]), f"{row['share']:g}x", f"{row['requests_per_second']:.2f}"),
            *(f"{row['measured_mean'] * 1e3:.0f}", f"{row['simulated_mean'] * 1e3:.0f}"),
            f"{mark}{row['error']:+.1%}{mark}",
            *(f"{row[f'simulated_{name}'] / row[f'measured_{name}'] - 1:+.1%}" for name in ("p50", "p99")),
            f"{row['measured_accept_length']:.2f}, {row['simulated_accept_length']:.2f}",
            ", ".join(f"{pace:.2f}" for pace in row["pace"]),
            f"{row['error_as_profiled']:+.1%}",
        )
        lines.append(f"| {' | '.join(cells)} |")
    met = sum(goal["met"] for goal in content["goals"])
    lines += ["", f"Plain decoding: {met} of {len(content['goals'])} mean latencies within {bound:.0%}."]
    return "\n".join(lines)


def plot(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Simulated over measured mean latencies; raises ConfigError if matplotlib is not installed."""
    try:
        from matplotlib import rc_context
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ConfigError("drawing needs matplotlib; install agentspec[plots]") from error
    with rc_context({"svg.hashsalt": "agentspec"}):
        figure = Figure(figsize=(5, 4.5), layout="constrained")
        axes = figure.subplots()
        for system, limit in dict.fromkeys((row["system"], row["limit"]) for row in rows):
            some = [row for row in rows if (row["system"], row["limit"]) == (system, limit)]
            axes.plot(
                [row["measured_mean"] * 1e3 for row in some],
                [row["simulated_mean"] * 1e3 for row in some],
                marker="o" if system == "plain" else "s",
                linestyle="none",
                label=f"{system}, {limit} at most",
            )
        low, high = axes.get_xlim()
        axes.plot([low, high], [low, high], color="gray", linewidth=1)
        axes.fill_between([low, high], [0.9 * low, 0.9 * high], [1.1 * low, 1.1 * high], color="gray", alpha=0.15)
        axes.set(xlabel="measured mean latency, ms", ylabel="simulated, ms")
        axes.legend()
        figure.savefig(path, dpi=120, metadata={"Date": None} if path.suffix == ".svg" else None)
