"""Columns of nodes that are ranked over a batch."""

from __future__ import annotations

import numpy as np
import pytest
from draft_states import batch, drawn_rows

from agentspec.control.columns import column_sums, cut_first, num_drafted, ranked_columns, ranked_first, ranked_sizes


def drawn(seed: int) -> tuple[np.random.Generator, list[list[float]]]:
    rng = np.random.default_rng(seed)
    rows = drawn_rows(rng, int(rng.integers(1, 7)), 9)
    if seed % 2:
        # A node may promise more than one before it.
        rows = [rng.permutation(row).tolist() for row in rows]
    return rng, rows


@pytest.mark.parametrize("seed", range(20))
def test_each_width_has_the_best_nodes_that_do_not_lack_those_before_them(seed: int) -> None:
    _, rows = drawn(seed)
    drafts = batch(rows)
    columns = ranked_columns(drafts)
    least = [np.minimum.accumulate(row).tolist() if row else [] for row in rows]
    for width in range(1, 11):
        kept = ranked_first(drafts, columns, width).tolist()
        wanted = min(len(rows) * (width - 1), sum(map(len, rows)))
        assert sum(kept) == wanted and max(kept) <= max(map(len, rows))
        taken = [value for row, n in zip(least, kept, strict=True) for value in row[:n]]
        left = [value for row, n in zip(least, kept, strict=True) for value in row[n:]]
        assert not taken or not left or np.float32(min(taken)) >= np.float32(max(left))
        sizes = ranked_sizes(int(num_drafted(drafts).sum()), len(rows), width - 1)
        assert sizes.sum() == wanted
        sums = column_sums(drafts, width - 1, drafts.estimates, columns)
        assert sums.sum() == pytest.approx(sum(sum(row[:n]) for row, n in zip(rows, kept, strict=True)), rel=1e-5)


@pytest.mark.parametrize("seed", range(20))
def test_what_a_width_cuts_first_is_counted_node_by_node(seed: int) -> None:
    rng, rows = drawn(seed)
    parents = [[int(rng.integers(0, node + 1)) for node in range(len(row))] for row in rows]
    drafts = batch(rows, parents)
    columns = ranked_columns(drafts)
    weights = rng.random(6)
    gains = column_sums(drafts, 6, drafts.estimates, columns) * weights
    found = cut_first(drafts, weights, gains, columns)
    for width in range(1, 7):
        kept = ranked_first(drafts, columns, width).tolist()
        cut = 0.0
        for row, (estimates, links, n) in enumerate(zip(rows, parents, kept, strict=True)):
            for node in range(n, len(estimates)):
                column = int(columns[drafts.offsets[row] + 1 + node])
                if links[node] <= n and column <= 6:
                    cut += estimates[node] * weights[column - 1]
        assert found[width - 1] == pytest.approx(cut, abs=1e-5)


def test_a_batch_of_roots_or_of_nothing() -> None:
    for rows in ([], [[], []]):
        drafts = batch(rows)
        columns = ranked_columns(drafts)
        assert columns.tolist() == [0] * len(rows)
        assert ranked_first(drafts, columns, 3).tolist() == [0] * len(rows)
