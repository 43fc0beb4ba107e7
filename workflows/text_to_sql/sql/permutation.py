"""Compares tables of rows whose columns may come in another order.

For rows in a given order, the question is just whether both tables have the same columns. For rows in any order, it is a
search: columns of the one table are assigned to those of the other, one by one. A column can only be assigned to one
with the same cells, and an assignment ends early if the rows that are assigned so far already differ.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from agentspec.workflows.text_to_sql.sql.execute import Cell

Row = tuple[Cell, ...]


def same_rows(gold: Sequence[Row], got: Sequence[Row], *, ordered: bool) -> bool:
    """True if a permutation of the columns makes the rows equal: as lists if `ordered`, else as multisets.

    Cells are compared as Python compares them. Two empty tables are equal, whatever their columns are.
    """
    if len(gold) != len(got):
        return False
    if not gold:
        return True
    if len(gold[0]) != len(got[0]):
        return False
    ours, theirs = list(zip(*gold, strict=True)), list(zip(*got, strict=True))
    if ordered:
        return Counter(ours) == Counter(theirs)
    # The most frequent answers, the same order of columns or other cells altogether, need no search.
    if Counter(gold) == Counter(got):
        return True
    if _cells_by_row(gold) != _cells_by_row(got):
        return False
    return _Search(ours, theirs).succeeds()


def _cells_by_row(rows: Sequence[Row]) -> Counter[frozenset[tuple[Cell, int]]]:
    return Counter(frozenset(Counter(row).items()) for row in rows)


class _Search:
    """Assigns columns by depth-first search.

    The rows are divided into classes: rows are in one class if they are equal in all columns assigned so far. An
    assignment stays possible as long as every class has as many rows in both tables.
    """

    def __init__(self, ours: list[tuple[Cell, ...]], theirs: list[tuple[Cell, ...]]) -> None:
        counts = [Counter(column) for column in theirs]
        candidates = []
        for column in ours:
            cells = Counter(column)
            candidates.append([place for place, other in enumerate(counts) if other == cells])
        # Columns with few candidates, and then those with many distinct cells, divide the rows best.
        order = sorted(range(len(ours)), key=lambda place: (len(candidates[place]), -len(set(ours[place])), place))
        self._ours = [ours[place] for place in order]
        self._candidates = [candidates[place] for place in order]
        self._theirs = theirs

    def succeeds(self) -> bool:
        """True if all columns can be assigned."""
        rows = len(self._ours[0])
        return self._assign(0, frozenset(), [0] * rows, [0] * rows)

    def _assign(self, depth: int, used: frozenset[int], ours: list[int], theirs: list[int]) -> bool:
        """Assign the column at this depth and all after it. `ours` and `theirs` number the classes of the rows."""
        if depth == len(self._ours):
            return True
        numbers: dict[tuple[int, Cell], int] = {}
        refined = [numbers.setdefault(key, len(numbers)) for key in zip(ours, self._ours[depth], strict=True)]
        sizes = Counter(refined)
        tried: set[tuple[Cell, ...]] = set()
        for place in self._candidates[depth]:
            column = self._theirs[place]
            # Equal columns lead to equal results.
            if place in used or column in tried:
                continue
            tried.add(column)
            other = [numbers.get(key, -1) for key in zip(theirs, column, strict=True)]
            if Counter(other) == sizes and self._assign(depth + 1, used | {place}, refined, other):
                return True
        return False
