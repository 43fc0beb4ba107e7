"""Messages of the staged agents, and the readers of their answers.

classify  question                                   -> JSON: kind, difficulty
extract   question                                   -> JSON: tables, columns, values, operations (flags)
enrich    question, features, notes looked up        -> JSON: question in the schema's words, the relevant notes
draft     question, kind, features, notes, approach  -> SQL; several drafts, each with a different approach
combine   the same, candidates with their results    -> SQL; only if the drafts' results do not agree
check     question, notes, SQL, its result           -> JSON: question, sql, verdict (ok | repair), reason
repair    question, notes, SQL, its error or reason  -> SQL

Where a set of questions explains a question, its evidence follows the question in every stage.

Every message starts with the text that most calls share, so that a server's prefix cache holds it. The rules and the
schema come first, which are the same for all calls on a database. Then come the stage's instruction, the question, and
last the parts that differ between calls on one question. A schema above the budget is cut for each question (see
`pruning`): once for classify and extract, and once for the stages after them.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field

from agentspec.workflows.text_to_sql.agents.answers import UnusableAnswer, flag_of, read_object, texts_of
from agentspec.workflows.text_to_sql.agents.prompts import Message, Verdict, shown
from agentspec.workflows.text_to_sql.sql.execute import Execution
from agentspec.workflows.text_to_sql.sql.schema import Schema

STAGES = ("classify", "extract", "enrich", "draft", "combine", "check", "repair")
KINDS = ("rows", "count", "aggregate", "group", "rank", "membership", "comparison")
DIFFICULTIES = ("easy", "medium", "hard")
OPERATIONS = ("join", "filter", "aggregate", "group", "having", "order", "limit", "distinct", "nested", "set")
# Approaches to a draft, used in turn. A vote is worth more if the drafts differ in their approach.
WAYS = (
    "Write the statement at once.",
    "First note tables, joins and conditions as SQL comments, one a line; then write the statement.",
    "Give every table an alias, T1, T2 and so on, and qualify every column with it.",
)
RULES = (
    "You are one of several agents that answer questions about a SQLite database with SQL. "
    "Use only tables and columns of this schema."
)
INSTRUCTIONS = {
    "classify": "Classify the question. Answer with one JSON object and nothing else: "
    f'{{"kind": one of {", ".join(KINDS)}, "difficulty": one of {", ".join(DIFFICULTIES)}}}.',
    "extract": "Extract what an SQL query for the question needs. Answer with one JSON object and nothing else: "
    '{"tables": [names], "columns": ["table.column"], "values": [texts and numbers of the question], '
    f'"operations": {{{", ".join(f"{name}: true or false" for name in OPERATIONS)}}}}}.',
    "enrich": "Say the question again in the words of the schema, and copy the notes that matter for it. "
    'Answer with one JSON object and nothing else: {"question": text, "notes": [texts]}.',
    "draft": "Write one SELECT statement for SQLite that answers the question. Return just the columns that it asks "
    "for, in its order.",
    "combine": "Several SELECT statements were written for the question, and their results differ. Write the one that "
    "answers it; take over what is right in them.",
    "check": "Check whether the SQL answers the question. Answer with one JSON object and nothing else: "
    '{"question": text, "sql": text, "verdict": "ok" or "repair", "reason": text}.',
    "repair": "Repair the SQL so that it answers the question. Answer with one SELECT statement.",
}
_MOST_SHOWN = 4_000


@dataclass(frozen=True, slots=True)
class Features:
    """The parts of the schema and the `operations` that a question needs."""

    tables: tuple[str, ...]
    columns: tuple[str, ...] = ()
    values: tuple[str, ...] = ()
    operations: tuple[str, ...] = ()

    def text(self) -> str:
        """The features as JSON, in the form that the model is asked for."""
        flags = {name: name in self.operations for name in OPERATIONS}
        return json.dumps({**asdict(self), "operations": flags}, ensure_ascii=False)


@dataclass(frozen=True, slots=True)
class Understanding:
    """The results of the first three stages on a question."""

    question: str
    kind: str
    difficulty: str
    features: Features
    restated: str
    notes: tuple[str, ...] = field(default=())
    evidence: str = ""

    def lines(self) -> list[str]:
        """The lines of the later stages' messages."""
        lines = asked_lines(self.question, self.evidence)
        lines += [f"in the schema's words: {self.restated}"] if self.restated != self.question else []
        lines += [f"kind: {self.kind}, {self.difficulty}", f"features: {self.features.text()}"]
        return [*lines, *(f"note: {note}" for note in self.notes)]


