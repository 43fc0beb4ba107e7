"""Drafts in reused memory equal those in new memory; what is written where, and what memory is refused. test_drafts.py
draws trees in reused memory."""

from __future__ import annotations

import gc
import tracemalloc
from typing import Any

import numpy as np
import pytest
from engine_texts import as_bytes, followed, ids, keep, make_batch, random_output
from every import every
from numpy.typing import NDArray

from agentspec import (
    ConfigError,
    DraftBuffers,
    Engine,
    EngineConfig,
    Outcome,
    TreeBuffers,
    UnknownRequestError,
    build_tree_arrays,
)
from agentspec._core import Rows


def opened(num_requests: int = 4, **changes: Any) -> Engine:
    """An engine with requests "0", "1", ... that all have something to draft."""
    rng = np.random.default_rng(5)
    engine = Engine(EngineConfig(**{"max_draft_tokens": 7, **changes}))
    outputs = [random_output(rng, 200) for _ in range(3)]
    for output in outputs:
        keep(engine, output)
    for number in range(num_requests):
        engine.open(f"{number}", np.concatenate([outputs[number % 3], outputs[(number + 1) % 3][: 20 + number]]))
    return engine


# Trees ------------------------------------------------------------------------------------------------------------


def test_a_step_s_arrays_lie_together_at_the_front() -> None:
    buffers = TreeBuffers(max_rows=3, max_width=4)
    arrays = build_tree_arrays(make_batch([([7, 8], [-1, 0]), ([5], [-1])]), 2, buffers)
    blocks = [arrays.tokens, arrays.depths, arrays.next_token, arrays.next_sibling]
    assert buffers.memory[:16].tolist() == np.stack(blocks).ravel().tolist()
    assert buffers.memory[:4].tolist() == [7, 8, 5, 0]
    assert buffers.memory[16:17].view(np.bool_).tolist() == arrays.mask.ravel().tolist()
    assert buffers.num_bytes(2, 2) == 17 * 8 and not buffers.memory[17:].any(), "nothing else is written"


@pytest.mark.parametrize(("rows", "width"), [(3, 2), (2, 4), (3, 4)])
def test_trees_beyond_the_memory_are_refused_and_change_nothing(rows: int, width: int) -> None:
    buffers = TreeBuffers(max_rows=2, max_width=3)
    before = build_tree_arrays(make_batch([([4, 5], [-1, 0])]), 3, buffers)
    batch = make_batch([([1], [-1])] * rows)
    with pytest.raises(ConfigError, match=rf"room for {rows} rows of {width} nodes, got TreeBuffers\(2, 3\); make"):
        build_tree_arrays(batch, width, buffers)
    with pytest.raises(ConfigError, match="must be -1"):
        build_tree_arrays(make_batch([([6, 7], [0, 0])]), 3, buffers)
    assert before.tokens.tolist() == [[4, 5, 0]]


@every("size", [0, -1, 1.0, True, "2"])
def test_sizes_of_buffers_are_checked(size: Any) -> None:
    with pytest.raises(ConfigError, match="max_rows must be an integer >= 1"):
        TreeBuffers(size, 4)
    with pytest.raises(ConfigError, match="max_width must be an integer >= 1"):
        TreeBuffers(4, size)
    with pytest.raises(ConfigError, match="max_rows must be an integer >= 1"):
        DraftBuffers(size, 4)
    if size != 0:
        with pytest.raises(ConfigError, match="max_tokens must be an integer >= 0"):
            DraftBuffers(4, size)


def test_memory_may_come_from_the_caller() -> None:
    given_out: list[NDArray[Any]] = []

    def allocate(size: int, dtype: type[np.generic]) -> NDArray[Any]:
        given_out.append(np.full(size, 1, dtype))
        return given_out[-1]

    buffers = TreeBuffers(2, 3, allocate)
    batch = make_batch([([4, 5], [-1, 0])])
    arrays = build_tree_arrays(batch, 3, buffers)
    expected = build_tree_arrays(batch, 3)
    for name in ("tokens", "depths", "mask", "next_token", "next_sibling", "num_nodes"):
        np.testing.assert_array_equal(getattr(arrays, name), getattr(expected, name), err_msg=name, strict=True)
        assert any(np.shares_memory(getattr(arrays, name), memory) for memory in given_out), name


@pytest.mark.parametrize(
    "allocate",
    [
        lambda size, dtype: np.zeros(size + 1, dtype),
        lambda size, dtype: np.zeros(2 * size, dtype)[::2],
        lambda size, dtype: np.zeros(size, np.int16),
        lambda size, dtype: np.broadcast_to(np.zeros(1, dtype), size),
    ],
    ids=["too long", "strided", "another type", "read only"],
)
def test_memory_of_another_kind_is_refused(allocate: Any) -> None:
    with pytest.raises(ConfigError, match=r"allocate must return a contiguous, writable int64\[27\]"):
        TreeBuffers(2, 3, allocate)


