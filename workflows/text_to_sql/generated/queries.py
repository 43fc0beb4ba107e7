"""A SELECT statement in parts, which renders its canonical SQL and the schema links that an analyst notes first."""

from __future__ import annotations

import re
from dataclasses import dataclass

_QUALIFIED = re.compile(r"\b[a-z_]+\.[a-z_]+\b")


@dataclass(frozen=True)
class Filter:
    """`column op literal`, e.g. `orders.total > 100`; the column is qualified by its table, the literal is SQL."""

    column: str
    op: str
    literal: str = ""

    def sql(self) -> str:
        """The condition with a qualified column."""
        return f"{self.column} {self.op} {self.literal}".rstrip()


@dataclass(frozen=True)
class Membership:
    """`column [NOT] IN (SELECT inner FROM its table WHERE filters)`; columns are qualified."""

    column: str
    inner: str
    negated: bool = False
    filters: tuple[Filter, ...] = ()

    def sql(self) -> str:
        """The condition. Columns inside the parentheses are not qualified, because there is only one table."""
        table, name = self.inner.split(".")
        where = f" WHERE {' AND '.join(f.sql() for f in self.filters)}" if self.filters else ""
        nested = f"SELECT {name} FROM {table}{where}".replace(f"{table}.", "")
        return f"{self.column} {'NOT IN' if self.negated else 'IN'} ({nested})"


@dataclass(frozen=True)
class Links:
    """The parts of the schema that a question needs, with its join and filter conditions, grouping and ordering.

    `group` and `order` hold at most two expressions: the grouping and its HAVING, the ordering and its LIMIT.
    """

    tables: tuple[str, ...]
    columns: tuple[str, ...]
    joins: tuple[str, ...]
    filters: tuple[str, ...]
    group: tuple[str, ...]
    order: tuple[str, ...]


@dataclass(frozen=True)
class Query:
    """Parts of one SELECT; every column in every part is qualified by its table.

    `joins` pairs each table after the first with its ON condition. `connector` joins the conditions.
    """

    table: str
    select: tuple[str, ...]
    joins: tuple[tuple[str, str], ...] = ()
    where: tuple[Filter | Membership, ...] = ()
    connector: str = "AND"
    distinct: bool = False
    group: str = ""
    having: str = ""
    order: str = ""
    limit: int = 0

    def sql(self) -> str:
        """Canonical SQL on one line, with a semicolon at the end. Columns are qualified only if tables are joined."""
        parts = [f"SELECT {'DISTINCT ' if self.distinct else ''}{', '.join(self.select)} FROM {self.table}"]
        parts += [f"JOIN {table} ON {condition}" for table, condition in self.joins]
        if self.where:
            parts.append("WHERE " + f" {self.connector} ".join(condition.sql() for condition in self.where))
        if self.group:
            parts.append(f"GROUP BY {self.group}")
        if self.having:
            parts.append(f"HAVING {self.having}")
        if self.order:
            parts.append(f"ORDER BY {self.order}")
        if self.limit:
            parts.append(f"LIMIT {self.limit}")
        text = " ".join(parts)
        return (text if self.joins else text.replace(f"{self.table}.", "")) + ";"

    def links(self) -> Links:
        """The schema links of this query, nested query included, each list in order of first appearance."""
        tables = [self.table, *(table for table, _ in self.joins)]
        joins = [condition for _, condition in self.joins]
        filters: list[str] = []
        for condition in self.where:
            if isinstance(condition, Membership):
                tables.append(condition.inner.split(".")[0])
                joins.append(f"{condition.column} = {condition.inner}")
                filters += [inner.sql() for inner in condition.filters]
            else:
                filters.append(condition.sql())
        mentioned = " ".join([*self.select, *filters, self.group, self.having, self.order])
        # Quoted values may look like names, so they are removed before the search for columns.
        columns = _QUALIFIED.findall(re.sub(r"'[^']*'", "", mentioned))
        group = tuple(part for part in (self.group, self.having) if part)
        order = ((self.order,) if self.order else ()) + ((f"LIMIT {self.limit}",) if self.limit else ())
        return Links(tuple(tables), tuple(dict.fromkeys(columns)), tuple(joins), tuple(filters), group, order)