def messages_of(stage: str, schema: Schema, *lines: str) -> list[Message]:
    return [
        {"role": "system", "content": f"{RULES}\n{schema.text()}"},
        {"role": "user", "content": "\n".join([INSTRUCTIONS[stage], *lines])},
    ]


def asked_lines(question: str, evidence: str) -> list[str]:
    """The question, and the evidence where there is some. Every stage's message has these lines."""
    return [f"question: {question}", *([f"evidence: {evidence}"] if evidence else [])]


def enrich_lines(asked: Sequence[str], features: Features, notes: Sequence[str]) -> list[str]:
    """The lines of the enricher's message. `asked` are the lines of `asked_lines`."""
    return [*asked, f"features: {features.text()}", *(f"note: {note}" for note in notes)]


def candidate_lines(candidates: Sequence[tuple[str, Execution]]) -> list[str]:
    """The lines about the drafts in the combiner's message."""
    lines = []
    for number, (sql, execution) in enumerate(candidates, 1):
        lines += [f"candidate {number}: {_cut(sql)}", shown(execution)]
    return lines


def result_lines(sql: str, execution: Execution) -> list[str]:
    """The lines about a statement in the checker's message."""
    return [f"sql: {_cut(sql)}", shown(execution)]


def problem_lines(sql: str, problem: str) -> list[str]:
    """The lines about a statement in the repairer's message."""
    return [f"sql: {_cut(sql) or '(none)'}", f"problem: {problem}"]


def _cut(text: str) -> str:
    return text if len(text) <= _MOST_SHOWN else text[:_MOST_SHOWN] + " ..."


def read_classification(answer: str) -> tuple[str, str]:
    """The kind and the difficulty. Raises UnusableAnswer if either is not an allowed value."""
    found = read_object(answer)
    kind, difficulty = (str(found.get(name, "")).strip().lower() for name in ("kind", "difficulty"))
    if kind not in KINDS or difficulty not in DIFFICULTIES:
        raise UnusableAnswer(f"kind must be one of {', '.join(KINDS)}, difficulty one of {', '.join(DIFFICULTIES)}.")
    return kind, difficulty


def read_features(answer: str, schema: Schema) -> Features:
    """The features, with only tables and columns of the schema. Raises UnusableAnswer if no table is left."""
    found = read_object(answer)
    columns = schema.known_columns(texts_of(found.get("columns")))
    tables = schema.known_tables((*texts_of(found.get("tables")), *columns))
    if not tables:
        names = ", ".join(table.name for table in schema.tables)
        raise UnusableAnswer(f"tables must name at least one table of the schema: {names}.")
    flags = found.get("operations")
    if isinstance(flags, dict):
        operations = tuple(name for name in OPERATIONS if flag_of(flags.get(name)))
    else:
        named = {text.lower() for text in texts_of(flags)}
        operations = tuple(name for name in OPERATIONS if name in named)
    return Features(tables, columns, texts_of(found.get("values")), operations)


def read_enrichment(answer: str, notes: Sequence[str]) -> tuple[str, tuple[str, ...]]:
    """The restated question and the chosen notes that are in `notes`. Raises UnusableAnswer without a question."""
    found = read_object(answer)
    restated = " ".join(" ".join(texts_of(found.get("question"))).split())
    if not restated:
        raise UnusableAnswer("question must be a text.")
    chosen = {" ".join(note.split()).removeprefix("note: ") for note in texts_of(found.get("notes"))}
    return restated, tuple(note for note in notes if " ".join(note.split()) in chosen)


def read_check(answer: str) -> Verdict:
    """The checker's verdict. Raises UnusableAnswer if it is neither ok nor repair."""
    found = read_object(answer)
    verdict = str(found.get("verdict", "")).strip().lower()
    if verdict not in ("ok", "repair"):
        raise UnusableAnswer("verdict must be ok or repair.")
    return Verdict(verdict == "ok", " ".join(str(found.get("reason", "")).split()) or "The result does not fit.")
