from __future__ import annotations

import random
import time
from collections import Counter
from itertools import permutations

import pytest

from agentspec.workflows.text_to_sql.sql.permutation import Row, same_rows


def by_trying_all(gold: list[Row], got: list[Row], ordered: bool) -> bool:
    if not gold and not got:
        return True
    if len(gold) != len(got) or len(gold[0]) != len(got[0]):
        return False
    for order in permutations(range(len(gold[0]))):
        turned = [tuple(row[place] for place in order) for row in got]
        if turned == gold if ordered else Counter(turned) == Counter(gold):
            return True
    return False


def turned(rows: list[Row], rng: random.Random, *, keep_order: bool) -> list[Row]:
    order = rng.sample(range(len(rows[0])), len(rows[0]))
    rows = [tuple(row[place] for place in order) for row in rows]
    return rows if keep_order else rng.sample(rows, len(rows))


@pytest.mark.parametrize("ordered", [False, True])
def test_the_search_finds_what_trying_all_permutations_finds(ordered: bool) -> None:
    rng = random.Random(1)
    met: Counter[bool] = Counter()
    for _ in range(1500):
        columns, rows = rng.randint(1, 4), rng.randint(0, 5)
        cells = rng.choice(([0, 1], [0, 1.0, 1, "1", None], ["a", b"a", 2]))
        gold: list[Row] = [tuple(rng.choice(cells) for _ in range(columns)) for _ in range(rows)]
        got = turned(gold, rng, keep_order=ordered) if gold else []
        if got and rng.random() < 0.6:
            # Cells of one column change places, which simple counts do not see.
            place, first, second = rng.randrange(columns), rng.randrange(rows), rng.randrange(rows)
            changed = [list(row) for row in got]
            changed[first][place], changed[second][place] = changed[second][place], changed[first][place]
            got = [tuple(row) for row in changed]
        expected = by_trying_all(gold, got, ordered)
        assert same_rows(gold, got, ordered=ordered) is expected, (gold, got)
        met[expected] += 1
    assert min(met.values()) > 100


def test_numbers_of_rows_and_columns_count() -> None:
    assert same_rows([], [], ordered=False)
    assert not same_rows([(1,)], [(1,), (1,)], ordered=False)
    assert not same_rows([(1, 1)], [(1,)], ordered=False)


def test_many_columns_take_no_factorial_time() -> None:
    rng = random.Random(2)
    began = time.monotonic()
    for columns, rows in ((12, 50), (20, 300), (30, 1000)):
        gold: list[Row] = [tuple(rng.randint(0, 1) for _ in range(columns)) for _ in range(rows)]
        assert same_rows(gold, turned(gold, rng, keep_order=False), ordered=False)
        # Two rows trade two cells, so that each row and each column still has the same number of ones.
        changed = [list(row) for row in gold]
        first, second, one, two = next(
            (first, second, one, two)
            for first in range(rows) for second in range(first) for one in range(columns) for two in range(one)
            if gold[first][one] == gold[second][two] == 1 and gold[first][two] == gold[second][one] == 0
        )  # fmt: skip
        changed[first][one], changed[first][two], changed[second][one], changed[second][two] = 0, 1, 1, 0
        near = turned([tuple(row) for row in changed], rng, keep_order=False)
        assert not same_rows(gold, near, ordered=False)
    # Columns that are all alike: any assignment is right, and a table of the wrong rows is refused at once.
    square: list[Row] = [tuple(int(row == column) for column in range(25)) for row in range(25)]
    assert same_rows(square, turned(square, rng, keep_order=False), ordered=False)
    assert time.monotonic() - began < 10
