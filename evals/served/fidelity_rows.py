"""Simulates the runs of `agentspec bench fidelity` again."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from agentspec.analysis.replay.traces import Call
from agentspec.config import EngineConfig
from agentspec.errors import ConfigError
from agentspec.evals.clients.open_loop import Answered, AskedCall
from agentspec.integrations.servers.server import RunningServer
from agentspec.integrations.servers.serving_costs import Cell, ServingMeter
from agentspec.scheduling import ControlConfig, Profile, ServingCosts, StepCost, StepTimes, make_controller
from agentspec.simulation import Arrivals, Metrics, Requests, RunLog, ServerConfig, measure, record_acceptance, simulate

# The defaults of `agentspec serve`.
MAX_DRAFT_TOKENS, _KV_TOKENS = 15, 32768
# Every tokenizer has at least this many tokens.
_VOCABULARY = 256
_PACE_PROMPT = 160
_PACE_ROWS = (1, 4, 16)
"""As far as the server's limit goes."""
STEADY = 1.15
"""A run is steady if the greater of its two paces is at most this many times the lesser one. The time of its steps is
unknown otherwise."""


@dataclass(slots=True, eq=False)
class LoadedServer:
    """A server with everything it was asked so far, which is what it drafts from."""

    system: str
    limit: int
    """Greatest number of requests in a batch."""
    server: RunningServer
    learnt: list[Call] = field(default_factory=list)

    @property
    def is_plain(self) -> bool:
        return self.system == "plain"

    def take(self, calls: Sequence[AskedCall], answers: Sequence[Answered]) -> None:
        """Adds answered calls, in the order in which the answers ended."""
        order = np.argsort([answer.answered for answer in answers])
        self.learnt += [as_call(calls[i], answers[i]) for i in order.tolist()]


def as_call(call: AskedCall, answer: Answered) -> Call:
    return Call(call.kind, "", "", (np.array(call.prompt, np.int32),), answer.output)


def service_rate(
    profile: Profile, server: LoadedServer, calls: Sequence[AskedCall], answers: Sequence[Answered]
) -> float:
    """Requests a second of the simulated server while its queue always has as many requests as it may run.

    Args:
        profile: The time of steps and prefills.
        server: Its limit and system and, for agentspec, what it has learnt.
        calls: The requests, each asked once.
        answers: Of any server, because outputs are the same on all.
    """
    arrival = np.full(len(calls), math.inf)
    arrival[: server.limit] = 0.0
    log = _simulated(profile, server, _requests(server, calls, answers, arrival))
    return len(calls) / float(log.finished.max())


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Run:
    """A run and its simulations. Latencies are seconds, in the order of the requests."""

    requests_per_second: float
    pace: tuple[float, float]
    """Before and after the run."""
    measured: NDArray[np.float64]
    simulated: NDArray[np.float64]
    """At the mean pace."""
    as_profiled: NDArray[np.float64]
    """At the pace of the profile."""
    output_tokens: int
    computed_prompt_tokens: int
    accept_length: float
    metrics: Metrics
    """Of the simulation at the mean pace."""
    identical: bool = True
    """Whether the outputs were those of plain decoding."""

    @property
    def is_steady(self) -> bool:
        return max(self.pace) <= STEADY * min(self.pace)


def compared(
    profile: Profile,
    factors: Sequence[float],
    server: LoadedServer,
    calls: Sequence[AskedCall],
    answers: Sequence[Answered],
    *,
    rate: float,
) -> Run:
    """Simulates a run beside what was measured, and adds its calls to what the server has learnt.

    `factors` are the server's `pace` before and after the run. One simulation uses the profile at their mean, another
    the profile as it is.

    Raises:
        ConfigError: An answer does not have the required length.
    """
    for call, answer in zip(calls, answers, strict=True):
        if len(answer.output) != call.output_tokens:
            raise ConfigError(f"an answer must have {call.output_tokens} tokens, got {len(answer.output)}")
    sent = np.array([answer.sent for answer in answers])
    requests = _requests(server, calls, answers, sent - sent[0])
    log = _simulated(at_pace(profile, statistics.fmean(factors)), server, requests)
    as_profiled = _simulated(profile, server, requests)
    server.take(calls, answers)
    decoded = sum(len(answer.output) - 1 for answer in answers)
    steps = decoded if server.is_plain else sum(answer.verify_steps for answer in answers)
    return Run(
        requests_per_second=rate,
        pace=(factors[0], factors[-1]),
        measured=np.array([answer.seconds for answer in answers]),
        simulated=log.finished - log.arrival,
        as_profiled=as_profiled.finished - as_profiled.arrival,
        output_tokens=decoded + len(calls),
        computed_prompt_tokens=int((requests.prompt_tokens - requests.cached_tokens).sum()),
        accept_length=decoded / max(steps, 1),
        metrics=measure(log, Arrivals(intervals=(1.0,))),
    )


