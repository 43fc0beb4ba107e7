"""The staged agents on one question.

1. Classify and extract run concurrently. Then notes are looked up, and enrich chooses among them.
2. Drafts are written concurrently, each with a different approach. They run, and their results are voted on.
3. Combine is asked if no result has more than half of the votes.
4. The statement runs. Check and repair alternate until the checker agrees or the rounds are used up.

With a budget for the schema, a schema above it is cut: classify and extract see what is relevant to the question, and
the later stages see what extract named.

If an answer cannot be used, the model is told what was wrong and asked again. After the last try the stage falls back
on a safe result: the tables and columns that ranking finds, the remaining drafts, or the most frequent result.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, TypeVar

from agentspec.errors import ConfigError
from agentspec.workflows.text_to_sql.agents.answers import UnusableAnswer, read_select
from agentspec.workflows.text_to_sql.agents.client import GREEDY, Sampling, SamplingModel
from agentspec.workflows.text_to_sql.agents.prompts import Message, Verdict
from agentspec.workflows.text_to_sql.agents.pruning import LEAST_TOKENS, focused_schema, relevant_schema
from agentspec.workflows.text_to_sql.agents.stages import (
    WAYS,
    Features,
    Understanding,
    asked_lines,
    candidate_lines,
    enrich_lines,
    messages_of,
    problem_lines,
    read_check,
    read_classification,
    read_enrichment,
    read_features,
    result_lines,
)
from agentspec.workflows.text_to_sql.agents.transcript import Transcript
from agentspec.workflows.text_to_sql.agents.voting import vote
from agentspec.workflows.text_to_sql.sql.execute import Execution, execute
from agentspec.workflows.text_to_sql.sql.schema import Schema
from agentspec.workflows.text_to_sql.sql.sources import Source

T = TypeVar("T")


class RunSql(Protocol):
    """Runs one statement on a database; see `agentspec.workflows.text_to_sql.sql.execute.execute`."""

    def __call__(self, path: Path, sql: str, *, timeout_s: float) -> Execution: ...


_QUOTED_BACK = 2_000


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkflowConfig:
    """Limits of the stages. Raises ConfigError if a limit is out of range.

    Args:
        drafts: Number of SQL drafts per question.
        temperature: Sampling temperature of the drafts if there are several. All other calls are greedy.
        max_retries: Number of times that the model is asked again after an answer that cannot be used.
        max_repairs: Maximum number of repair rounds per question.
        notes: Maximum number of notes looked up for the enricher.
        max_tokens: Maximum number of answer tokens per call.
        sql_timeout_s: Maximum number of seconds that a statement may run.
        seed: Seed of the drafts' sampling.
        context_tokens: Maximum number of estimated tokens of the schema in a prompt; None for the whole schema.
    """

    drafts: int = 3
    temperature: float = 0.7
    max_retries: int = 1
    max_repairs: int = 2
    notes: int = 12
    max_tokens: int = 1024
    sql_timeout_s: float = 5.0
    seed: int = 0
    context_tokens: int | None = None

    def __post_init__(self) -> None:
        for name, least in (("drafts", 1), ("max_tokens", 1), ("max_retries", 0), ("max_repairs", 0), ("notes", 0)):
            if getattr(self, name) < least:
                raise ConfigError(f"{name} must be at least {least}, got {getattr(self, name)}")
        if not 0 <= self.temperature <= 2 or not self.sql_timeout_s > 0:
            raise ConfigError(f"temperature must be in [0, 2] and sql_timeout_s above 0, got {self}")
        if self.context_tokens is not None and self.context_tokens < LEAST_TOKENS:
            raise ConfigError(
                f"context_tokens must be at least {LEAST_TOKENS}, or None for the whole schema; got {self.context_tokens}"
            )


@dataclass(frozen=True, slots=True)
class Solution:
    """The agents' result.

    `sql` is the last statement that ran, or the last one written if none ran, and `execution` is its execution.
    `fallbacks` names the stages that fell back, once for each time.
    """

    sql: str
    execution: Execution
    fallbacks: tuple[str, ...]


async def solve(
    model: SamplingModel,
    question: str,
    source: Source,
    config: WorkflowConfig,
    transcript: Transcript,
    run_sql: RunSql = execute,
    evidence: str = "",
) -> Solution:
    """Run the stages on a question and keep its calls in the transcript. Raises CallFailed if a call of the model
    failed.

    Args:
        question: The question, on one line.
        run_sql: Runs the statements: `execute`, or the method of a `Sandbox`. It is called in threads.
        evidence: What a person wrote to explain the question, on one line. Every stage sees it.
    """
    return await _Stages(model, question, source, config, transcript, run_sql, evidence).run()


@dataclass(slots=True)
class _Stages:
    model: SamplingModel
    question: str
    source: Source
    config: WorkflowConfig
    transcript: Transcript
    run_sql: RunSql
    evidence: str
    fallbacks: list[str] = field(default_factory=list)
    schema: Schema = field(init=False)
    """The schema that prompts show. What extract names replaces it."""

    def __post_init__(self) -> None:
        self.schema = relevant_schema(self.source, f"{self.question} {self.evidence}", self.config.context_tokens)

    async def run(self) -> Solution:
        understanding = await self._understand()
        pending = [self._draft(understanding, number) for number in range(self.config.drafts)]
        drafts = [_result(draft) for draft in await asyncio.gather(*pending, return_exceptions=True)]
        statements = [sql for sql in drafts if sql]
        executions = await asyncio.gather(*(self._execute(sql) for sql in statements))
        candidates = list(zip(statements, executions, strict=True))
        chosen = await self._choose(understanding, candidates)
        sql, execution = await self._check_and_repair(understanding, *chosen)
        return Solution(sql, execution, tuple(self.fallbacks))

    async def _understand(self) -> Understanding:
        schema, question = self.schema, self.question
        asked = asked_lines(question, self.evidence)
        classified, extracted = await asyncio.gather(
            self._ask(
                "classify", messages_of("classify", schema, *asked), read_classification, lambda: ("rows", "medium")
            ),
            self._ask(
                "extract",
                messages_of("extract", schema, *asked),
                lambda answer: read_features(answer, schema),
                self._likely_features,
            ),
            return_exceptions=True,
        )
        (kind, difficulty), features = _result(classified), _result(extracted)
        words = " ".join([question, *([self.evidence] if self.evidence else []), *features.columns, *features.values])
        notes = self.source.notes.best(words, self.config.notes)
        self.schema = focused_schema(self.source, words, features.tables, features.columns, self.config.context_tokens)
        restated, chosen = await self._ask(
            "enrich",
            messages_of("enrich", self.schema, *enrich_lines(asked, features, notes)),
            lambda answer: read_enrichment(answer, notes),
            lambda: (question, tuple(notes)),
        )
        return Understanding(question, kind, difficulty, features, restated, chosen, self.evidence)

    def _likely_features(self) -> Features:
        """The tables that the best notes speak of, or all tables that are shown if they speak of none."""
        notes = self.source.notes.best(f"{self.question} {self.evidence}", self.config.notes)
        places = [self.source.places[note] for note in notes if note in self.source.places]
        shown = self.schema
        tables = shown.known_tables(tuple(table for table, _ in places)) or tuple(table.name for table in shown.tables)
        return Features(tables, shown.known_columns(tuple(f"{table}.{column}" for table, column in places)))

    async def _draft(self, understanding: Understanding, number: int) -> str:
        lines = [*understanding.lines(), WAYS[number % len(WAYS)]]
        sampling = GREEDY
        if self.config.drafts > 1:
            # A hash, because servers limit the length of a group's name.
            group = hashlib.sha256(f"{self.source.name}\0{self.question}".encode()).hexdigest()[:32]
            sampling = Sampling(group=group)
            if self.config.temperature:
                sampling = Sampling(self.config.temperature, self.config.seed + number, group)
        messages = messages_of("draft", self.schema, *lines)
        return await self._ask("draft", messages, read_select, lambda: "", sampling)

    async def _choose(
        self, understanding: Understanding, candidates: Sequence[tuple[str, Execution]]
    ) -> tuple[str, Execution]:
        """The statement to continue with, and its execution."""
        if not candidates:
            return "", Execution(error="no draft was one SELECT statement")
        counted = vote([execution for _, execution in candidates])
        # If no draft ran, the first one is repaired.
        likely = candidates[counted.order[0]] if counted.order else candidates[0]
        if counted.is_decided or len(candidates) == 1:
            return likely
        shown = [candidates[place] for place in counted.order] or list(candidates)
        lines = [*understanding.lines(), *candidate_lines(shown)]
        sql = await self._ask("combine", messages_of("combine", self.schema, *lines), read_select, lambda: likely[0])
        execution = await self._execute(sql)
        return (sql, execution) if execution.ok or not likely[1].ok else likely

    async def _check_and_repair(
        self, understanding: Understanding, sql: str, execution: Execution
    ) -> tuple[str, Execution]:
        schema, lines = self.schema, understanding.lines()
        kept = (sql, execution)
        for _ in range(self.config.max_repairs):
            verdict = Verdict(False, execution.error)
            if execution.ok:
                told = [*lines, *result_lines(sql, execution)]
                verdict = await self._ask(
                    "check", messages_of("check", schema, *told), read_check, lambda: Verdict(True, "")
                )
            if verdict.ok:
                break
            told = [*lines, *problem_lines(sql, verdict.reason)]
            repaired = await self._ask("repair", messages_of("repair", schema, *told), read_select, lambda: "")
            if not repaired or repaired == sql:
                break
            sql, execution = repaired, await self._execute(repaired)
            # A repair that fails to run never replaces a statement that runs.
            if execution.ok or not kept[1].ok:
                kept = (sql, execution)
        return kept

    async def _ask(
        self,
        stage: str,
        messages: list[Message],
        read: Callable[[str], T],
        fallback: Callable[[], T],
        sampling: Sampling = GREEDY,
    ) -> T:
        for retries_left in range(self.config.max_retries, -1, -1):
            pending = self.model.complete(messages, self.config.max_tokens, sampling=sampling)
            answer = await self.transcript.ask(stage, messages, pending)
            try:
                return read(answer)
            except UnusableAnswer as fault:
                if retries_left:
                    # Some chat templates refuse an empty message.
                    said = answer[:_QUOTED_BACK].strip() or "(nothing)"
                    messages = [
                        *messages,
                        {"role": "assistant", "content": said},
                        {"role": "user", "content": f"{fault} Answer again."},
                    ]
        self.fallbacks.append(stage)
        return fallback()

    async def _execute(self, sql: str) -> Execution:
        return await asyncio.to_thread(self.run_sql, self.source.path, sql, timeout_s=self.config.sql_timeout_s)


def _result(found: T | BaseException) -> T:
    """The result of one of several concurrent calls, or its exception.

    It is read after all of them have ended, so that the transcript is complete.
    """
    if isinstance(found, BaseException):
        raise found
    return found
