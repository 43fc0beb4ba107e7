"""Draws the parts of questions over one database: filters with their words, columns, paths between tables."""

from __future__ import annotations

import random
import sqlite3
from dataclasses import dataclass

from agentspec.workflows.text_to_sql.generated.databases import Column, Database, Table
from agentspec.workflows.text_to_sql.generated.queries import Filter

# The wordings of each operator. {p} is the column's phrase and {v} the value. No wording occurs for two operators.
_NUMBER_WORDS: dict[str, tuple[str, ...]] = {
    ">": ("with {p} above {v}", "whose {p} is more than {v}", "with {p} over {v}"),
    "<": ("with {p} below {v}", "whose {p} is less than {v}", "with {p} under {v}"),
    ">=": ("with {p} of at least {v}", "whose {p} is {v} or more"),
    "<=": ("with {p} of at most {v}", "whose {p} is {v} or less"),
    "=": ("with {p} {v}", "whose {p} is {v}"),
}
_DATE_WORDS: dict[str, tuple[str, ...]] = {
    ">": ("with {p} after {v}", "whose {p} is later than {v}"),
    "<": ("with {p} before {v}", "whose {p} is earlier than {v}"),
}
_TEXT_WORDS: dict[str, tuple[str, ...]] = {
    "=": ("whose {p} is {v}", "with {p} {v}", "having {p} {v}"),
    "!=": ("whose {p} is not {v}", "with {p} other than {v}"),
}
_BETWEEN_WORDS = ("with {p} between {a} and {b}", "whose {p} is between {a} and {b}", "with {p} from {a} to {b}")


@dataclass(frozen=True)
class Condition:
    """A filter and the words that ask for it ("with total above 100"), which follow a noun."""

    filter: Filter
    words: str


def quoted(value: object) -> str:
    """The value as an SQL literal. Questions quote text in the same way, so that values are unambiguous."""
    return f"'{value}'" if isinstance(value, str) else f"{value:g}" if isinstance(value, float) else str(value)


class Drawer:
    """Random parts over one database. Values come from the stored rows, so most questions have an answer."""

    def __init__(self, database: Database, connection: sqlite3.Connection, rng: random.Random) -> None:
        self.database = database
        self.rng = rng
        self._values = {
            (table.name, column.name): [
                row[0]
                for row in connection.execute(
                    f"SELECT DISTINCT {column.name} FROM {table.name} WHERE {column.name} IS NOT NULL ORDER BY 1"
                )
            ]
            for table in database.tables
            for column in table.of_kind("label", "category", "number", "date")
        }

    def pick(self, *options: str) -> str:
        return self.rng.choice(options)

    def chance(self, share: float) -> bool:
        """True in this share of calls."""
        return self.rng.random() < share

    def table(self) -> Table:
        """Any table."""
        return self.rng.choice(self.database.tables)

    def column(self, table: Table, *kinds: str) -> Column | None:
        """Any column of these kinds; None if the table has none."""
        columns = [column for column in table.columns if column.kind in kinds]
        return self.rng.choice(columns) if columns else None

    def reference(self) -> tuple[Table, Column, Table]:
        """Any foreign key as (child, ref column, parent)."""
        return self.rng.choice(self.database.references())

    def columns(self, table: Table) -> list[Column]:
        """One to three columns worth listing, usually with the identity first."""
        others = [column for column in table.of_kind("category", "number", "date")]
        chosen = self.rng.sample(others, min(len(others), self.rng.choice((0, 1, 1, 2))))
        if not chosen or self.chance(0.7):
            chosen.insert(0, table.identity)
        return chosen

    def condition(self, table: Table, *, avoid: str = "") -> Condition | None:
        """A condition on any column of the table except `avoid` (a qualified name)."""
        choices = [c for c in table.of_kind("label", "category", "number", "date") if f"{table.name}.{c.name}" != avoid]
        # Labels have many values that select single rows, so they are drawn less often than columns that select groups.
        weights = [0.4 if c.kind == "label" else 1.0 for c in choices]
        if not choices:
            return None
        column = self.rng.choices(choices, weights)[0]
        name, values = f"{table.name}.{column.name}", self._values[table.name, column.name]
        if column.empty_share and self.chance(0.3):
            op, words = ("IS NULL", "without {p}") if self.chance(0.5) else ("IS NOT NULL", "with any {p}")
            return Condition(Filter(name, op), words.format(p=column.phrase))
        if column.kind in ("number", "date") and self.chance(0.2):
            low, high = sorted(self.rng.sample(values, 2))
            a, b = quoted(low), quoted(high)
            words = self.pick(*_BETWEEN_WORDS).format(p=column.phrase, a=a, b=b)
            return Condition(Filter(name, "BETWEEN", f"{a} AND {b}"), words)
        if column.kind == "label" and self.chance(0.5):
            return self._pattern(name, column, self.rng.choice(values))
        table_of_words = {"number": _NUMBER_WORDS, "date": _DATE_WORDS}.get(column.kind, _TEXT_WORDS)
        ops = [op for op in table_of_words if not (column.kind == "label" and op == "!=")]
        op, value = self.rng.choice(ops), quoted(self.rng.choice(values))
        words = self.pick(*table_of_words[op]).format(p=column.phrase, v=value)
        return Condition(Filter(name, op, value), words)

    def _pattern(self, name: str, column: Column, value: str) -> Condition:
        if self.chance(0.5):
            start = value[0]
            words = self.pick("whose {p} starts with {v}", "with {p} beginning with {v}")
            return Condition(Filter(name, "LIKE", f"'{start}%'"), words.format(p=column.phrase, v=f"'{start}'"))
        word = self.rng.choice(value.split())
        words = self.pick("whose {p} contains {v}", "with {v} in the {p}")
        return Condition(Filter(name, "LIKE", f"'%{word}%'"), words.format(p=column.phrase, v=f"'{word}'"))

    def conditions(self, table: Table, most: int = 2) -> tuple[list[Filter], str, str]:
        """Zero to `most` conditions as (filters, connector, words with a leading space)."""
        count = self.rng.choice((0, 1, 1, 1, 2)[: most + 3])
        first = self.condition(table) if count else None
        if first is None:
            return [], "AND", ""
        second = self.condition(table, avoid=first.filter.column) if count > 1 else None
        if second is None:
            return [first.filter], "AND", f" {first.words}"
        connector = "OR" if self.chance(0.25) else "AND"
        return [first.filter, second.filter], connector, f" {first.words} {connector.lower()} {second.words}"


def listing(phrases: list[str]) -> str:
    """The phrases as a list in words, for example `name, price and stock`."""
    return phrases[0] if len(phrases) == 1 else f"{', '.join(phrases[:-1])} and {phrases[-1]}"
