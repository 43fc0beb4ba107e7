"""Warm start by replay: what a replica that learned everything from the store accepts, beside the one that wrote it.

    learn half the sessions ─> warm ──────────────────────┐
                                └─ store ─> restarted/joined ├─> the other half, from which none learns
                                            cold ─────────┘

Half of what is learned is in the store's snapshot, the rest only in its log.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from agentspec.analysis.replay import Call, Draft, Measurement, Tokenizer, Trace, replay
from agentspec.analysis.replay.engine_system import as_draft
from agentspec.config import EngineConfig
from agentspec.drafts import DraftRow
from agentspec.engine import Engine
from agentspec.errors import StoreError
from agentspec.evals.micro.store.replica import NAMESPACE, Replica, empty_store
from agentspec.evals.micro.store.rows import Row
from agentspec.evals.sql_databases import render, temporary_databases
from agentspec.progress import Progress
from agentspec.workflows.text_to_sql import draw_questions
from agentspec.workflows.text_to_sql.agents.prompts import link_messages, links_answer, write_messages

MAX_DRAFT_TOKENS = 16
_SAMPLES = 1000


@dataclass(frozen=True, slots=True, eq=False)
class SplitTrace:
    """A trace's sessions, in two halves."""

    name: str
    learned: Sequence[Call]
    held_out: Sequence[Call]


def split_trace(trace: Trace) -> SplitTrace:
    """The first half of a trace's calls, up to the end of a session, and the rest."""
    middle = len(trace.calls) // 2
    while 0 < middle < len(trace.calls) and trace.calls[middle].session == trace.calls[middle - 1].session:
        middle += 1
    return SplitTrace(trace.name, trace.calls[:middle], trace.calls[middle:])


def sample_trace(tokenizer: Tokenizer) -> Trace:
    """Correct answers to held-out questions of the shipped text-to-SQL workflow, for use without recorded calls."""
    end = np.array([tokenizer.end_of_turn], np.int32)
    calls: list[Call] = []
    with temporary_databases() as databases:
        for question in islice(draw_questions(databases, split="heldout", seed=0), _SAMPLES // 2):
            database = next(one for one in databases if one.name == question.database)
            links = links_answer(database, question.text, question.query.links())
            for stage, messages, answer in (
                ("link", link_messages(database, question.text), links),
                ("write", write_messages(database, question.text, links), question.sql),
            ):
                prompt, output = tokenizer.encode(render(messages)), tokenizer.encode(answer)
                calls.append(Call(str(len(calls)), stage, "", (prompt,), np.concatenate([output, end])))
    return Trace("text-to-sql samples", calls, len(calls), [])


def warm_start_rows(kind: str, traces: Sequence[SplitTrace], folder: Path) -> Iterator[Row]:
    """The row of a store of one kind: the ratio of accepted tokens a step, loaded over warm."""
    num_learned = sum(len(trace.learned) for trace in traces)
    num_calls = num_learned + 3 * sum(len(trace.held_out) for trace in traces)
    with ExitStack() as stack, Progress(f"warm start, {kind}", num_calls) as progress:
        url = stack.enter_context(empty_store(kind, folder))
        first = stack.enter_context(ExitStack())
        warm = first.enter_context(Replica(url, _engine()))
        _learn(warm, traces, progress.update)
        if kind == "sqlite":
            # The server ends; only its engine stays, for the comparison.
            first.close()
        loaded = stack.enter_context(Replica(url, _engine()))
        health = loaded.sharing.health()
        if health["loaded_outputs"] != warm.num_finished or loaded.engine.stats().outputs != warm.num_finished:
            raise StoreError(
                f"a new replica must load all {warm.num_finished} outputs from {kind}, "
                f"got {health['loaded_outputs']}: {health['last_error']}"
            )
        names = {"warm": warm.engine, "restarted" if kind == "sqlite" else "joined": loaded.engine, "cold": _engine()}
        figures: dict[str, list[tuple[int, int]]] = {}
        for i, (name, engine) in enumerate(names.items()):
            done = num_learned + i * (num_calls - num_learned) // 3
            figures[name] = _measure(engine, traces, lambda calls, done=done: progress.update(done + calls))  # type: ignore[misc]
    reference, measured = (_ratio(figures[name]) for name in list(names)[:2])
    yield Row(
        case=f"warm_start_{kind}",
        value=measured / reference,
        unit="ratio of accepted tokens a step",
        more={
            "accepted_per_step": {name: round(_ratio(figure), 4) for name, figure in figures.items()},
            "learned_calls": num_learned,
            "loaded_outputs": health["loaded_outputs"],
        },
    )


def _engine() -> Engine:
    # Without background work, so that all three see the same texts at the same step.
    return Engine(EngineConfig(max_draft_tokens=MAX_DRAFT_TOKENS))


class _ReplicaSystem:
    """An engine as a replayed system, which publishes what it learns."""

    def __init__(self, engine: Engine, replica: Replica | None) -> None:
        self._engine = engine
        self._replica = replica
        self._id = ""
        self._prompt = self._output = np.empty(0, np.int32)
        self._num_opened = 0

    def open(self, prompt: NDArray[np.int32]) -> None:
        self._num_opened += 1
        self._id = f"call-{self._num_opened}"
        self._prompt, self._output = prompt, np.empty(0, np.int32)
        self._engine.open(self._id, prompt, NAMESPACE)

    def extend(self, tokens: NDArray[np.int32]) -> None:
        self._output = np.concatenate([self._output, tokens])
        self._engine.extend(self._id, tokens)

    def draft(self, max_tokens: int) -> DraftRow:
        return self._engine.draft([self._id], max_tokens=max_tokens).row(0)

    def tree(self, drafted: DraftRow) -> Draft:
        return as_draft(drafted)

    def close(self) -> None:
        if self._replica is None:
            self._engine.close(self._id, keep=False)
        else:
            self._replica.finish(self._id, self._prompt, self._output)

    def remember(self, call: Call) -> None:
        self.open(call.prompt)
        self.extend(call.output)
        self.close()


def _learn(replica: Replica, traces: Sequence[SplitTrace], progress: Callable[[int], None]) -> None:
    """The replica serves the learned halves. It drafts while it does so, because its estimates learn from that too."""
    calls = [call for trace in traces for call in trace.learned]
    system = _ReplicaSystem(replica.engine, replica)
    middle = len(calls) // 2
    replay(calls[:middle], system, MAX_DRAFT_TOKENS, on_call=lambda sums: progress(sums.calls))
    replica.flush()
    replica.sharing.keep_now()
    replay(calls[middle:], system, MAX_DRAFT_TOKENS, on_call=lambda sums: progress(middle + sums.calls))
    replica.flush()


def _ratio(sums: Sequence[tuple[int, int]]) -> float:
    """Accepted tokens a step."""
    return sum(accepted for accepted, _ in sums) / max(sum(steps for _, steps in sums), 1)


def _measure(engine: Engine, traces: Sequence[SplitTrace], progress: Callable[[int], None]) -> list[tuple[int, int]]:
    """Accepted tokens and steps of each trace."""
    system = _ReplicaSystem(engine, None)
    found = []
    done = 0
    for trace in traces:

        def show(sums: Measurement, done: int = done) -> None:
            progress(done + sums.calls)

        sums = replay(trace.held_out, system, MAX_DRAFT_TOKENS, on_call=show)
        found.append((sums.accepted, sums.steps))
        done += len(trace.held_out)
    return found
