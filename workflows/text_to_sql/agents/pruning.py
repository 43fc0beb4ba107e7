"""Cuts a schema to a budget of tokens, and keeps what a question is likely to need.

Columns are taken in the order of their relevance until the budget is used up. A table brings its primary key, and the
columns that join it with the tables taken before. Where two such tables are joined only through others, these come in
between with just their keys. The tables and columns that are taken keep the order of the schema, so the same question
always has the same text, which a server's prefix cache can reuse.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from agentspec.workflows.text_to_sql.sql.schema import Schema, quoted_name
from agentspec.workflows.text_to_sql.sql.sources import Source

LEAST_TOKENS = 100
"""The smallest budget. Below it, a table with its keys may not fit."""

# Tokenizers of current models need fewer tokens for a schema than one per three bytes.
_BYTES_PER_TOKEN = 3
# Number of notes that may name relevant columns, and the weight of a low rank in the sum of reciprocal ranks.
_MOST_NOTES = 200
_RANK_WEIGHT = 10
# Number of joins between two tables beyond which the tables in between are not added.
_LONGEST_PATH = 3

Place = tuple[int, int]
"""The number of a table in the schema, and of a column in the table."""


def estimated_tokens(text: str) -> int:
    """An upper estimate of the tokens of a text: one per three bytes of UTF-8."""
    return -(-len(text.encode()) // _BYTES_PER_TOKEN)


def relevant_schema(source: Source, words: str, budget: int | None) -> Schema:
    """The schema, or the part of it that is relevant to the words and fits the budget. `words`: the question and what
    is known about it. `budget`: maximum number of estimated tokens of the schema's text; None for the whole schema."""
    schema = source.schema
    if budget is None or estimated_tokens(schema.text()) <= budget:
        return schema
    cut = _Cut(schema, budget)
    relevant = _relevant(source, words)
    cut.add_all(relevant, connected=True)
    # A question may use other words than the schema. What is left of the budget shows as much as possible.
    tables = dict.fromkeys(table for table, _ in relevant)
    cut.add_all(_columns_of(schema, [table for table in tables if cut.has_table(table)]))
    cut.add_all(_columns_of(schema, range(len(schema.tables))))
    return cut.schema()


def focused_schema(
    source: Source, words: str, tables: Sequence[str], columns: Sequence[str], budget: int | None
) -> Schema:
    """The schema, or the named part of it with the joins, and then other columns of the named tables while they fit.

    Args:
        words: The question and what is known about it.
        tables: Names of tables in the schema's spelling.
        columns: Names `table.column` in the schema's spelling.
        budget: Maximum number of estimated tokens of the schema's text; None for the whole schema.
    """
    schema = source.schema
    if budget is None or estimated_tokens(schema.text()) <= budget:
        return schema
    numbers = {table.name: number for number, table in enumerate(schema.tables)}
    named = [numbers[name] for name in tables if name in numbers]
    wanted = {name: place for place, name in enumerate(columns)}
    order = [
        (wanted[f"{schema.tables[table].name}.{column.name}"], (table, place))
        for table in named
        for place, column in enumerate(schema.tables[table].columns)
        if f"{schema.tables[table].name}.{column.name}" in wanted
    ]
    cut = _Cut(schema, budget)
    cut.add_all([place for _, place in sorted(order)], connected=True)
    for table in named:
        cut.add_table(table)
        cut.connect(table)
    cut.add_all(place for place in _relevant(source, words) if cut.has_table(place[0]))
    cut.add_all(_columns_of(schema, [table for table in named if cut.has_table(table)]))
    return cut.schema()


def _columns_of(schema: Schema, tables: Iterable[int]) -> Iterator[Place]:
    for table in tables:
        yield from ((table, place) for place in range(len(schema.tables[table].columns)))


def _relevant(source: Source, words: str) -> list[Place]:
    """The columns that share words with the question, by themselves or through a note, most relevant first."""
    places = list(_columns_of(source.schema, range(len(source.schema.tables))))
    by_name = {
        (source.schema.tables[table].name, source.schema.tables[table].columns[column].name): (table, column)
        for table, column in places
    }
    noted = dict.fromkeys(
        by_name[source.places[note]] for note in source.notes.best(words, _MOST_NOTES) if note in source.places
    )
    scores: dict[Place, float] = defaultdict(float)
    for ranked in ([places[number] for number in source.columns.places(words)], list(noted)):
        for rank, place in enumerate(ranked):
            scores[place] += 1 / (_RANK_WEIGHT + rank)
    return sorted(scores, key=lambda place: (-scores[place], place))


