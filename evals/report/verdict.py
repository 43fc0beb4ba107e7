"""Whether the report's speed-up holds on a real server: predicted from a plain server's log, then measured.

    plain server ──log──> report, under a profile of this machine ──> range: from nothing learnt to the log learnt
    plain and agentspec servers, asked other work of the same kind, in both states ──> ratios of tokens a second

The log, the profile and the measurement share only the machine and the kind of work.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from agentspec.analysis.report import ReportConfig, find_tokenizer, report_facts
from agentspec.analysis.report.verdict import best_width
from agentspec.cli.profile import ProfilePlan, measured_profile
from agentspec.errors import ConfigError
from agentspec.evals.options import check_names
from agentspec.evals.run.phases import Phase, SliceResult, Stream
from agentspec.evals.run.turns import ask_in_turns, started
from agentspec.evals.served.hybrid_rows import accept_length
from agentspec.evals.served.load_rows import speeds
from agentspec.evals.sql_databases import databases_in
from agentspec.evals.text_to_sql import MODEL_FOLDER
from agentspec.evals.workloads.load import LOADED, WORKLOADS
from agentspec.evals.workloads.verdict import STATES, State, logged_work, measured_work, phases_of, row_name, write_log
from agentspec.integrations.servers.server import Server
from agentspec.progress import say
from agentspec.workflows.text_to_sql import Database

PLAIN, OURS = "none", "agentspec"
_WHOLE = 1 << 30
_NOT_SERVED = ("--speculative-algorithm", "--speculative-draft-model-path", "--agentspec-base")


@dataclass(frozen=True, slots=True, kw_only=True)
class VerdictPlan:
    """What is recorded and measured.

    Raises:
        ConfigError: A number is below 1, or a workload is unknown.
    """

    workloads: tuple[str, ...] = WORKLOADS
    concurrency: tuple[int, ...] = (1, 8)
    logged: int = 100
    """Requests that the report reads. The same number is measured on a server that begins with nothing."""
    warm: int = 48
    """Requests measured on a server that has learnt the log."""
    turns: int = 3
    """Turns of each row, both servers in turn, because the machine's pace changes within a minute."""
    seed: int = 0
    profile: Path | None = None
    """Of this machine and the small model; None: it is measured."""
    quick: bool = False
    """Measure a small profile."""

    def __post_init__(self) -> None:
        if min(self.warm, self.turns, self.logged, *self.concurrency) < 1:
            raise ConfigError(
                "warm and logged requests, turns and clients must be at least 1, got "
                f"{self.warm}, {self.logged}, {self.turns} and {self.concurrency}"
            )
        check_names("workloads", self.workloads, WORKLOADS)

    def profile_plan(self) -> ProfilePlan:
        return ProfilePlan(
            model=MODEL_FOLDER,
            batch_sizes=[1, 4, 8] if self.quick else [1, 2, 4, 8],
            context_lengths=[64, 256] if self.quick else [64, 128, 256],
            widths=[1, 2, 4, 8, 16],
            sweep=True,
            seed=self.seed,
            serving=True,
        )


def verdict(plan: VerdictPlan, folder: Path, on_row: Callable[[Mapping[str, Any]], object]) -> dict[str, Any]:
    """Rows of each workload, number of clients and state, and how the profile was made.

    Args:
        plan: What to do.
        folder: Gets the databases, the logs, the profile and the servers' logs.
        on_row: Called with each row at once.

    Raises:
        ConfigError: The profile does not fit.
        ServerError: A server fails without which there is no verdict.
    """
    databases = databases_in(folder)
    work = {name: logged_work(name, databases, plan.logged, plan.seed) for name in plan.workloads}
    with Server(MODEL_FOLDER, PLAIN, log=folder / "recorded.log") as server:
        for workload, stream in work.items():
            say(f"{workload}: log")
            write_log(server, stream, databases, folder / f"{workload}.jsonl")
    profile = plan.profile
    if profile is None:
        say("profile")
        profile = folder / "profile.json"
        measured_profile(plan.profile_plan()).save(profile)
    rows: list[dict[str, Any]] = []
    for workload, stream in work.items():
        say(f"{workload}: report")
        config = ReportConfig(profiles=(str(profile),), concurrency=plan.concurrency, seed=plan.seed)
        facts = report_facts([folder / f"{workload}.jsonl"], find_tokenizer(str(MODEL_FOLDER)), config)
        say(f"{workload}: servers")
        # The default width on a CPU may differ from the one that the report simulates.
        width = ["--speculative-num-draft-tokens", str(best_width(facts["replay"]))]
        flags = [*width, *served_flags(facts["verdict"]["flags"])]
        measured, errors = _measured(plan, workload, stream, flags, databases, folder)
        for predicted in facts["speedup"]:
            for state in STATES:
                row = {**verdict_row(workload, predicted, state, measured, errors), "flags": flags}
                on_row(row)
                rows.append(row)
    return {
        "contained": sum(bool(row["contained"]) for row in rows),
        "contained_by_state": sum(bool(row["contained_by_state"]) for row in rows),
        "rows": rows,
        "profile": "given" if plan.profile else "measured",
    }


