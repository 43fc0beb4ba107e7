"""Refuses SQL that is not a single SELECT, before it reaches a database.

The second barrier is `agentspec.workflows.text_to_sql.sql.execute`, which lets a statement only read, for a limited
time. This module explains what is wrong in words, so that the agent can correct its statement.
"""

from __future__ import annotations

import logging
from typing import Any

from agentspec.errors import ConfigError

_MAX_CHARACTERS = 20_000
_REFUSED_FUNCTIONS = {"load_extension", "readfile", "writefile", "edit", "fts3_tokenizer", "zeroblob", "randomblob"}
_REFUSED_TABLES = ("pragma_", "sqlite_dbpage", "dbstat")


def refusal(sql: str) -> str:
    """Why the statement is refused, as one line; "" for a single SELECT, WITH ... SELECT or set operation of these.
    Raises ConfigError if sqlglot is not installed."""
    if len(sql) > _MAX_CHARACTERS:
        return f"a statement has at most {_MAX_CHARACTERS} characters, this one has {len(sql)}"
    if "\0" in sql:
        return "the statement holds a NUL character"
    sqlglot, exp = load_sqlglot()
    try:
        statements = [statement for statement in sqlglot.parse(sql, dialect="sqlite") if statement is not None]
    except sqlglot.errors.SqlglotError as error:
        return f"not valid SQLite: {_first_line(error)}"
    except RecursionError:
        return "the statement is nested too deeply"
    if len(statements) != 1:
        return f"exactly one SELECT statement is allowed, got {len(statements) or 'none'}"
    if not isinstance(statements[0], exp.Query):
        return f"only SELECT is allowed, got {_kind(statements[0])}"
    for node in statements[0].walk():
        if isinstance(node, exp.DML | exp.DDL | exp.Command | exp.Pragma | exp.Attach | exp.Detach | exp.Into):
            # In sqlglot, queries are data definitions, too.
            if not isinstance(node, exp.Query):
                return f"only SELECT is allowed, got {_kind(node)} inside"
        elif isinstance(node, exp.Func) and _is_refused(_function_name(node)):
            return f"the function {_function_name(node)} is not allowed"
        elif isinstance(node, exp.Table) and _is_refused(node.name.lower()):
            return f"the table {node.name.lower()} is not allowed"
    return ""


def load_sqlglot() -> tuple[Any, Any]:
    """The package and its module of expressions. Raises ConfigError if it is not installed."""
    try:
        import sqlglot
        from sqlglot import exp
    except ImportError:
        raise ConfigError(
            "checking SQL needs sqlglot, which is not installed; run pip install 'sglang-agentspec[workflows]'"
        ) from None
    # sqlglot's warnings quote statements, and logs must not contain users' text.
    logging.getLogger("sqlglot").setLevel(logging.ERROR)
    return sqlglot, exp


def _is_refused(name: str) -> bool:
    return name in _REFUSED_FUNCTIONS or name.startswith(_REFUSED_TABLES)


def _first_line(error: Exception) -> str:
    # sqlglot underlines the place of the error with terminal escapes.
    text = str(error).replace("\x1b[4m", "").replace("\x1b[0m", "")
    return " ".join(text.split("\n")[0].split())[:200]


def _kind(node: Any) -> str:
    return str(node.this).upper() if type(node).__name__ == "Command" else str(type(node).__name__).upper()


def _function_name(node: Any) -> str:
    name = node.name if type(node).__name__ == "Anonymous" else node.sql_name()
    return str(name).lower()
