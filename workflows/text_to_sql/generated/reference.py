"""A model that knows the answers: it answers every stage of the staged agents from the gold SQL of generated questions.

It reads the same messages as any model, so it can replace any `SamplingModel`. Its mistakes are drawn by seed, question
and call, so the same run gives the same answers in any order of the calls.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from agentspec.errors import ConfigError
from agentspec.workflows.text_to_sql.agents.client import GREEDY, Completion, OpenAIChat, Sampling
from agentspec.workflows.text_to_sql.agents.prompts import Message, check_answer
from agentspec.workflows.text_to_sql.agents.stages import INSTRUCTIONS, OPERATIONS, WAYS, Features
from agentspec.workflows.text_to_sql.generated.mistakes import damaged_json, wrong_query
from agentspec.workflows.text_to_sql.generated.queries import Membership
from agentspec.workflows.text_to_sql.generated.questions import Question
from agentspec.workflows.text_to_sql.sql.execute import execute
from agentspec.workflows.text_to_sql.sql.score import is_ordered, same_result

_TOKEN = re.compile(r"\w+|[^\w\s]")
_KINDS = {
    "list": "rows", "distinct": "rows", "join_filter": "rows", "join_pairs": "rows", "join_three": "rows",
    "count": "count", "aggregate": "aggregate", "group": "group", "having": "group", "join_group": "group",
    "top": "rank", "join_rank": "rank", "bridge": "membership", "membership": "membership", "average": "comparison",
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class ReferenceConfig:
    """Shares of calls with a mistake, in [0, 1]. Raises ConfigError if a share is out of range. `wrong_sql`: share of
    drafts that are wrong. Combinations and repairs have half this share. `damaged_json`: share of first JSON answers
    that cannot be read."""

    wrong_sql: float = 0.3
    damaged_json: float = 0.05
    seed: int = 0

    def __post_init__(self) -> None:
        if not (0 <= self.wrong_sql <= 1 and 0 <= self.damaged_json <= 1):
            raise ConfigError(f"wrong_sql and damaged_json must be in [0, 1], got {self}")


class ReferenceModel:
    """Answers questions that it got at construction, each on the database that its messages name.

    Tokens are counted as words and punctuation marks, because there is no tokenizer.
    """

    def __init__(
        self, questions: Sequence[Question], paths: Mapping[str, Path], config: ReferenceConfig | None = None
    ) -> None:
        self._questions = {(question.database, question.text): question for question in questions}
        self._paths = paths
        self._config = config or ReferenceConfig()

    async def complete(
        self, messages: Sequence[Message], max_tokens: int, *, sampling: Sampling = GREEDY
    ) -> Completion:
        """Answer the messages. An unknown question is a failure. Answers are never cut."""
        try:
            text = self.answer(messages)
        except KeyError as error:
            return Completion(error=f"the reference knows no answer: {error}")
        prompt = sum(len(_TOKEN.findall(message["content"])) for message in messages)
        return Completion(text, prompt, len(_TOKEN.findall(text)), "stop")

    def answer(self, messages: Sequence[Message]) -> str:
        """The text of the answer. Raises KeyError if the question or the stage is unknown."""
        system, user = messages[0]["content"], messages[1]["content"]
        database = _field(system, "database ")
        question = self._questions[database, _field(user, "question: ")]
        stage = next((name for name, text in INSTRUCTIONS.items() if user.startswith(text)), "")
        # A repeated question, or one about another statement, gives a new draw.
        rng = random.Random(f"{self._config.seed}/{database}/{user}/{len(messages)}")
        if stage in ("draft", "combine", "repair"):
            share = self._config.wrong_sql / (1 if stage == "draft" else 2)
            sql = wrong_query(question.query, rng) if rng.random() < share else ""
            return _worded(question, user, sql)
        text = self._json_answer(stage, question, user)
        first = len(messages) == 2
        return damaged_json(text, rng) if first and rng.random() < self._config.damaged_json else text

    def _json_answer(self, stage: str, question: Question, user: str) -> str:
        if stage == "classify":
            return json.dumps({"kind": _KINDS[question.intent], "difficulty": _difficulty(question)})
        if stage == "extract":
            return _features(question).text()
        if stage == "enrich":
            links = question.query.links()
            notes = [note for note in _fields(user, "note: ") if note.split(" ")[0] in links.columns]
            return json.dumps({"question": question.text, "notes": notes}, ensure_ascii=False)
        if stage == "check":
            sql = user.rpartition("\nsql: ")[2].partition("\ncolumns: ")[0]
            gold, got = (execute(self._paths[question.database], text) for text in (question.sql, sql))
            right = same_result(gold, got, ordered=is_ordered(question.sql))
            reason = "The rows answer the question." if right else "The rows do not answer the question."
            return check_answer(question.text, sql, "ok" if right else "repair", reason)
        raise KeyError(f"no stage starts with {user[:40]!r}")


class ForcedChat:
    """A server that is forced to write the reference's answers, so that its speed is measured on a given text.

    The server must understand `custom_params: {"agentspec": {"replay": {"text": ...}}}`.
    """

    def __init__(self, server: OpenAIChat, reference: ReferenceModel) -> None:
        self._server = server
        self._reference = reference

    async def complete(
        self, messages: Sequence[Message], max_tokens: int, *, sampling: Sampling = GREEDY
    ) -> Completion:
        """The server's answer, forced to be the reference's answer."""
        try:
            text = self._reference.answer(messages)
        except KeyError as error:
            return Completion(error=f"the reference knows no answer: {error}")
        forced = {"custom_params": {"agentspec": {"replay": {"text": text}}}}
        return await self._server.complete(messages, max_tokens, sampling=sampling, extra_body=forced)


def _field(text: str, start: str) -> str:
    """The rest of the first line that begins with `start`."""
    found = _fields(text, start)
    if not found:
        raise KeyError(f"no line starts with {start!r}")
    return found[0]


def _fields(text: str, start: str) -> list[str]:
    return [line.removeprefix(start) for line in text.splitlines() if line.startswith(start)]


def _difficulty(question: Question) -> str:
    query = question.query
    parts = len(query.joins) + len(query.where) + bool(query.group) + bool(query.having) + bool(query.order)
    return "easy" if parts < 2 else "medium" if parts < 4 else "hard"


def _features(question: Question) -> Features:
    query, links, sql = question.query, question.query.links(), question.sql
    needed = {
        "join": bool(query.joins),
        "filter": bool(query.where),
        "aggregate": bool(re.search(r"\b(?:COUNT|SUM|AVG|MIN|MAX)\(", sql)),
        "group": bool(query.group),
        "having": bool(query.having),
        "order": bool(query.order),
        "limit": bool(query.limit),
        "distinct": "DISTINCT" in sql,
        "nested": "(SELECT" in sql,
        "set": False,
    }
    values = re.findall(r"'([^']*)'|(?<![\w.])(\d+(?:\.\d+)?)", sql)
    return Features(
        tuple(dict.fromkeys(links.tables)),
        links.columns,
        tuple(dict.fromkeys(text or number for text, number in values)),
        tuple(name for name in OPERATIONS if needed[name]),
    )


def _worded(question: Question, user: str, wrong_sql: str) -> str:
    """The statement in the form that the user's message asks for."""
    sql, query = wrong_sql or question.sql, question.query
    if user.endswith(WAYS[1]):
        links = query.links()
        plan = [("tables", links.tables), ("joins", links.joins), ("conditions", links.filters)]
        return "\n".join([*(f"-- {name}: {', '.join(parts)}" for name, parts in plan if parts), sql])
    nested = "(SELECT" in sql or any(isinstance(condition, Membership) for condition in query.where)
    if user.endswith(WAYS[2]) and not nested and query.joins:
        for number, table in enumerate([query.table, *(table for table, _ in query.joins)], 1):
            sql = re.sub(rf"\b(FROM|JOIN) {table}\b", rf"\1 {table} AS T{number}", sql)
            sql = re.sub(rf"\b{table}\.", f"T{number}.", sql)
        return f"```sql\n{sql}\n```"
    return sql