def verdict_row(
    workload: str,
    predicted: Mapping[str, Any],
    state: State,
    measured: Mapping[str, Mapping[str, Sequence[SliceResult]]],
    errors: Sequence[str] = (),
) -> dict[str, Any]:
    """A predicted range beside the measurement of a server in one state.

    Args:
        workload: "open" or "agents".
        predicted: A row of the report's `speedup`.
        state: Of agentspec's server.
        measured: Turns by row and system.
        errors: Of servers that failed.
    """
    clients, of_state = predicted["concurrency"], predicted[state]
    row: dict[str, Any] = {
        "workload": workload,
        "concurrency": clients,
        "state": state,
        "predicted_low": predicted["low"],
        "predicted_high": predicted["high"],
        "predicted_of_state": [of_state["low"], of_state["high"]],
        "predicted_accept_length": of_state["accept_length"],
        "learnt": of_state["outputs"],
    }
    systems = measured.get(row_name(state, clients), {})
    ours, plain = systems.get(OURS, ()), systems.get(PLAIN, ())
    if not ours or len(ours) != len(plain):
        return {**row, "measured": None, "contained": None, "contained_by_state": None, "error": "; ".join(errors)}
    of_turns = [our / their for our, their in zip(speeds(ours), speeds(plain), strict=True)]
    # The median, so that a turn in which the machine was busy does not count more than any other.
    speedup = median(of_turns)
    return {
        **row,
        "measured": round(speedup, 3),
        "measured_turns": [round(ratio, 3) for ratio in of_turns],
        "measured_accept_length": round(accept_length([call for turn in ours for call in turn.calls]), 3),
        "measured_requests": sum(len(turn.calls) for turn in ours),
        "plain_tokens_per_second": round(_speed(plain), 1),
        "identical": all(our.outputs == their.outputs for our, their in zip(ours, plain, strict=True)),
        "contained": predicted["low"] <= speedup <= predicted["high"],
        "contained_by_state": of_state["low"] <= speedup <= of_state["high"],
    }


def served_flags(flags: Sequence[str]) -> list[str]:
    """A verdict's flags without those of the algorithm and a draft model, because suffix drafts are measured."""
    values = iter(flags)
    return [word for name in values for word in (name, next(values)) if name not in _NOT_SERVED]


def shown(row: Mapping[str, Any]) -> str:
    """A row as a line."""
    name = f"{row['workload']}, {row['concurrency']} at a time, {row['state']}"
    low, high = row["predicted_of_state"]
    told = f"{name:<28} {row['predicted_low']:.2f} to {row['predicted_high']:.2f}"
    if row["measured"] is None:
        return f"{told}  not measured: {row['error']}"
    return (
        f"{told}  measured {row['measured']:.2f}: {_inside(row['contained'])}; of the state {low:.2f} to {high:.2f}: "
        f"{_inside(row['contained_by_state'])}  "
        f"(accept length {row['predicted_accept_length']:.2f}, measured {row['measured_accept_length']:.2f})"
    )


def _inside(contained: bool) -> str:
    return "inside" if contained else "OUTSIDE"


def _speed(turns: Sequence[SliceResult]) -> float:
    """Tokens a second over all turns, each from its first request to its last answer."""
    tokens = sum(call.tokens for turn in turns for call in turn.calls)
    return tokens / sum(max(call.ended for call in turn.calls) for turn in turns)


def _measured(
    plan: VerdictPlan,
    workload: str,
    log: Stream,
    flags: Sequence[str],
    databases: Mapping[Database, Path],
    folder: Path,
) -> tuple[dict[str, dict[str, list[SliceResult]]], list[str]]:
    """Turns by row and system, and the errors."""
    requests: dict[State, int] = {"cold": plan.logged, "warm": plan.warm}
    work = measured_work(workload, databases, plan.concurrency, requests, plan.turns, plan.seed)
    phases: dict[str, list[Phase]] = {PLAIN: phases_of(work, None), OURS: phases_of(work, log)}

    systems = {PLAIN: LOADED[PLAIN], OURS: replace(LOADED[OURS], arguments=tuple(flags))}

    def slices(stack: ExitStack, name: str) -> Iterator[SliceResult]:
        log_file = folder / f"{name}-{workload}.log"
        return started(stack, name, systems[name], phases[name], databases, _WHOLE, log_file)

    done, errors = ask_in_turns((PLAIN, OURS), slices, lambda done: None)
    found: dict[str, dict[str, list[SliceResult]]] = defaultdict(lambda: defaultdict(list))
    for system, turns in done.items():
        for turn in turns:
            found[turn.row][system].append(turn)
    return found, list(dict.fromkeys(errors.values()))
