"""Steps in which some rows are not drafted for."""

from __future__ import annotations

from array import array
from types import SimpleNamespace

import numpy as np
import pytest

from agentspec import DraftBatch, Source, build_tree_arrays
from agentspec.integrations.sglang.rows import last_token, roots_only, spread

#   drafted for row 1:   5 ── 6 ── 7      and row 3:   8 ─┬─ 9
#                                                         └─ 1
DRAFTS = DraftBatch(
    offsets=np.array([0, 3, 6], np.int32),
    tokens=np.array([5, 6, 7, 8, 9, 1], np.int32),
    parents=np.array([-1, 0, 1, -1, 0, 0], np.int32),
    estimates=np.array([1, 0.9, 0.8, 1, 0.5, 0.4], np.float32),
    sources=np.array([0, 1, 1, 0, 2, 2], np.uint8),
    match_lens=np.array([4, 2], np.int32),
    scores=np.array([1.7, 0.9], np.float32),
)


def test_trees_go_to_their_rows_and_the_others_keep_their_root() -> None:
    batch = spread(DRAFTS, rows=[1, 3], roots=np.array([2, 5, 3, 8], np.int32))
    assert batch.offsets.tolist() == [0, 1, 4, 5, 8]
    assert batch.tokens.tolist() == [2, 5, 6, 7, 3, 8, 9, 1]
    assert batch.parents.tolist() == [-1, -1, 0, 1, -1, -1, 0, 0]
    assert batch.sources.tolist() == [0, 0, 1, 1, 0, 0, 2, 2]
    assert batch.match_lens.tolist() == [0, 4, 0, 2]
    assert batch.scores.tolist() == pytest.approx([0, 1.7, 0, 0.9])
    # The result is a batch like any other.
    assert build_tree_arrays(batch, 3).num_nodes.tolist() == [1, 3, 1, 3]


def test_rows_without_drafts_hold_their_roots() -> None:
    batch = roots_only(np.array([4, 7], np.int32))
    assert batch.tokens.tolist() == [4, 7]
    assert batch.sources.tolist() == [Source.ROOT] * 2
    assert build_tree_arrays(batch, 1).tokens.tolist() == [[4], [7]]


@pytest.mark.parametrize(
    ("output", "tail", "expected"),
    [([], [], 3), ([10, 11], [], 11), ([10, 11], [12, 13], 13), ([], [12], 12)],
    ids=["only a prompt", "processed", "relayed", "first token relayed"],
)
def test_the_root_is_the_last_token_that_exists(output: list[int], tail: list[int], expected: int) -> None:
    request = SimpleNamespace(origin_input_ids=array("q", [1, 2, 3]), output_ids=array("q", output))
    assert last_token(request, tail) == expected