class _Cut:
    """The part of a schema that was taken so far. Nothing is added that would exceed the budget."""

    def __init__(self, schema: Schema, budget: int) -> None:
        self._schema = schema
        self._left = budget * _BYTES_PER_TOKEN - len(f"database {schema.database}".encode())
        self._taken: dict[int, set[int]] = {}
        self._tried: set[int] = set()
        self._keys = [[place for place, column in enumerate(t.columns) if column.is_key] for t in schema.tables]
        self._links = _links(schema)
        self._sizes = [[len(c.text().encode()) + len(", ") for c in table.columns] for table in schema.tables]
        self._least_size = min((size for sizes in self._sizes for size in sizes), default=0)

    def has_table(self, table: int) -> bool:
        """True if the table, with its keys, was taken."""
        return table in self._taken

    def add_all(self, places: Iterable[Place], *, connected: bool = False) -> None:
        """Add the columns that fit, in turn. With `connected`, join their tables with those taken before."""
        for table, column in places:
            if self._left < self._least_size:
                return
            is_new = table not in self._taken
            if not is_new and column in self._taken[table]:
                continue
            if self._add([(table, column)]) and is_new and connected:
                self.connect(table)

    def add_table(self, table: int) -> None:
        """Add the table with its keys alone, if they fit."""
        self._add([(table, None)])

    def connect(self, table: int) -> None:
        """Add the tables on the shortest way from this table to another one, if there is a way and they fit."""
        if table in self._tried or table not in self._taken:
            return
        self._tried.add(table)
        before: dict[int, int] = {table: table}
        waiting = deque([(table, 0)])
        while waiting:
            here, joins = waiting.popleft()
            if here != table and here in self._taken:
                way = [here]
                while way[-1] != table:
                    way.append(before[way[-1]])
                self._add([(between, None) for between in way[1:-1]])
                return
            if joins < _LONGEST_PATH:
                for other in sorted(self._links[here]):
                    if other not in before:
                        before[other] = here
                        waiting.append((other, joins + 1))

    def _add(self, wanted: Sequence[tuple[int, int | None]]) -> bool:
        """Add tables and columns with all that they need, or nothing."""
        new: set[Place] = set()
        new_tables: set[int] = set()
        for table, column in wanted:
            if column is not None:
                new.add((table, column))
            if table in self._taken or table in new_tables:
                continue
            new.update((table, key) for key in self._keys[table])
            for other, pairs in self._links[table].items():
                if other in self._taken or other in new_tables:
                    new.update(place for own, theirs in pairs for place in ((table, own), (other, theirs)))
            new_tables.add(table)
        new = {(table, column) for table, column in new if column not in self._taken.get(table, ())}
        size = sum(self._sizes[table][column] for table, column in new)
        size += sum(len(quoted_name(self._schema.tables[table].name).encode()) + len("\n()") for table in new_tables)
        if size > self._left:
            return False
        self._left -= size
        for table in new_tables:
            self._taken[table] = set()
        for table, column in new:
            self._taken[table].add(column)
        return True

    def schema(self) -> Schema:
        """The taken part. If nothing fits, the first column of the first table, so that there is a schema."""
        taken = self._taken or {0: {0}}
        tables = [
            replace(table, columns=tuple(c for place, c in enumerate(table.columns) if place in taken[number]))
            for number, table in enumerate(self._schema.tables)
            if taken.get(number)
        ]
        return replace(self._schema, tables=tuple(tables))


def _links(schema: Schema) -> list[dict[int, list[tuple[int, int]]]]:
    """For each table, the tables that foreign keys join it with, each with pairs of own and other column."""
    numbers = {table.name.lower(): number for number, table in enumerate(schema.tables)}
    columns = [{c.name.lower(): place for place, c in enumerate(table.columns)} for table in schema.tables]
    links: list[dict[int, list[tuple[int, int]]]] = [defaultdict(list) for _ in schema.tables]
    for number, table in enumerate(schema.tables):
        for place, column in enumerate(table.columns):
            other, theirs = _referred(column.refers.lower(), numbers)
            if other is None:
                continue
            # A reference without a column means the primary key.
            keys = [key for key, c in enumerate(schema.tables[other].columns) if c.is_key]
            found = columns[other].get(theirs, keys[0] if keys and not theirs else None)
            if found is not None and other != number:
                links[number][other].append((place, found))
                links[other][number].append((found, place))
    return links


def _referred(reference: str, tables: dict[str, int]) -> tuple[int | None, str]:
    """The table and the column of a reference. The names of both may contain dots."""
    if reference in tables:
        return tables[reference], ""
    for dot in (place for place, letter in enumerate(reference) if letter == "."):
        if reference[:dot] in tables:
            return tables[reference[:dot]], reference[dot + 1 :]
    return None, ""
