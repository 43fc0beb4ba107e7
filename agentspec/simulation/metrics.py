"""The log of a simulated run, and its figures: latencies of requests, and how the steps' time was spent."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from agentspec.simulation.arrivals import Arrivals
from agentspec.simulation.requests import Requests


@dataclass(frozen=True, slots=True)
class Latencies:
    """Latencies of some requests in seconds; zeros if there is no request."""

    requests: int
    latency_mean: float
    """From arrival to the last token."""
    latency_p50: float
    latency_p99: float
    ttft_mean: float
    """From arrival to the first token."""
    ttft_p99: float
    tpot_mean: float
    """Seconds between tokens, as a mean over the requests with at least two tokens."""
    queueing_mean: float
    """From arrival to admission."""


@dataclass(frozen=True, slots=True)
class StepFigures:
    """Figures of some steps; zeros if no step decoded."""

    goodput: float
    """Accepted and bonus tokens per second of decode steps (SmartSpec, eq. 3)."""
    decode_steps: int
    rows_mean: float
    """Requests per decode step."""
    width_mean: float
    """Tokens verified per row and decode step, root and padding included."""
    drafted_mean: float
    """Drafted tokens verified per row and decode step, without padding."""
    accept_length: float
    """Tokens per row and decode step, the bonus token included."""


@dataclass(frozen=True, slots=True)
class Metrics:
    """Figures of a whole run."""

    latencies: Latencies
    steps: StepFigures
    throughput: float
    """Output tokens per second from the first arrival to the last token."""
    busy_share: float
    """Share of that time spent in steps."""
    retractions: int
    peak_kv_tokens: int
    uncovered_share: float
    """Share of decode steps outside the measured range of the profile."""
    bias: float
    """Expected tokens of decode steps divided by generated ones; 1 for a controller without bias."""
    phases: tuple[dict[str, float], ...]
    """For each phase of the arrivals, the latencies of the requests that arrived in it and the figures of its steps."""

    def record(self) -> dict[str, Any]:
        """All figures with six digits, flat except for the phases."""
        own = asdict(self)
        flat = {**own.pop("latencies"), **own.pop("steps"), **own}
        del flat["phases"]
        result: dict[str, Any] = {name: _rounded(value) for name, value in flat.items()}
        if len(self.phases) > 1:
            result["phases"] = [{name: _rounded(value) for name, value in phase.items()} for phase in self.phases]
        return result


def measure(log: RunLog, arrivals: Arrivals) -> Metrics:
    """The figures of a finished run."""
    start, seconds = np.array(log.start), np.array(log.seconds)
    width, rows, tokens = np.array(log.width), np.array(log.rows), np.array(log.tokens)
    drafted, expected = np.array(log.drafted), np.array(log.expected)
    decoding = width > 0
    phase_of_step = np.array([arrivals.phase_at(time) for time in log.start], np.int64)

    def steps(chosen: NDArray[np.bool_]) -> StepFigures:
        chosen = chosen & decoding
        num_rows = max(int(rows[chosen].sum()), 1)
        num_steps = int(chosen.sum())
        return StepFigures(
            goodput=float(tokens[chosen].sum() / max(seconds[chosen].sum(), 1e-12)),
            decode_steps=num_steps,
            rows_mean=float(rows[chosen].sum() / max(num_steps, 1)),
            width_mean=float((rows * width)[chosen].sum() / num_rows),
            drafted_mean=float(drafted[chosen].sum() / num_rows),
            accept_length=float(tokens[chosen].sum() / num_rows),
        )

    everything = np.ones(len(start), np.bool_)
    span = float(log.finished.max() - log.arrival.min())
    return Metrics(
        latencies=_latencies(log, np.ones(len(log.arrival), np.bool_)),
        steps=steps(everything),
        throughput=float(log.generated.sum() / max(span, 1e-12)),
        busy_share=float(seconds.sum() / max(span, 1e-12)),
        retractions=log.retractions,
        peak_kv_tokens=log.peak_kv_tokens,
        uncovered_share=log.uncovered_steps / max(int(decoding.sum()), 1),
        bias=float(expected[decoding].sum() / max(tokens[decoding].sum(), 1)),
        phases=tuple(
            {**asdict(_latencies(log, log.requests.phase == phase)), **asdict(steps(phase_of_step == phase))}
            for phase in range(arrivals.num_phases)
        ),
    )


def _latencies(log: RunLog, chosen: NDArray[np.bool_]) -> Latencies:
    if not chosen.any():
        return Latencies(0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)
    arrival = log.arrival[chosen]
    latency, ttft = log.finished[chosen] - arrival, log.first_token[chosen] - arrival
    decoded = log.generated[chosen] - 1
    several = decoded > 0
    between = (latency - ttft)[several] / decoded[several]
    return Latencies(
        requests=int(chosen.sum()),
        latency_mean=float(latency.mean()),
        latency_p50=float(np.percentile(latency, 50)),
        latency_p99=float(np.percentile(latency, 99)),
        ttft_mean=float(ttft.mean()),
        ttft_p99=float(np.percentile(ttft, 99)),
        tpot_mean=float(between.mean()) if len(between) else 0.0,
        queueing_mean=float((log.admitted[chosen] - arrival).mean()),
    )


def _rounded(value: float) -> float:
    return value if isinstance(value, int) else float(f"{value:.6g}")


@dataclass(slots=True, eq=False)
class RunLog:
    """The log of a run: one entry per step, and the times of each request in seconds."""

    requests: Requests
    arrival: NDArray[np.float64]
    """[n], filled in for clients' requests too once they are sent."""
    admitted: NDArray[np.float64]
    """[n], the time when the request first left the queue."""
    first_token: NDArray[np.float64]
    """[n]"""
    finished: NDArray[np.float64]
    """[n]"""
    generated: NDArray[np.int64]
    """[n], number of output tokens."""
    retractions: int = 0
    peak_kv_tokens: int = 0
    uncovered_steps: int = 0
    """Number of decode steps outside the measured range of the profile."""
    start: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)
    width: list[int] = field(default_factory=list)
    """0 for steps that prefill."""
    tokens: list[int] = field(default_factory=list)
    """Tokens generated in the step."""
    drafted: list[int] = field(default_factory=list)
    """Drafted tokens verified, without roots and padding."""
    expected: list[float] = field(default_factory=list)
    """Tokens that the controller expected of the step."""
    reason: list[str] = field(default_factory=list)
