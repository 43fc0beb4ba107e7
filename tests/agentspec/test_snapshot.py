"""Snapshots hold all outputs of a namespace, each once, and another engine drafts the same from them."""

from __future__ import annotations

import gc
from typing import get_args

import numpy as np
import pytest
from engine_texts import as_bytes, drafted, ids, keep, random_output
from every import every
from numpy.typing import NDArray

from agentspec import ConfigError, Engine, EngineConfig, SegmentError, Snapshot
from agentspec.config import Rule

RULES = get_args(Rule)
TAIL = 4


def ids_of(snapshot: Snapshot) -> list[int]:
    """Ids of all outputs, oldest first."""
    sealed = [output_id for segment in snapshot.segments for output_id in segment.output_ids.tolist()]
    return [*sealed, *snapshot.unsealed.tolist()]


class Source:
    """An engine with a namespace of many parts, and the outputs that were added to it."""

    def __init__(self, rule: Rule = "calibrated", background: bool = False, seed: int = 0) -> None:
        self.config = EngineConfig(
            rule=rule, max_growing_tokens=64, prompt_tail=TAIL, learning_rate=0.0, background=background
        )
        self.rng = np.random.default_rng(seed)
        self.engine = Engine(self.config)
        self.outputs: dict[int, NDArray[np.int32]] = {}
        # The first output is too long for the others to be merged with it.
        self.add(1, 80_000)
        self.engine.flush()
        for output_id in range(2, 51):
            self.add(output_id)

    def add(self, output_id: int, max_length: int = 40) -> None:
        self.outputs[output_id] = random_output(self.rng, TAIL + int(self.rng.integers(max_length // 2, max_length)), 5)
        self.engine.add("a", output_id, self.outputs[output_id], num_prompt_tail=TAIL, time=output_id)

    def copy(self, snapshot: Snapshot) -> Engine:
        engine = Engine(self.config)
        taken = engine.load_segments("a", [segment.blob.tobytes() for segment in snapshot.segments])
        assert taken.tolist() == ids_of(snapshot)[: len(taken)]
        for output_id in snapshot.unsealed.tolist():
            assert engine.add("a", output_id, self.outputs[output_id], num_prompt_tail=TAIL, time=output_id)
        engine.flush()
        return engine


@every("background", [False, True])
@every("rule", RULES)
@every("seed", range(3))
def test_another_engine_drafts_alike(rule: Rule, seed: int, background: bool) -> None:
    source = Source(rule, background, seed)
    for output_id in source.rng.choice(np.arange(2, 51), 7, replace=False).tolist():
        assert source.engine.delete_output(output_id)
        source.add(output_id + 100)
    source.engine.flush()
    snapshot = source.engine.snapshot("a")
    assert len(ids_of(snapshot)) == 50 and len(snapshot.segments) > 1
    copy = source.copy(snapshot)
    copy.check_integrity()
    for step in range(30):
        text = random_output(source.rng, 8, 5)
        for engine in (source.engine, copy):
            engine.open(f"{step}", text, "a")
            engine.flush()
        assert as_bytes(source.engine.draft([f"{step}"])) == as_bytes(copy.draft([f"{step}"]))
    assert ids_of(copy.snapshot("a")) == ids_of(snapshot)


def test_a_snapshot_tells_what_is_in_its_segments() -> None:
    source = Source()
    source.add(51, 4)
    snapshot = source.engine.snapshot("a")
    assert len(snapshot.segments) > 1 and len(snapshot.unsealed) > 0
    assert ids_of(snapshot) == list(range(1, 52))
    for segment in snapshot.segments:
        assert segment.times.tolist() == segment.output_ids.tolist()
        assert segment.num_tokens == sum(len(source.outputs[i]) - TAIL for i in segment.output_ids.tolist())
    assert source.engine.snapshot("none").segments == ()
    assert source.engine.snapshot("none").unsealed.tolist() == []


def test_blobs_are_views_that_outlive_their_engine() -> None:
    source = Source()
    (first, *_), (again, *_) = (source.engine.snapshot("a").segments for _ in range(2))
    assert np.shares_memory(first.blob, again.blob)
    assert not first.blob.flags.writeable
    data = first.blob.tobytes()
    del source, again
    gc.collect()
    assert first.blob.tobytes() == data
    assert Engine().load_segments("a", [first.blob]).tolist() == first.output_ids.tolist()


def test_names_tell_segments_apart_in_any_engine() -> None:
    names = [[s.name for s in Source(seed=seed).engine.snapshot("a").segments] for seed in (0, 0, 1)]
    assert names[0] == names[1]
    assert not set(names[0]) & set(names[2])
    assert all(len(name) == 32 and int(name, 16) >= 0 for name in names[0])
    # Segments with the same text have different names if the output's id or time differs.
    engines = [Engine(EngineConfig(max_growing_tokens=64)) for _ in range(3)]
    for engine, output_id, time in zip(engines, (1, 2, 1), (5, 5, 6), strict=True):
        engine.add("a", output_id, np.arange(70, dtype=np.int32), num_prompt_tail=0, time=time)
    assert len({engine.snapshot("a").segments[0].name for engine in engines}) == 3


def test_what_waits_is_unsealed() -> None:
    engine = Engine(EngineConfig(background=True, max_growing_tokens=64))
    engine.open("long", random_output(np.random.default_rng(0), 300_000))
    for output_id in (9, 3, 5):
        engine.add("a", output_id, ids(*range(100)), num_prompt_tail=0, time=0)
    engine.add("b", 4, ids(1), num_prompt_tail=0, time=0)
    assert engine.stats().waiting_outputs == 4
    assert engine.snapshot("a").unsealed.tolist() == [9, 3, 5]
    engine.flush()
    snapshot = engine.snapshot("a")
    assert (ids_of(snapshot), len(snapshot.unsealed)) == ([9, 3, 5], 0)


def test_a_snapshot_is_whole_at_any_moment() -> None:
    """Snapshots are taken while parts are sealed, merged and rewritten."""
    engine = Engine(EngineConfig(background=True, max_growing_tokens=64))
    rng = np.random.default_rng(0)
    expected: list[int] = []
    for number in range(1, 400):
        engine.add("a", number, random_output(rng, 30, 5), num_prompt_tail=0, time=0)
        expected.append(number)
        if number % 9 == 0:
            victim = expected.pop(int(rng.integers(0, len(expected))))
            assert engine.delete_output(victim)
        snapshot = engine.snapshot("a")
        assert sorted(ids_of(snapshot)) == expected


def test_loaded_segments_come_before_what_is_there() -> None:
    source = Source()
    snapshot = source.engine.snapshot("a")
    engine = Engine(source.config)
    engine.add("a", 900, random_output(source.rng, 80, 5), num_prompt_tail=0, time=900)
    engine.load_segments("a", [segment.blob for segment in snapshot.segments])
    sealed = [i for s in snapshot.segments for i in s.output_ids.tolist()]
    assert ids_of(engine.snapshot("a")) == [*sealed, 900]
    engine.check_integrity()


@pytest.mark.parametrize("background", [False, True])
def test_what_is_known_is_left_out(background: bool) -> None:
    source = Source()
    blobs = [bytearray(segment.blob) for segment in source.engine.snapshot("a").segments]
    sealed = [i for s in source.engine.snapshot("a").segments for i in s.output_ids.tolist()]
    engine = Engine(EngineConfig(max_growing_tokens=64, prompt_tail=TAIL, background=background))
    known = {sealed[0], sealed[3], sealed[-1], 2**64 - 1}
    expected = [i for i in sealed if i not in known]
    # A segment that is given twice is loaded once.
    assert engine.load_segments("a", [*blobs, blobs[0]], known=known).tolist() == expected
    engine.flush()
    engine.check_integrity()
    assert ids_of(engine.snapshot("a")) == expected
    assert engine.load_segments("a", blobs, known=np.array(sealed, np.uint64)).tolist() == []
    assert engine.load_segments("b", blobs, known=sealed).tolist() == []
    assert [stats.name for stats in engine.namespaces()] == ["a"]


def test_segments_are_loaded_all_or_none() -> None:
    source = Source()
    blobs = [bytearray(segment.blob) for segment in source.engine.snapshot("a").segments]
    damaged = bytearray(blobs[-1])
    damaged[len(damaged) // 2] ^= 1
    foreign = Engine(EngineConfig(max_growing_tokens=64, tokenizer="another"))
    keep(foreign, random_output(source.rng, 80), "a")
    (other,) = (segment.blob for segment in foreign.snapshot("a").segments)
    engine = Engine(source.config)
    for wrong, said in ((damaged, "damaged"), (b"", "not a segment"), (blobs[0][:-1], "truncated"), (other, "foreign")):
        with pytest.raises(SegmentError, match=rf"segment {len(blobs) + 1} of {len(blobs) + 1} .*{said}"):
            engine.load_segments("a", [*blobs, wrong])
        assert engine.namespaces() == []
    with pytest.raises(ConfigError, match=r"uint8\[n\], got str"):
        engine.load_segments("a", ["text"])  # type: ignore[list-item]
    with pytest.raises(ConfigError, match="known must be in"):
        engine.load_segments("a", blobs, known=[-1])
    assert engine.load_segments("a", []).tolist() == []
    assert drafted(engine, ids(1, 2), "a") == []
