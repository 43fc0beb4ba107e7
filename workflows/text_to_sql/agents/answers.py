"""Tolerant readers of model answers, which accept code fences, surrounding words and small mistakes."""

from __future__ import annotations

import ast
import json
import re
from typing import Any

from agentspec.workflows.text_to_sql.sql.safety import refusal

_THOUGHT = re.compile(r"<think(?:ing)?>.*?(?:</think(?:ing)?>|\Z)", re.DOTALL | re.IGNORECASE)
_FENCE = re.compile(r"```[ \t]*\w*[ \t]*\n?(.*?)(?:```|\Z)", re.DOTALL)
_STATEMENT = re.compile(r"^[ \t(]*(?:--[^\n]*\n\s*)*(?:SELECT|WITH)\b", re.IGNORECASE | re.MULTILINE)
_END = re.compile(r"(?:[^;'\"]|'[^']*'?|\"[^\"]*\"?)*;?")
_LONGEST_LIST = 50
# Limits that keep reading fast. Answers beyond them are nonsense.
_MOST_STARTS = 20
_MOST_CHARACTERS = 100_000


class UnusableAnswer(ValueError):
    """An answer cannot be used. The message tells the model what was wrong."""


def read_object(answer: str) -> dict[str, Any]:
    """The first non-empty JSON object in an answer. Accepts text around it, trailing commas and Python literals. Raises
    UnusableAnswer if there is no such object."""
    text = _THOUGHT.sub("", answer[:_MOST_CHARACTERS])
    if not text.strip():
        raise UnusableAnswer("The answer is empty; a JSON object is needed.")
    for start in [match.start() for match in re.finditer(r"\{", text)][:_MOST_STARTS]:
        found = _object_at(text, start)
        if found:
            return found
    raise UnusableAnswer("The answer is not one complete JSON object.")


def _object_at(text: str, start: int) -> dict[str, Any] | None:
    try:
        found, _ = json.JSONDecoder(strict=False).raw_decode(text, start)
        return found if isinstance(found, dict) else None
    except (ValueError, RecursionError):
        pass
    body = text[start : text.rfind("}") + 1]
    for read, text_read in ((json.loads, re.sub(r",(\s*[}\]])", r"\1", body)), (ast.literal_eval, body)):
        try:
            found = read(text_read)
        except (ValueError, SyntaxError, RecursionError, MemoryError, TypeError):
            continue
        if isinstance(found, dict) and all(isinstance(key, str) for key in found):
            return found
    return None


def texts_of(value: Any) -> tuple[str, ...]:
    """The texts of a value that should be a list of texts.

    Accepts one text, a list of texts, or a list of objects with a name. Anything else gives no texts.
    """
    if isinstance(value, str):
        value = [value]
    if isinstance(value, dict):
        value = list(value)
    if not isinstance(value, list):
        return ()
    found = []
    for item in value[:_LONGEST_LIST]:
        if isinstance(item, dict):
            item = next((item[key] for key in ("name", "text", "note", "value", "column") if key in item), None)
        if isinstance(item, str | int | float) and not isinstance(item, bool) and str(item).strip():
            found.append(str(item).strip())
    return tuple(dict.fromkeys(found))


def flag_of(value: Any) -> bool:
    """True for the forms of true that models write: true, 1, "yes"."""
    return value.strip().lower() in ("true", "yes", "1") if isinstance(value, str) else bool(value)


def read_select(answer: str) -> str:
    """The single SELECT of an answer, from a code fence, a JSON field `sql` or the text, without anything around it.
    Raises UnusableAnswer if there is no SELECT, or `agentspec.workflows.text_to_sql.sql.safety` refuses it."""
    sql = _found_sql(_THOUGHT.sub("", answer[:_MOST_CHARACTERS]).strip())
    if not sql:
        raise UnusableAnswer("The answer holds no SQL; one SELECT statement is needed.")
    reason = refusal(sql)
    if reason:
        raise UnusableAnswer(f"The SQL is refused: {reason}.")
    return sql


def _found_sql(text: str) -> str:
    fenced: list[str] = [block.strip() for block in _FENCE.findall(text) if block.strip()]
    if fenced:
        # If there are several fences, the last one holds the final statement.
        return fenced[-1]
    if text.startswith("{"):
        try:
            return "\n".join(texts_of(read_object(text).get("sql")))
        except UnusableAnswer:
            return text
    begin = _STATEMENT.search(text)
    if begin is None:
        return text
    # Words or a second statement after the first statement are cut off.
    end = _END.match(text, begin.start())
    return text[begin.start() : end.end() if end else None].strip()
