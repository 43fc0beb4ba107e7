"""Whether the report's speed-up holds on a real server: predicted from a plain server's log, then measured.

    plain server ──log──> report, under a profile of this machine ──> range
    plain and agentspec servers, asked other work of the same kind ──> ratio of tokens a second

The log, the profile and the measurement share nothing but the machine and the kind of work.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentspec.errors import ConfigError, ServerError
from agentspec.evals.bench_load import rows_of
from agentspec.evals.load_rows import find, ratio
from agentspec.evals.load_work import LOADED, WORKLOADS, plan_load
from agentspec.evals.phase_calls import SliceResult
from agentspec.evals.phases import Phase, Stream
from agentspec.evals.profile import ProfilePlan, measured_profile
from agentspec.evals.server import Server
from agentspec.evals.text_to_sql import MODEL_FOLDER
from agentspec.evals.tiny_sql.open_chat import OPEN_MAX_TOKENS
from agentspec.evals.turns import ask_in_turns, say, started
from agentspec.report import ReportConfig, find_tokenizer, report_facts
from agentspec.workflows.text_to_sql import (
    DATABASES,
    ChainConfig,
    ChatModel,
    Completion,
    Database,
    Message,
    OpenAIChat,
    answer_questions,
    create_all,
)

SYSTEMS = ("none", "agentspec")
# Work that is neither measured nor, but for chance, the same.
_LOG_SEED = 1_000_003
_WHOLE = 1 << 30
_CALL_SECONDS = 120.0
_LOG_CLIENTS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class VerdictPlan:
    """What is recorded and measured.

    Raises:
        ConfigError: A number is below 1, or a workload is unknown.
    """

    workloads: tuple[str, ...] = WORKLOADS
    concurrency: tuple[int, ...] = (1, 8)
    requests: int = 36
    """Measured of each number of clients, or more."""
    turns: int = 3
    logged: int = 150
    """Requests that the report reads."""
    seed: int = 0
    profile: Path | None = None
    """Of this machine and the small model; None: it is measured."""
    quick: bool = False
    """Measure a small profile."""

    def __post_init__(self) -> None:
        if min(self.requests, self.turns, self.logged, *self.concurrency) < 1:
            raise ConfigError(
                "requests, turns, logged requests and clients must be at least 1, got "
                f"{self.requests}, {self.turns}, {self.logged} and {self.concurrency}"
            )
        unknown = [name for name in self.workloads if name not in WORKLOADS]
        if unknown:
            raise ConfigError(f"workloads must be out of {', '.join(WORKLOADS)}, got {', '.join(unknown)}")

    def profile_plan(self) -> ProfilePlan:
        return ProfilePlan(
            model=MODEL_FOLDER,
            batch_sizes=[1, 4, 8] if self.quick else [1, 2, 4, 8, 16],
            context_lengths=[64, 256] if self.quick else [64, 256, 768],
            widths=[1, 4, 16] if self.quick else [1, 2, 4, 8, 16],
            seed=self.seed,
            serving=True,
        )


def verdict(plan: VerdictPlan, folder: Path) -> dict[str, Any]:
    """Rows of each workload and number of clients, and how the profile was made.

    Args:
        plan: What to do.
        folder: Takes the databases, the logs, the profile and the servers' logs.

    Raises:
        ConfigError: The profile does not fit.
        ServerError: A server fails where nothing can be said without it.
    """
    paths = create_all(DATABASES, folder)
    databases = {database: paths[database.name] for database in DATABASES}
    logs = _recorded(plan, databases, folder)
    profile = plan.profile
    if profile is None:
        say("profile")
        profile = folder / "profile.json"
        measured_profile(plan.profile_plan()).save(profile)
    rows: list[dict[str, Any]] = []
    for workload in plan.workloads:
        say(f"{workload}: report")
        config = ReportConfig(profiles=(str(profile),), concurrency=plan.concurrency, seed=plan.seed)
        facts = report_facts([logs[workload]], find_tokenizer(str(MODEL_FOLDER)), config)
        say(f"{workload}: servers")
        measured = _measured(plan, workload, databases, folder)
        rows += [verdict_row(workload, predicted, measured, facts) for predicted in facts["speedup"]]
    return {
        "contained": sum(bool(row["contained"]) for row in rows),
        "rows": rows,
        "profile": "given" if plan.profile else "measured",
    }


def verdict_row(
    workload: str, predicted: Mapping[str, Any], measured: Sequence[Mapping[str, Any]], facts: Mapping[str, Any]
) -> dict[str, Any]:
    """A range beside what was measured.

    Args:
        workload: open or agents.
        predicted: A row of the report's `speedup`.
        measured: Rows as `agentspec bench load` makes them.
        facts: Of the report.
    """
    clients = predicted["concurrency"]
    row: dict[str, Any] = {
        "workload": workload,
        "concurrency": clients,
        "predicted_low": predicted["low"],
        "predicted_high": predicted["high"],
        "predicted_accept_length": predicted["accept_length"],
        "logged_outputs": facts["inputs"]["num_outputs"],
        "verdict": facts["verdict"]["kind"],
    }
    systems = find(measured, workload, clients)
    if not set(SYSTEMS) <= set(systems):
        errors = [str(of["error"]) for of in measured if of.get("error")]
        return {**row, "measured": None, "contained": None, "error": "; ".join(dict.fromkeys(errors))}
    ours, plain = systems["agentspec"], systems["none"]
    speedup = ratio(ours, plain)
    return {
        **row,
        "measured": speedup,
        "measured_turns": [
            round(float(our) / float(their), 3)
            for our, their in zip(ours["tokens_per_second_turns"], plain["tokens_per_second_turns"], strict=True)
        ],
        "measured_accept_length": ours["accept_length"],
        "measured_requests": ours["requests"],
        "identical": ours["identical"],
        "contained": predicted["low"] <= speedup <= predicted["high"],
    }


def shown(row: Mapping[str, Any]) -> str:
    """A row as a line."""
    name = f"{row['workload']}, {row['concurrency']} at a time"
    told = f"{name:<22} predicted {row['predicted_low']:.2f} to {row['predicted_high']:.2f}"
    if row["measured"] is None:
        return f"{told}  not measured: {row['error']}"
    inside = "inside" if row["contained"] else "OUTSIDE"
    return (
        f"{told}  measured {row['measured']:.2f}: {inside}  "
        f"(accept length {row['predicted_accept_length']:.2f}, measured {row['measured_accept_length']:.2f})"
    )


class Recorder:
    """A chat model that notes what it was asked and answered, as services log it."""

    def __init__(self, model: ChatModel) -> None:
        self._model = model
        self.records: list[dict[str, Any]] = []

    async def complete(self, messages: Sequence[Message], max_tokens: int) -> Completion:
        completion = await self._model.complete(messages, max_tokens)
        if completion.error:
            raise ServerError(f"a call to be logged failed: {completion.error}")
        self.records.append({"messages": [dict(message) for message in messages], "completion": completion.text})
        return completion


def _recorded(plan: VerdictPlan, databases: dict[Database, Path], folder: Path) -> dict[str, Path]:
    """A log of each workload, written by a plain server."""
    logs = {workload: folder / f"{workload}.jsonl" for workload in plan.workloads}
    with Server(MODEL_FOLDER, "none", log=folder / "recorded.log") as server:
        for workload, path in logs.items():
            say(f"{workload}: log")
            phases = plan_load(workload, databases, (_LOG_CLIENTS,), plan.logged, 1, plan.seed + _LOG_SEED)
            # The agents' first phase only teaches.
            records = asyncio.run(_record(server, phases[-1].streams[0], databases))
            path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    return logs


async def _record(server: Server, stream: Stream, databases: dict[Database, Path]) -> list[dict[str, Any]]:
    from openai import AsyncOpenAI

    async with AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=_CALL_SECONDS) as client:
        recorder = Recorder(OpenAIChat(client, "tiny-sql"))
        if stream.questions:
            await answer_questions(recorder, stream.questions, databases, ChainConfig(concurrency=stream.concurrency))
        gate = asyncio.Semaphore(stream.concurrency)

        async def one(messages: Sequence[Message]) -> None:
            async with gate:
                await recorder.complete(messages, OPEN_MAX_TOKENS)

        await asyncio.gather(*(one(messages) for messages in stream.prompts))
        return recorder.records


def _measured(
    plan: VerdictPlan, workload: str, databases: Mapping[Database, Path], folder: Path
) -> list[dict[str, Any]]:
    phases: list[Phase] = plan_load(workload, databases, plan.concurrency, plan.requests, plan.turns, plan.seed)

    def slices(stack: ExitStack, name: str) -> Iterator[SliceResult]:
        return started(stack, name, LOADED[name], phases, databases, _WHOLE, folder / f"{name}-{workload}.log")

    done, errors = ask_in_turns(SYSTEMS, slices, lambda done: None)
    return rows_of(workload, SYSTEMS, plan.concurrency, plan.turns, done, errors)