def row_of(runs: Sequence[Run]) -> dict[str, Any]:
    """The figures of a cell. Means and percentiles go over the requests of its steady runs, or of all runs if none is
    steady."""
    all_runs, runs = runs, [run for run in runs if run.is_steady] or runs
    measured, simulated, as_profiled = (
        np.concatenate([getattr(run, name) for run in runs]) for name in ("measured", "simulated", "as_profiled")
    )

    def mean(figure: Callable[[Run], float]) -> float:
        return statistics.fmean(map(figure, runs))

    return {
        "runs": len(all_runs),
        "steady_runs": sum(run.is_steady for run in all_runs),
        "requests": len(measured),
        "requests_per_second": round(mean(lambda run: run.requests_per_second), 3),
        "output_tokens": sum(run.output_tokens for run in runs),
        "computed_prompt_tokens": sum(run.computed_prompt_tokens for run in runs),
        "measured_mean": round(float(measured.mean()), 4),
        "simulated_mean": round(float(simulated.mean()), 4),
        "error": round(float(simulated.mean() / measured.mean()) - 1, 4),
        "errors": [round(float(run.simulated.mean() / run.measured.mean()) - 1, 4) for run in all_runs],
        "pace": [[round(one, 4) for one in run.pace] for run in all_runs],
        "error_as_profiled": round(float(as_profiled.mean() / measured.mean()) - 1, 4),
        "measured_p50": round(float(np.percentile(measured, 50)), 4),
        "simulated_p50": round(float(np.percentile(simulated, 50)), 4),
        "measured_p99": round(float(np.percentile(measured, 99)), 4),
        "simulated_p99": round(float(np.percentile(simulated, 99)), 4),
        "measured_accept_length": round(mean(lambda run: run.accept_length), 3),
        "simulated_accept_length": round(mean(lambda run: run.metrics.steps.accept_length), 3),
        "simulated_rows": round(mean(lambda run: run.metrics.steps.rows_mean), 2),
        "simulated_width": round(mean(lambda run: run.metrics.steps.width_mean), 2),
        "simulated_busy": round(mean(lambda run: run.metrics.busy_share), 3),
        "identical": all(run.identical for run in runs),
    }


def pace(profile: Profile, server: LoadedServer, rng: random.Random) -> float:
    """How much longer steps without drafts take now than the profile says. Other work on the machine, and differences
    between this process and the profiled one, are not errors of the simulator."""
    costs = profile.plain if server.is_plain else profile.speculative
    if costs is None:
        raise ConfigError("the profile must hold serving costs; measure it with `agentspec profile --serving`")
    meter = ServingMeter(server.server, _VOCABULARY, rng, repeats=3, drafts=False)
    times, ratios = StepTimes(profile), []
    for total in meter.steps([Cell(rows, _PACE_PROMPT) for rows in _PACE_ROWS if rows <= server.limit]):
        context, batched = total.context / total.steps, total.batched / total.steps
        seconds = costs.step_seconds(total.rows, context, batched)
        if not server.is_plain:
            seconds += times.seconds(total.rows, 1, context)
        ratios.append(total.wall / (total.steps * seconds))
    return statistics.fmean(ratios)


def at_pace(profile: Profile, factor: float) -> Profile:
    """The profile of a machine on which everything takes `factor` times as long."""
    return replace(
        profile,
        target=_slower(profile.target, factor),
        plain=_costs_at_pace(profile.plain, factor),
        speculative=_costs_at_pace(profile.speculative, factor),
        points=tuple(replace(point, seconds=factor * point.seconds) for point in profile.points),
        residuals=tuple(factor * residual for residual in profile.residuals),
    )


def _costs_at_pace(costs: ServingCosts | None, factor: float) -> ServingCosts | None:
    if costs is None:
        return None
    return replace(
        costs,
        request_seconds=factor * costs.request_seconds,
        prefill=_slower(costs.prefill, factor),
        step=_slower(costs.step, factor),
        by_rows=tuple((rows, factor * seconds) for rows, seconds in costs.by_rows),
    )


def _slower(cost: StepCost, factor: float) -> StepCost:
    return StepCost(factor * cost.alpha, factor * cost.gamma, factor * cost.delta)


def _requests(
    server: LoadedServer, calls: Sequence[AskedCall], answers: Sequence[Answered], arrival: NDArray[np.float64]
) -> Requests:
    """The calls as they were asked, with the cached tokens that the server reported, learning from them as they were
    answered."""
    times = [(answer.sent, answer.answered) for answer in answers]
    acceptance = record_acceptance(
        "asked",
        [as_call(call, answer) for call, answer in zip(calls, answers, strict=True)],
        EngineConfig.served(1 if server.is_plain else MAX_DRAFT_TOKENS),
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
        # These servers run SGLang with the reference kernels.
        pads_context=True,
        ragged=not server.is_plain,
    )
    control = ControlConfig(controller="fixed", length=0) if server.is_plain else ControlConfig()
    return simulate(requests, profile, config, make_controller(control, profile))
