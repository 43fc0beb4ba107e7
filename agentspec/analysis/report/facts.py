"""The report's facts: read the logs, sample, measure, decide.

logs ─> outputs, of which some calls are replayed ─> drafts of a cold and of a warm server
    ─┬─> accept lengths ─> sets
     ├─> width, tau ─────────────────┐
     └─> simulated servers ─> speed-up ─> verdict

All parts read the same recorded drafts of the same calls, so they agree.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from agentspec import __version__
from agentspec.analysis.logs.log import read_log
from agentspec.analysis.logs.sample import SampleLimits
from agentspec.analysis.logs.source import LogReading
from agentspec.analysis.measures import entropy, grid
from agentspec.analysis.measures.replays import (
    Lengths,
    Sampled,
    cold_passes,
    engine_config,
    is_crowd,
    num_orders,
    prepared,
    serve_alone,
    warm_passes,
)
from agentspec.analysis.measures.sets import entropy_of, set_rows
from agentspec.analysis.measures.speedup import speedup_row
from agentspec.analysis.measures.states import MAX_WIDTH, Recorded, adapted_estimates, record
from agentspec.analysis.replay.tokenizer import Tokenizer
from agentspec.analysis.report.budget import Budget, Plan, planned
from agentspec.analysis.report.inputs import input_facts, input_notes
from agentspec.analysis.report.verdict import Evidence, best_width, budget_mb, verdict
from agentspec.engine import Engine
from agentspec.errors import ConfigError
from agentspec.estimates import Estimates
from agentspec.progress import Progress
from agentspec.scheduling import Profile
from agentspec.simulation import find_profile

SCHEMA = 3
WIDTH = 16
"""Tokens per row, the root included, at which the sets are measured."""
_BASE_MB, _BYTES_A_KEPT_BYTE = 384, 16
"""Memory of the process without a log, and memory of the engine and the analysis for each byte of kept outputs."""
_DRAFT_SHARE_TAU = 2.0
_READING = 0.5
"""The share of the time that reading may take."""
_NO_LENGTHS = Lengths(np.zeros(0, np.int64), *(np.zeros(0, np.float64),) * 2)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportConfig:
    """The options of a report. Raises ConfigError if a field is out of range, or a profile is not found."""

    profiles: tuple[str, ...] = ("smartspec-a100-7b",)
    """Files of `agentspec profile`, or names in agentspec.simulation.BUILT_IN_PROFILES. The verdict is for the device of
    the first one."""
    concurrency: tuple[int, ...] = (1, 8, 64)
    memory_mb: int = 1024
    """The approximate memory of the whole process. A log that does not fit is sampled."""
    seconds: float = 60.0
    """The most CPU time that the whole report may take. Fewer calls, and parts of long ones, are replayed if all would
    take longer."""
    replay: int | None = None
    """Replay exactly this number of calls, or all if there are fewer, whatever time that takes; None: as many as the
    time allows."""
    seed: int = 0
    model: str = "MODEL"
    """The served model in the command of the verdict."""
    command: str = "agentspec report"

    def __post_init__(self) -> None:
        if self.memory_mb < _BASE_MB + 64:
            raise ConfigError(
                f"--memory-mb must be at least {_BASE_MB + 64}, got {self.memory_mb}; the default is 1024"
            )
        if not 1.0 <= self.seconds < float("inf"):
            raise ConfigError(f"--seconds must be at least 1, got {self.seconds}; the default is 60")
        if self.replay is not None and self.replay < 1:
            raise ConfigError(f"--replay must be at least 1, got {self.replay}; without it the time decides")
        if not self.concurrency or min(self.concurrency) < 1 or max(self.concurrency) > 1024:
            raise ConfigError(f"--concurrency must be in [1, 1024], got {self.concurrency}; for example 1,8,64")
        if not self.profiles:
            raise ConfigError("a report needs a profile; leave --profile at its default")
        for name in self.profiles:
            find_profile(name)

    @property
    def limits(self) -> SampleLimits:
        least = SampleLimits()
        room = ((self.memory_mb - _BASE_MB) << 20) // _BYTES_A_KEPT_BYTE
        return SampleLimits(learnt_bytes=min(least.learnt_bytes, room))


def report_facts(paths: Sequence[Path], tokenizer: Tokenizer, config: ReportConfig) -> dict[str, Any]:
    """Everything that a report says about logs. Raises ConfigError if a path does not exist, or no output could be
    read."""
    started, cpu_started = time.perf_counter(), time.process_time()
    # Recorded drafts may take half of the memory that the process has besides its own.
    drafts_bytes = (config.memory_mb - _BASE_MB) << 19
    budget = Budget(seconds=config.seconds, memory_bytes=drafts_bytes, started=cpu_started)
    clock = budget if config.replay is None else None
    deadline = None if clock is None else cpu_started + _READING * config.seconds
    log = read_log(paths, tokenizer, config.limits, config.seed, deadline)
    sample, kept = log.sample, log.kept
    sample_entropy = entropy_of(kept)
    budget_bytes = max(64 << 20, (config.memory_mb << 20) // 4)
    plan = (
        Plan(config.replay)
        if config.replay
        else planned(log, budget, config.concurrency, len(config.profiles), budget_bytes)
    )
    drawn = log.drawn(plan.calls)
    whole, lost = log.sampled.chosen(drawn), log.num_lost(drawn)
    # What is counted is counted in whole outputs.
    sampled = whole.shortened(plan.share, log.draws[drawn])
    notes = input_notes(log, sampled, lost, config.seconds if config.replay is None else None, plan.share)

    indexed: list[tuple[int, int]] = []

    def keep_size(learnt: Engine) -> None:
        learnt.flush()
        stats = learnt.stats()
        indexed.append((stats.global_bytes, stats.output_tokens))

    estimates = adapted_estimates(sampled, config.seed, budget_bytes)
    recorded = _recorded(sampled, estimates, budget_bytes, config.seed, keep_size)
    rows = grid.grid_rows({state: of.acceptance for state, of in recorded.items()})
    cold, warm = (recorded[state].lengths(WIDTH) if state in recorded else _NO_LENGTHS for state in ("cold", "warm"))
    sets, set_notes = set_rows(sample.counts, kept, whole, cold, warm)
    alone = serve_alone(sampled, engine_config(WIDTH, budget_bytes))
    notes += set_notes

    profiles = {name: find_profile(name) for name in config.profiles}
    speedups = _speedups(profiles, sampled, recorded, estimates, config, budget_bytes, best_width(rows), notes, clock)
    total = sample.counts["all", "all"]
    memory = _memory(indexed, total.tokens, total.outputs)
    first_profile = next(iter(profiles.values()))
    if sample_entropy is None:
        notes.append("The entropy is not known: no context is in two outputs.")
    context = _mean_context(sampled)
    judged = verdict(
        Evidence(
            num_outputs=total.outputs,
            num_sessions=len(total.sessions),
            lost_share=lost / max(len(sampled.measured), 1),
            num_replayed=len(sampled.measured),
            understood=log.reading.understood,
            not_understood=_not_understood(log.reading),
            cold=cold.accept_length(),
            warm=warm.accept_length(),
            alone=alone.accept_length(),
            entropy=sample_entropy["mean"] if sample_entropy else None,
            draft_share=_draft_share(rows),
            speedups=speedups,
            rows=rows,
            profile=first_profile,
            concurrency=config.concurrency,
            context=context,
            budget_mb=memory["budget_mb"],
            model=config.model,
        )
    )
    return {
        "schema": SCHEMA,
        "version": __version__,
        "command": config.command,
        "created": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "seed": config.seed,
        "seconds": round(time.perf_counter() - started, 2),
        "inputs": input_facts(log, sampled, lost, tokenizer),
        "entropy": sample_entropy
        and {**sample_entropy, "method": entropy.METHOD, "reading": entropy.reading(sample_entropy["mean"])},
        "sets": sets,
        "replay": rows,
        "speedup": speedups,
        "memory": memory,
        "verdict": judged,
        "could_not_tell": notes,
    }


def _not_understood(reading: LogReading) -> str:
    bad = f"{reading.num_bad} records that could not be read" if reading.num_bad else ""
    return ", ".join(filter(None, (bad, reading.account.not_understood(3))))


def _recorded(
    sampled: Sampled,
    estimates: Estimates | None,
    budget_bytes: int,
    seed: int,
    on_warm: Callable[[Engine], object],
) -> dict[str, Recorded]:
    """The recorded drafts: cold, and warm if possible."""
    recorded: dict[str, Recorded] = {}
    done = 0
    with Progress("recording drafts", len(sampled.measured) * (num_orders(sampled) + 1)) as progress:

        def count() -> None:
            nonlocal done
            done += 1
            progress.update(done, "calls")

        servers = {
            "cold": cold_passes(sampled, num_orders(sampled), seed),
            "warm": prepared(sampled, warm_passes(sampled, seed), engine_config(MAX_WIDTH, budget_bytes)),
        }
        for state, passes in servers.items():
            on_pass = on_warm if state == "warm" else lambda engine: None
            found = record(state, sampled, passes, budget_bytes, estimates=estimates, on_call=count, on_pass=on_pass)
            if found is not None:
                recorded[state] = found
    return recorded


def _speedups(
    profiles: dict[str, Profile],
    sampled: Sampled,
    recorded: dict[str, Recorded],
    estimates: Estimates | None,
    config: ReportConfig,
    budget_bytes: int,
    width: int,
    notes: list[str],
    clock: Budget | None,
) -> list[dict[str, Any]]:
    if not recorded:
        notes.append("The speed-up is not known: no output has two tokens, so nothing can be drafted.")
        return []
    acceptances = [of.acceptance for of in recorded.values()]
    longest = max(int((a.prompt_tokens + a.output_tokens).max()) for a in acceptances)
    rows: list[dict[str, Any]] = []
    servers = cold_passes(sampled, num_orders(sampled), config.seed)
    taken = 0.0
    with Progress("simulating", len(profiles) * len(config.concurrency)) as progress:
        for concurrency in config.concurrency:
            if rows and clock is not None and taken > clock.left:
                notes.append(
                    f"The time of {clock.seconds:g} seconds (--seconds) did not suffice for concurrency {concurrency}."
                )
                continue
            began = time.process_time()
            states = recorded
            if is_crowd(sampled, concurrency):
                cold = record("cold", sampled, servers, budget_bytes, estimates=estimates, clients=concurrency)
                states = states | {"cold": cold} if cold is not None else states
            for name, profile in profiles.items():
                rows.append(speedup_row(Path(name).name, profile, concurrency, states, width=width, seed=config.seed))
                progress.update(len(rows), f"{name}, {concurrency} clients")
            taken = time.process_time() - began
    for name, profile in profiles.items():
        if longest > profile.measured.context_lengths[1] or max(config.concurrency) > profile.measured.batch_sizes[1]:
            notes.append(
                f"Some speed-ups are extrapolated beyond the contexts or batch sizes that the profile {name} measured."
            )
        if profile.points and profile.speculative is None:
            notes.append(
                f"The profile {name} lacks the time of requests and prefills, so speed-ups may be smaller. "
                "Measure it with `agentspec profile --serving`."
            )
    order = [Path(name).name for name in profiles]
    return sorted(rows, key=lambda row: order.index(row["profile"]))


def _memory(indexed: Sequence[tuple[int, int]], num_tokens: int, num_outputs: int) -> dict[str, Any]:
    # An index of few tokens is not sealed yet and is larger. The engine's own figure is then more accurate.
    largest = max(indexed, key=lambda item: item[1], default=(0, 0))
    bytes_a_token = largest[0] / largest[1] if largest[1] else 18.0
    index_bytes = bytes_a_token * num_tokens
    budget = budget_mb(index_bytes)
    return {
        "bytes_per_token": round(bytes_a_token, 2),
        "index_bytes": int(index_bytes),
        "bytes_per_million_tokens": int(bytes_a_token * 1e6),
        "budget_mb": budget,
        "outputs_that_fit": int((budget << 20) / max(bytes_a_token * num_tokens / max(num_outputs, 1), 1.0)),
    }


def _draft_share(rows: Sequence[dict[str, Any]]) -> float | None:
    found = [row["draft_share"] for row in rows if row["width"] == WIDTH and row["tau"] == _DRAFT_SHARE_TAU]
    return float(found[0]) if found else None


def _mean_context(sampled: Sampled) -> float:
    lengths = [sum(map(len, call.prompt_parts)) + len(call.output) / 2 for call in sampled.measured]
    return float(np.mean(lengths)) if lengths else 0.0
