from __future__ import annotations

import numpy as np
import pytest
from draft_states import batch as estimated
from engine_texts import make_batch
from hypothesis import given, settings
from hypothesis import strategies as st

from agentspec import ConfigError, DraftBatch, TreeBuffers, build_tree_arrays

# node(token)
#
# 0(50) ─┬─ 1(51) ─┬─ 3(53) ─── 6(56) ─┬─ 8(58) ─── 11(61)
#        │         │                   └─ 10(60)
#        │         └─ 4(54)
#        ├─ 2(52) ─── 7(57) ─── 9(59)
#        └─ 5(55)
TWELVE_NODES = (list(range(50, 62)), [-1, 0, 0, 1, 1, 0, 3, 2, 6, 7, 6, 8])
FIELDS = ("tokens", "depths", "mask", "next_token", "next_sibling", "num_nodes")
# All examples share these buffers, so that each finds what the previous one left there.
BUFFERS = TreeBuffers(max_rows=4, max_width=15)


@given(
    st.lists(st.lists(st.floats(0.0, 1.0, width=16), max_size=6), max_size=5),
    st.lists(st.integers(0, 7), min_size=5, max_size=5),
)
def test_the_first_nodes_of_each_row(rows: list[list[float]], counts: list[int]) -> None:
    drafts = estimated(rows)
    counts = counts[: len(rows)]
    first = drafts.first(np.array(counts, np.int32))
    expected = estimated([row[:n] for row, n in zip(rows, counts, strict=True)])
    for name in ("offsets", "tokens", "parents", "estimates", "sources"):
        assert getattr(first, name).tolist() == getattr(expected, name).tolist()
        assert getattr(first, name).dtype == getattr(drafts, name).dtype
    np.testing.assert_allclose(first.scores, expected.scores, atol=1e-6)
    assert first.match_lens.tolist() == drafts.match_lens.tolist()


@st.composite
def trees(draw: st.DrawFn) -> tuple[list[int], list[int]]:
    size = draw(st.integers(1, 12))
    parents = [-1] + [draw(st.integers(0, node - 1)) for node in range(1, size)]
    return draw(st.lists(st.integers(0, 99), min_size=size, max_size=size)), parents


@given(rows=st.lists(trees(), max_size=4), spare=st.integers(0, 3))
@settings(max_examples=100, derandomize=True, database=None)
def test_random_trees_match_the_definitions(rows: list[tuple[list[int], list[int]]], spare: int) -> None:
    batch, width = make_batch(rows), max([len(tokens) for tokens, _ in rows], default=1) + spare
    arrays, reused = build_tree_arrays(batch, width), build_tree_arrays(batch, width, BUFFERS)
    for name in FIELDS:
        np.testing.assert_array_equal(getattr(reused, name), getattr(arrays, name), err_msg=name, strict=True)
    assert not rows or np.shares_memory(reused.tokens, BUFFERS.memory)

    assert arrays.tokens.shape == (len(rows), width)
    assert arrays.mask.shape == (len(rows), width, width)
    for row, (tokens, parents) in enumerate(rows):
        parent_of = dict(enumerate(parents + [0] * (width - len(parents))))
        for node in range(width):
            path = [node]
            while parent_of[path[-1]] >= 0:
                path.append(parent_of[path[-1]])
            is_node = node < len(tokens)
            children = [child for child in range(node + 1, len(tokens)) if parents[child] == node]
            siblings = [s for s in range(node + 1, len(tokens)) if is_node and parents[s] == parents[node]]
            assert arrays.mask[row, node].tolist() == [other in path for other in range(width)]
            assert arrays.depths[row, node] == len(path) - 1
            assert arrays.tokens[row, node] == (tokens[node] if is_node else 0)
            assert arrays.next_token[row, node] == (children if is_node and children else [-1])[0]
            assert arrays.next_sibling[row, node] == (siblings or [-1])[0]
        assert arrays.num_nodes[row] == len(tokens)


@given(rows=st.lists(trees(), max_size=4), spare=st.integers(0, 3), data=st.data())
@settings(max_examples=100, derandomize=True, database=None)
def test_the_best_nodes_of_each_row_are_a_tree_of_their_own(
    rows: list[tuple[list[int], list[int]]], spare: int, data: st.DataObject
) -> None:
    counts = [data.draw(st.integers(0, len(tokens) - 1)) for tokens, _ in rows]
    width = max(counts, default=0) + 1 + spare
    cut = build_tree_arrays(make_batch(rows), width, num_drafted=np.array(counts, np.int32))
    expected = build_tree_arrays(
        make_batch([(tokens[: n + 1], parents[: n + 1]) for n, (tokens, parents) in zip(counts, rows, strict=True)]),
        width,
    )
    for name in FIELDS:
        np.testing.assert_array_equal(getattr(cut, name), getattr(expected, name), err_msg=name)