# Drafts -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("num_threads", [1, 2])
def test_used_memory_gives_the_drafts_that_new_memory_gives(num_threads: int) -> None:
    engine, buffers = opened(num_threads=num_threads, learning_rate=0.0), DraftBuffers(max_rows=6, max_tokens=7)
    rng = np.random.default_rng(6)
    sizes = set()
    for _ in range(100):
        rows = [f"{number}" for number in rng.integers(0, 4, rng.integers(0, 7))]
        most = int(rng.integers(0, 8))
        batch = engine.draft_followed(followed(engine, rows), max_tokens=most, out=buffers)
        assert as_bytes(batch) == as_bytes(engine.draft(rows, max_tokens=most))
        sizes.add(len(batch.tokens))
        if rows:
            engine.extend(rows[0], batch.row(0).tokens[1:3])
    assert len(sizes) > 10, "the batches were of many sizes"


def test_drafts_beyond_the_memory_are_refused_and_change_nothing() -> None:
    engine, buffers = opened(), DraftBuffers(max_rows=2, max_tokens=3)
    rows = followed(engine, ["0", "1"])
    before = engine.draft_followed(rows, out=buffers, max_tokens=3)
    written = [before.tokens, buffers.outcomes, buffers.ends, buffers.rooms]
    expected = [values.copy() for values in written]
    with pytest.raises(
        ConfigError, match=r"room for 2 rows of 10 nodes in all, .* 2 rows of 8 nodes; make larger ones"
    ):
        engine.draft_followed(rows, out=buffers, max_tokens=4)
    with pytest.raises(ConfigError, match="ends"):
        engine.draft_followed(engine.rows(["2", "3", "1"]), out=buffers, max_tokens=0)
    for got, kept in zip(written, expected, strict=True):
        np.testing.assert_array_equal(got, kept)


def test_a_draft_of_fewer_rows_leaves_the_rest_of_what_is_told_as_it_was() -> None:
    engine, buffers = opened(), DraftBuffers(max_rows=3, max_tokens=7)
    engine.draft_followed(followed(engine, "012"), out=buffers, max_tokens=7)
    ends, rooms = buffers.ends.tolist(), buffers.rooms.tolist()
    assert ends == [engine.num_tokens(name) - 1 for name in "012"] and rooms == [7] * 3
    engine.draft_followed(followed(engine, "3"), out=buffers, max_tokens=2)
    assert buffers.ends.tolist() == [engine.num_tokens("3") - 1, *ends[1:]]
    assert buffers.rooms.tolist() == [2, 7, 7]


@pytest.mark.parametrize("request_id", ["ä", "\N{SNOWMAN}" * 20, "", "a\0b"], ids=ascii)
def test_ids_of_all_kinds_are_found(request_id: str) -> None:
    engine = Engine()
    engine.open(request_id, ids(1, 2, 3, 1, 2))
    assert engine.draft([request_id]).tokens[:2].tolist() == [2, 3]
    with pytest.raises(UnknownRequestError):
        engine.draft([request_id + "x"])


def test_ids_that_are_no_strings_are_refused() -> None:
    with pytest.raises(TypeError):
        Engine().draft([7])  # type: ignore[list-item]


# Memory -----------------------------------------------------------------------------------------------------------


def test_no_step_takes_memory_that_grows_with_the_batch() -> None:
    """A step allocates only views of the buffers, whatever the size of the batch."""
    engine = opened(64, max_draft_tokens=31, learning_rate=0.0)
    drafts, arrays = DraftBuffers(64, 31), TreeBuffers(64, 32)

    def step(rows: Rows) -> int:
        tracemalloc.reset_peak()
        before = tracemalloc.get_traced_memory()[0]
        build_tree_arrays(engine.draft_followed(rows, max_tokens=31, out=drafts), 32, arrays)
        return tracemalloc.get_traced_memory()[1] - before

    def peak(num_rows: int) -> int:
        rows = followed(engine, [f"{number}" for number in range(num_rows)])
        return min(step(rows) for _ in range(5))

    gc.collect()
    tracemalloc.start()
    try:
        small, large = peak(1), peak(64)
    finally:
        tracemalloc.stop()
    # The trees of the large batch take 130 KB.
    assert large - small <= 512, (small, large)


def test_the_engine_says_what_became_of_each_row() -> None:
    engine, buffers = Engine(EngineConfig(min_token_prob=0.3, vocab_size=1000)), DraftBuffers(8, 31)
    engine.open("old", ids(5, 6))
    engine.extend("old", ids(7, 8, 9, 7, 20, 7, 21, 7, 22, 7, 23, 7, 24, 7, 25))
    engine.close("old")
    engine.open("alone", ids(1, 2, 3), namespace="other")
    engine.open("drafted", ids(4, 5, 6))
    engine.open("full", ids(4, 5, 6), max_length=4)
    engine.open("unlikely", ids(40, 7))
    engine.open("unknown", ids(100, 200))
    rows = {
        "drafted": Outcome.DRAFTED,
        "alone": Outcome.NO_OUTPUTS,
        "full": Outcome.NO_ROOM,
        "unlikely": Outcome.UNLIKELY,
        "unknown": Outcome.NO_MATCH,
    }
    batch = engine.draft_followed(followed(engine, list(rows)), max_tokens=31, out=buffers)
    assert buffers.outcomes[: len(rows)].tolist() == list(rows.values())
    assert (np.diff(batch.offsets) > 1).tolist() == [outcome == Outcome.DRAFTED for outcome in rows.values()]
