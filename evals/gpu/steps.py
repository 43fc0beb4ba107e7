"""Step times of a size, and the simulator's predictions beside what was measured."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from agentspec.analysis.replay.traces import Call
from agentspec.cli.profile import ProfilePlan, measured_profile
from agentspec.config import EngineConfig
from agentspec.evals.gpu.servers import WIDTHS, device_arguments
from agentspec.evals.gpu.sizes import Size, model_folder
from agentspec.evals.gpu.trip import Record, Trip
from agentspec.evals.gpu.work import RecordedCall, Work
from agentspec.scheduling import ControlConfig, Profile, make_controller
from agentspec.simulation import Requests, ServerConfig, record_acceptance, simulate


def profile_file(trip: Trip, size: Size) -> Path:
    return trip.out / f"profile-{size.name}.json"


def measure_profile(trip: Trip, size: Size, backend: str) -> Record:
    """Measures the steps of one server that uses all widths in turn, and keeps the profile.

    Raises:
        ConfigError: The points do not determine the costs.
        ServerError: The server did not start, or does not report its steps.
    """
    small = trip.on_cpu or trip.quick
    most = max(trip.concurrencies)
    words = device_arguments(backend, most)
    if size.is_random:
        words += ["--load-format", "dummy"]
    plan = ProfilePlan(
        model=model_folder(size, trip.data),
        batch_sizes=sorted({1, most}) if small else [1, 4, 16, 64],
        context_lengths=[48, 160] if trip.on_cpu else [256, 1024] if small else [256, 1024, 2048],
        widths=[1, 2, 4] if trip.on_cpu else list(WIDTHS),
        sweep=True,
        rest=words,
    )
    profile = measured_profile(plan)
    profile.save(profile_file(trip, size))
    cost = profile.target
    return {
        "part": "profile",
        "size": size.name,
        "backend": backend,
        "alpha_us": cost.alpha * 1e6,
        "gamma_us": cost.gamma * 1e6,
        "delta_ms": cost.delta * 1e3,
        "r2": profile.r2,
        "points": len(profile.points),
    }


def compare_predictions(trip: Trip, size: Size, works: Sequence[Work], measured: Sequence[Record]) -> Iterable[Record]:
    """The simulator's tokens a second beside the measured ones, for suffix drafts and for plain decoding.

    The profile knows verification only. So prefills are assumed to take as long as verifications of their size, and
    nothing is spent between steps. The prediction is too high by whatever serving takes besides.

    Raises:
        ConfigError: There is no profile.
    """
    profile = Profile.load(profile_file(trip, size))
    by_trace = {work.trace: work for work in works}
    for record in measured:
        wanted = (record["part"], record.get("size"), record.get("error")) == ("replay", size.name, None)
        if not wanted or record["system"] not in ("none", "suffix") or record.get("concurrency") not in (1, 16, 64):
            continue
        work = by_trace.get(record["trace"])
        if work is None:
            continue
        clients = record["concurrency"]
        found = predicted(profile, size, work, clients, drafts=record["system"] == "suffix", on_cpu=trip.on_cpu)
        yield {
            "part": "predict",
            "size": size.name,
            "backend": record["backend"],
            "system": record["system"],
            "trace": work.trace,
            "concurrency": clients,
            "measured_tokens_per_second": record["tokens_per_second"],
            "predicted_tokens_per_second": round(found, 1),
            "error_of_prediction": round(found / record["tokens_per_second"] - 1.0, 4),
        }


def predicted(profile: Profile, size: Size, work: Work, clients: int, *, drafts: bool, on_cpu: bool) -> float:
    """Tokens a second of a simulated server with `clients` clients, which ask what was measured with that many
    clients."""
    calls = _as_calls(work.measured[clients])
    # The server also learnt from the calls with fewer clients, which came first.
    before = [*work.warm, *(call for n, some in work.measured.items() if n < clients for call in some)]
    most_drafted = WIDTHS[-1] - 1 if drafts else 1
    acceptance = record_acceptance(
        work.trace, calls, EngineConfig.served(most_drafted), warm=_as_calls(before) if drafts else ()
    )
    arrival = np.full(len(calls), math.inf)
    arrival[:clients] = 0.0
    requests = Requests(
        acceptance=acceptance,
        arrival=arrival,
        phase=np.zeros(len(calls), np.int32),
        prompt_tokens=acceptance.prompt_tokens.astype(np.int64),
        cached_tokens=np.zeros(len(calls), np.int64),
        output_tokens=acceptance.output_tokens,
        first_place=acceptance.starts[:-1],
    )
    config = ServerConfig(
        max_running=clients,
        kv_tokens=size.kv_tokens or 1 << 20,
        max_width=WIDTHS[-1] if drafts else 1,
        widths=() if on_cpu else WIDTHS if drafts else (1,),
    )
    chosen: Any = ControlConfig(objective="run") if drafts else ControlConfig(controller="fixed", length=0)
    log = simulate(requests, profile, config, make_controller(chosen, profile))
    return sum(len(call.output) for call in calls) / float(log.finished.max())


def _as_calls(calls: Iterable[RecordedCall]) -> list[Call]:
    return [Call(f"s{i}", "", "", (call.prompt,), call.answer) for i, call in enumerate(calls)]