@pytest.mark.parametrize(
    ("num_drafted", "width", "message"),
    [
        ([0, 12], 14, r"num_drafted must be in \[0, 11\] for row 1, got 12"),
        ([1, 3], 14, r"num_drafted must be in \[0, 0\] for row 0, got 1"),
        ([0, -1], 14, r"num_drafted must be in \[0, 11\] for row 1, got -1"),
        ([0, 4], 4, r"got 4 while row 1 has 5; .* raise width"),
        ([0], 14, r"num_drafted must have an entry for each of 2 rows, got 1"),
        ([0, 1, 1], 14, r"num_drafted must have an entry for each of 2 rows, got 3"),
        pytest.param([], 14, r"num_drafted must have an entry for each of 2 rows, got 0"),
    ],
)
def test_other_nodes_than_a_row_has_are_refused(num_drafted: list[int], width: int, message: str) -> None:
    batch = make_batch([([1], [-1]), TWELVE_NODES])
    buffers = TreeBuffers(2, 14)
    before = build_tree_arrays(batch, 14, buffers).mask.copy()
    with pytest.raises(ConfigError, match=message):
        build_tree_arrays(batch, width, buffers, num_drafted=np.array(num_drafted, np.int32))
    assert buffers.arrays(2, 14).mask.tolist() == before.tolist(), "what was built before is as it was"


def test_nodes_that_are_not_taken_need_not_fit() -> None:
    """Such nodes may exceed the width and have wrong parents."""
    batch = make_batch([([5, 6, 7], [-1, 0, 2])])
    arrays = build_tree_arrays(batch, 2, num_drafted=np.array([1], np.int32))
    assert arrays.tokens.tolist() == [[5, 6]]
    with pytest.raises(ConfigError, match="row 0: the root's parent must be -1"):
        build_tree_arrays(batch, 3, num_drafted=np.array([2], np.int32))


def test_too_narrow_a_width_is_refused() -> None:
    batch = make_batch([([1], [-1]), TWELVE_NODES])
    with pytest.raises(ConfigError, match=r"got 11 while row 1 has 12; .* raise width"):
        build_tree_arrays(batch, 11)


@pytest.mark.parametrize("width", [0, -1, 2.0, True])
def test_a_width_that_holds_no_root_is_refused(width: int) -> None:
    with pytest.raises(ConfigError, match=r"width must be an integer >= 1"):
        build_tree_arrays(make_batch([([1], [-1])]), width)


@pytest.mark.parametrize(
    "parents",
    [
        pytest.param([0, 0, 1], id="root with a parent"),
        pytest.param([-1, 2, 0], id="child before its parent"),
        pytest.param([-1, 1, 0], id="its own parent"),
        pytest.param([-1, -1, 0], id="two roots"),
    ],
)
def test_rows_that_are_no_trees_are_refused(parents: list[int]) -> None:
    with pytest.raises(ConfigError, match=r"row 0: the root's parent must be -1"):
        build_tree_arrays(make_batch([([5, 6, 7], parents)]), 4)


def test_offsets_that_do_not_fit_the_nodes_are_refused() -> None:
    good = make_batch([([5, 6], [-1, 0]), ([7], [-1])])
    for offsets in ([0, 2], [1, 3], [0, 2, 2, 3], [0, 5, 3], [0, -1, 3]):
        bad = DraftBatch(
            offsets=np.array(offsets, dtype=np.int32),
            tokens=good.tokens,
            parents=good.parents,
            estimates=good.estimates,
            sources=good.sources,
            match_lens=good.match_lens,
            scores=good.scores,
        )
        with pytest.raises(ConfigError, match=r"offsets must begin with 0|must have a root"):
            build_tree_arrays(bad, 4)


def test_row_gives_one_request_of_the_batch() -> None:
    batch = make_batch([([1], [-1]), TWELVE_NODES])
    assert batch.row(0).tokens.tolist() == [1]
    assert batch.row(1).parents.tolist() == TWELVE_NODES[1]
    assert (batch.row(-1).match_len, batch.row(-1).score) == (1, 0.5)
    with pytest.raises(IndexError, match=r"got 2"):
        batch.row(2)
