"""The tensors of a step against their definition, row by row."""

from __future__ import annotations

import numpy as np
import pytest

from agentspec import DraftBatch, Source, build_tree_arrays

torch = pytest.importorskip("torch", reason="needs torch: run `make setup`")
from agentspec.integrations.sglang.verify_input import grammar_mask, verify_tensors

#   row 0:   7 ─┬─ 8 ── 9        row 1:   5 (its root alone)
#               └─ 4
BATCH = DraftBatch(
    offsets=np.array([0, 4, 5], np.int32),
    tokens=np.array([7, 8, 9, 4, 5], np.int32),
    parents=np.array([-1, 0, 1, 0, -1], np.int32),
    estimates=np.ones(5, np.float32),
    sources=np.array([Source.ROOT, Source.REQUEST, Source.REQUEST, Source.REQUEST, Source.ROOT], np.uint8),
    match_lens=np.array([3, 0], np.int32),
    scores=np.array([2.0, 0.0], np.float32),
)
SEQ_LENS = np.array([3, 1], np.int64)


def test_tokens_positions_and_links() -> None:
    tensors = verify_tensors(build_tree_arrays(BATCH, 4), SEQ_LENS, max_position=100, full_mask=False, device="cpu")
    assert tensors.tokens.tolist() == [7, 8, 9, 4, 5, 0, 0, 0]
    assert tensors.positions.tolist()[:5] == [3, 4, 5, 4, 1]
    assert tensors.retrieve_index.tolist() == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert tensors.next_token.tolist() == [[1, 2, -1, -1], [-1] * 4]
    assert tensors.next_sibling.tolist() == [[-1, 3, -1, -1], [-1] * 4]


def test_no_position_lies_past_the_context() -> None:
    tensors = verify_tensors(build_tree_arrays(BATCH, 4), SEQ_LENS, max_position=3, full_mask=False, device="cpu")
    assert int(tensors.positions.max()) == 3


def test_the_full_mask_puts_each_row_s_prefix_before_its_tree() -> None:
    arrays = build_tree_arrays(BATCH, 4)
    expected = []
    for row, seq_len in enumerate(SEQ_LENS.tolist()):
        for node in range(4):
            expected += [True] * seq_len + arrays.mask[row, node].tolist()
    tensors = verify_tensors(arrays, SEQ_LENS, max_position=100, full_mask=True, device="cpu")
    assert tensors.mask.tolist() == expected


def test_the_short_mask_is_the_trees_alone() -> None:
    arrays = build_tree_arrays(BATCH, 4)
    tensors = verify_tensors(arrays, SEQ_LENS, max_position=100, full_mask=False, device="cpu")
    assert tensors.mask.tolist() == arrays.mask.ravel().tolist()


def test_no_grammar_is_walked_through_padding() -> None:
    arrays = build_tree_arrays(BATCH, 4)
    mask = grammar_mask(arrays)
    assert mask[0].tolist() == arrays.mask[0].tolist(), "a full row has no padding"
    for node in (1, 2, 3):
        assert np.flatnonzero(mask[1, node]).tolist() == [node], "padding has no parent"
    assert mask[1, 0, 0]
