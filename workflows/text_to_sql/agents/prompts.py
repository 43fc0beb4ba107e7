"""Messages of the four agents and the readers of their answers.

linker   schema, question                                -> JSON: question, tables with their part of the schema,
                                                            columns, joins, filters, group, order
writer   links; the schema if they name no table         -> one SQL statement
checker  question, SQL, its result or its error          -> JSON: question, sql, verdict (ok | repair), reason
repairer schema, question, SQL, error or checker reason  -> one SQL statement
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Literal, TypedDict

from agentspec.workflows.text_to_sql.generated.databases import Database
from agentspec.workflows.text_to_sql.sql.execute import Cell, Execution

Stage = Literal["link", "write", "check", "repair"]
STAGES: tuple[Stage, ...] = ("link", "write", "check", "repair")
SHOWN_ROWS = 3
_SHOWN_CHARACTERS = 40


class Message(TypedDict):
    """One chat message."""

    role: str
    content: str


SYSTEM: dict[Stage, str] = {
    "link": "You link questions to a database schema. Answer in JSON with question, tables, columns, joins, filters, "
    "group and order.",
    "write": "You write SQLite queries. Answer with one SELECT statement.",
    "check": "You check SQLite queries. Answer in JSON with question, sql, verdict ok or repair, and reason.",
    "repair": "You repair SQLite queries. Answer with one SELECT statement.",
}


def _messages(stage: Stage, *parts: str) -> list[Message]:
    return [{"role": "system", "content": SYSTEM[stage]}, {"role": "user", "content": "\n".join(parts)}]


def link_messages(database: Database, question: str) -> list[Message]:
    return _messages("link", database.schema_text(), f"question: {question}")


def write_messages(database: Database, question: str, links: str) -> list[Message]:
    """Messages to the SQL writer. `links` is the linker's unchanged answer, valid JSON or not."""
    if linked_tables(database, links):
        return _messages("write", f"links: {links}")
    return _messages("write", database.schema_text(), f"question: {question}", f"links: {links}")


def check_messages(question: str, sql: str, execution: Execution) -> list[Message]:
    return _messages("check", f"question: {question}", f"sql: {sql}", shown(execution))


def repair_messages(database: Database, question: str, sql: str, problem: str) -> list[Message]:
    """Messages to the repairer. `problem` is the SQLite error or the checker's reason."""
    return _messages("repair", database.schema_text(), f"question: {question}", f"sql: {sql}", f"problem: {problem}")


def shown(execution: Execution) -> str:
    """The text of a result for the checker: columns, number of rows and the first rows, or the error."""
    if not execution.ok:
        return f"error: {execution.error}"
    lines = [f"columns: {', '.join(execution.columns)}", f"rows: {len(execution.rows)}"]
    lines += [" | ".join(_cell(cell) for cell in row) for row in execution.rows[:SHOWN_ROWS]]
    return "\n".join(lines)


def _cell(cell: Cell) -> str:
    text = f"{cell:.6g}" if isinstance(cell, float) else "NULL" if cell is None else str(cell)
    return text[:_SHOWN_CHARACTERS]


def check_answer(question: str, sql: str, verdict: Literal["ok", "repair"], reason: str) -> str:
    return json.dumps({"question": question, "sql": sql, "verdict": verdict, "reason": reason})


def linked_tables(database: Database, links: str) -> frozenset[str]:
    """The known tables that the linker names. Empty if its answer is unusable, which stands for all tables."""
    try:
        named = json.loads(links)["tables"]
        return frozenset(table.name for table in database.tables if table.name in named)
    except (ValueError, TypeError, KeyError):
        return frozenset()


@dataclass(frozen=True)
class Verdict:
    """The checker's answer as understood. Unreadable JSON counts as the verdict `repair`."""

    ok: bool
    reason: str


def read_verdict(answer: str) -> Verdict:
    """Read the checker's answer, with any text around the JSON."""
    try:
        parsed = json.loads(answer[answer.index("{") : answer.rindex("}") + 1])
        return Verdict(parsed["verdict"] == "ok", str(parsed.get("reason", "")))
    except (ValueError, TypeError, KeyError):
        return Verdict(False, "The check is not valid JSON.")


def read_sql(answer: str) -> str:
    """The SQL of an answer: the content of a code fence if there is one, and only its first statement."""
    fenced = re.search(r"```(?:sql)?\s*(.*?)```", answer, re.DOTALL)
    text = (fenced.group(1) if fenced else answer).strip()
    # A semicolon within quotes does not end the statement.
    statement = re.match(r"(?:[^;']|'[^']*'?)*;?", text)
    return statement.group(0).strip() if statement else text
