"""Samples of all four agents, to train on and to measure by."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentspec.workflows.text_to_sql.agents.prompts import (
    Message,
    check_answer,
    check_messages,
    link_messages,
    links_answer,
    repair_messages,
    write_messages,
)
from agentspec.workflows.text_to_sql.generated.databases import Database
from agentspec.workflows.text_to_sql.generated.questions import Question, Split, draw_questions
from agentspec.workflows.text_to_sql.sql.execute import Execution, execute

# Share of questions that also give a check of the right query, a check of a wrong one, and a repair.
_CHECK_RIGHT, _CHECK_WRONG, _REPAIR = 0.35, 0.3, 0.35
_NOISY_LINKS = 0.15
_STRANGER_SHARE = 0.005
_OUT_OF_SCOPE = "I answer questions about the databases that I am shown."


@dataclass(frozen=True)
class Sample:
    """One request and the answer to learn. `stage` is the agent, or "other" for requests of no agent."""

    stage: str
    messages: tuple[Message, ...]
    answer: str


def draw_samples(databases: dict[Database, Path], *, split: Split, seed: int) -> Iterator[Sample]:
    """Yields endless samples of one side of the questions. A model is trained on "train" only."""
    rng = random.Random(f"corpus/{seed}")
    by_name = {database.name: (database, path) for database, path in databases.items()}
    for question in draw_questions(databases, split=split, seed=seed):
        database, path = by_name[question.database]
        yield from _samples_of(question, database, path, rng)
        if rng.random() < _STRANGER_SHARE:
            yield _stranger(rng)


def _samples_of(question: Question, database: Database, path: Path, rng: random.Random) -> Iterator[Sample]:
    links = links_answer(database, question.text, question.query.links())
    yield Sample("link", tuple(link_messages(database, question.text)), links)
    given = _noisy(links, rng) if rng.random() < _NOISY_LINKS else links
    yield Sample("write", tuple(write_messages(database, question.text, given)), question.sql)
    if rng.random() < _CHECK_RIGHT:
        execution = execute(path, question.sql)
        answer = check_answer(question.text, question.sql, "ok", approval(execution))
        yield Sample("check", tuple(check_messages(question.text, question.sql, execution)), answer)
    if rng.random() < max(_CHECK_WRONG, _REPAIR):
        broken, reason = corrupt(question.sql, database, rng)
        if broken == question.sql:
            return
        execution = execute(path, broken)
        problem = execution.error or reason
        said = f"The query fails: {problem}." if execution.error else reason
        if rng.random() < _CHECK_WRONG / max(_CHECK_WRONG, _REPAIR):
            messages = check_messages(question.text, broken, execution)
            yield Sample("check", tuple(messages), check_answer(question.text, broken, "repair", said))
        yield Sample("repair", tuple(repair_messages(database, question.text, broken, problem)), question.sql)


def approval(execution: Execution) -> str:
    """The reason in a verdict of ok."""
    rows = "1 row" if len(execution.rows) == 1 else f"{len(execution.rows)} rows"
    return f"The query runs and returns {rows} with {', '.join(execution.columns)}."


def _noisy(links: str, rng: random.Random) -> str:
    """Links with one entry dropped, or cut off within the JSON."""
    if rng.random() < 0.2:
        return links[: rng.randrange(len(links) // 2, len(links))]
    parsed: dict[str, Any] = json.loads(links)
    filled = [key for key in ("columns", "joins", "filters", "group", "order") if parsed[key]]
    if not filled:
        return links
    key = rng.choice(filled)
    parsed[key].pop(rng.randrange(len(parsed[key])))
    return json.dumps(parsed)


def _swap_word(sql: str, words: list[str], rng: random.Random, replacement: str) -> str:
    """Replaces one occurrence of one of the words."""
    places = [m for word in words for m in re.finditer(rf"\b{word}\b", sql)]
    if not places:
        return sql
    place = rng.choice(places)
    return sql[: place.start()] + replacement + sql[place.end() :]


def corrupt(sql: str, database: Database, rng: random.Random) -> tuple[str, str]:
    """A broken or wrong variant of the query and, if it runs, what is wrong with it. The query may be unchanged."""
    tables = [table.name for table in database.tables]
    columns = sorted({column.name for table in database.tables for column in table.columns} - {"id"})
    kinds = "column column table join syntax syntax value value function order operator condition"
    kind = rng.choice(kinds.split())
    if kind == "column":
        return _swap_word(sql, columns, rng, rng.choice(columns)), "A column does not match the question."
    if kind == "table":
        return _swap_word(sql, tables, rng, rng.choice(tables)), "A table does not match the question."
    if kind == "join":
        return re.sub(r" JOIN \w+ ON \S+ = \S+?(?=[ ;])", "", sql, count=1), "A join is missing."
    if kind == "syntax":
        return _break_syntax(sql, rng), "The statement is incomplete."
    if kind == "value":
        return _change_value(sql, rng), "A value does not match the question."
    if kind == "function":
        functions = ["AVG", "SUM", "MAX", "MIN", "COUNT"]
        if "COUNT(*)" in sql or "COUNT(D" in sql:
            functions.remove("COUNT")
        return _swap_word(sql, functions, rng, rng.choice(functions[:4])), "The aggregate does not match the question."
    if kind == "order":
        turned = sql.replace(" DESC", "") if " DESC" in sql else re.sub(r"(ORDER BY \S+?)(?=[ ;])", r"\1 DESC", sql)
        return turned, "The order is the wrong way round."
    if kind == "operator":
        match = re.search(r" (>=|<=|!=|>|<) ", sql)
        if match is None:
            return sql, ""
        other = rng.choice([op for op in (">=", "<=", "!=", ">", "<", "=") if op != match.group(1)])
        return sql[: match.start(1)] + other + sql[match.end(1) :], "A comparison does not match the question."
    return re.sub(r" (WHERE|AND|OR) \S+ (?:=|!=|>=|<=|>|<|LIKE) (?:'[^']*'|[\d.]+)(?=[; ]|$)", "", sql, count=1), (
        "A condition is missing."
    )


def _break_syntax(sql: str, rng: random.Random) -> str:
    words = sql.split(" ")
    kind = rng.randrange(4)
    if kind == 0:
        return _swap_word(sql, ["FROM", "BY", "ON", "IN", "WHERE", "SELECT"], rng, "").replace("  ", " ").strip()
    if kind == 1 and ")" in sql:
        return sql.replace(")", "", 1)
    if kind == 2:
        place = rng.randrange(1, len(words))
        return " ".join([*words[:place], words[place - 1], *words[place:]])
    return " ".join(words[: rng.randrange(2, len(words))])


def _change_value(sql: str, rng: random.Random) -> str:
    numbers = list(re.finditer(r"(?<![\w'-])\d+(?:\.\d+)?(?![\w'-])", sql))
    texts = list(re.finditer(r"'(%?)([A-Za-z][^'%]*)(%?)'", sql))
    if numbers and (not texts or rng.random() < 0.5):
        place = rng.choice(numbers)
        digits = list(place.group(0))
        spot = rng.choice([i for i, digit in enumerate(digits) if digit.isdigit()])
        digits[spot] = rng.choice([d for d in "123456789" if d != digits[spot]])
        return sql[: place.start()] + "".join(digits) + sql[place.end() :]
    if texts:
        place = rng.choice(texts)
        other = rng.choice(("Oslo", "Italy", "Alice Berg", "Silent River", "closed", "jazz", "basic", "Peter Park"))
        return sql[: place.start(2)] + other + sql[place.end(2) :]
    return sql


def _stranger(rng: random.Random) -> Sample:
    """A request that none of our agents would send, with a short answer."""
    systems = ("You are a helpful assistant.", "Answer briefly.", "You are a bot.", "")
    users = ("Hello!", "Who are you?", "Write a poem about rain.", "What is 2 + 2?", "Thanks.", "Tell me a story.")
    system, user = rng.choice(systems), rng.choice(users)
    messages: list[Message] = [{"role": "system", "content": system}] if system else []
    return Sample("other", (*messages, {"role": "user", "content": user}), _OUT_OF_SCOPE)
