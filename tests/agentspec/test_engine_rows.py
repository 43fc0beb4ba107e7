"""The rows of a batch are looked up once, and then behave like requests that are named one by one."""

from __future__ import annotations

import numpy as np
import pytest
from drafting_steps import table
from engine_texts import as_bytes, followed
from every import every

from agentspec import ConfigError, DraftBuffers, Engine, EngineConfig
from agentspec.drafts import Outcome

VOCABULARY = 6


def _engine(learning_rate: float = 0.03, num_threads: int = 1) -> Engine:
    return Engine(
        EngineConfig(
            vocab_size=VOCABULARY,
            max_draft_tokens=12,
            min_token_prob=0.02,
            learning_rate=learning_rate,
            num_threads=num_threads,
        )
    )


@every("num_threads", [1, 3])
@every("seed", range(6))
def test_rows_do_what_requests_named_one_by_one_do(seed: int, num_threads: int) -> None:
    rng = np.random.default_rng(seed)
    named, batched = _engine(), _engine(num_threads=num_threads)
    texts: dict[str, list[int]] = {}
    limits: dict[str, int] = {}
    opened = 0
    out = DraftBuffers(64, 12)
    for _ in range(25):
        for _ in range(int(rng.integers(0, 12))):
            request_id = f"r{opened}"
            opened += 1
            prompt = rng.integers(0, VOCABULARY, int(rng.integers(1, 40)), dtype=np.int32)
            limit = len(prompt) + int(rng.integers(0, 40))
            namespace = f"n{rng.integers(2)}"
            named.open(request_id, prompt, namespace)
            batched.open(request_id, prompt, namespace, max_length=limit)
            texts[request_id], limits[request_id] = prompt.tolist(), limit
        for request_id in [name for name in texts if rng.random() < 0.15]:
            keep = bool(rng.random() < 0.7)
            for engine in (named, batched):
                engine.close(request_id, keep)
            del texts[request_id]
        ids = [name for name in texts if rng.random() < 0.9]
        rows = batched.rows(ids)
        for _ in range(int(rng.integers(1, 4))):
            tokens = [rng.integers(0, VOCABULARY, int(rng.integers(0, 5))).tolist() for _ in ids]
            for name, some in zip(ids, tokens, strict=True):
                named.extend(name, some)
                texts[name] += some
            ends = np.array([len(texts[name]) - 1 for name in ids], np.int64)
            assert batched.follow(rows, table(tokens, 5), ends) == 0
            batched.learn(rows)
            most = int(rng.integers(0, 13))
            caps = [max(min(most, limits[name] - len(texts[name]) - 1), 0) for name in ids]
            expected = named.draft(ids, max_tokens=np.array(caps, np.int32))
            found = batched.draft_followed(rows, out=out, max_tokens=most)
            assert as_bytes(found) == as_bytes(expected)
            assert out.ends[: len(ids)].tolist() == ends.tolist()
            assert out.rooms[: len(ids)].tolist() == caps
            for engine in (named, batched):
                engine.check_integrity()


def test_a_row_that_ends_elsewhere_neither_grows_nor_is_drafted_for() -> None:
    engine = _engine()
    for name in ("a", "b"):
        engine.open(name, [1, 2, 3, 1, 2])
    rows, out = engine.rows(["a", "b"]), DraftBuffers(2, 12)
    assert engine.follow(rows, table([[3], [3]], 1), np.array([5, 6])) == 0
    assert [engine.num_tokens(name) for name in ("a", "b")] == [6, 5]
    drafts = engine.draft_followed(rows, out=out, max_tokens=12)
    assert drafts.row(0).tokens[:3].tolist() == [3, 1, 2]
    assert drafts.row(1).tokens.tolist() == [2], "its own last token"
    assert out.outcomes.tolist() == [Outcome.DRAFTED, Outcome.OTHER_TEXT]
    assert out.ends.tolist() == [5, 6], "what was reported"


def test_a_request_that_is_closed_is_passed_over_also_where_its_id_comes_back() -> None:
    engine = _engine()
    engine.open("a", [1, 2, 1])
    rows, out = engine.rows(["a", "never"]), DraftBuffers(2, 12)
    engine.close("a")
    engine.open("a", [4])
    assert engine.follow(rows, table([[2], [2]], 1), np.array([3, 3])) == 0
    engine.learn(rows)
    assert engine.num_tokens("a") == 1
    drafts = engine.draft_followed(rows, out=out, max_tokens=12)
    assert drafts.tokens.tolist() == [0, 0]
    assert out.outcomes.tolist() == [Outcome.NOT_OPEN, Outcome.NOT_OPEN]


def test_learning_later_teaches_the_same() -> None:
    at_once, later = _engine(0.2), _engine(0.2)
    for engine in (at_once, later):
        engine.open("a", [1, 2, 3, 4] * 6)
    rows, out = followed(later, ["a"]), DraftBuffers(1, 12)
    for token in [1, 2, 5, 1, 2, 3]:
        at_once.draft(["a"])
        later.draft_followed(rows, out=out, max_tokens=12)
        at_once.extend("a", [token])
        later.follow(rows, table([[token]], 1), np.array([later.num_tokens("a")]))
    before = later.estimates().weights
    later.learn(rows)
    assert not np.array_equal(before, later.estimates().weights)
    np.testing.assert_array_equal(at_once.estimates().weights, later.estimates().weights)


def test_arrays_of_another_batch_are_refused() -> None:
    engine = _engine()
    engine.open("a", [1])
    rows, out = engine.rows(["a"]), DraftBuffers(1, 12)
    one = np.array([1])
    with pytest.raises(ConfigError, match=r"accepted must be \[1, width\]"):
        engine.follow(rows, table([[1], [1]], 1), one)
    with pytest.raises(ConfigError, match="ends"):
        engine.follow(rows, table([[1]], 1), np.array([1, 1]))
    with pytest.raises(ConfigError, match="padding"):
        engine.follow(rows, table([[1]], 1), one, np.array([1, 1]))
    with pytest.raises(ConfigError, match="padding"):
        engine.draft_followed(rows, out=out, padding=np.zeros(0, np.int64), max_tokens=12)
    with pytest.raises(ConfigError, match="max_tokens must be >= 0"):
        engine.draft_followed(rows, out=out, max_tokens=-1)
    with pytest.raises(ConfigError, match="ends"):
        engine.draft_followed(engine.rows(["a", "a"]), out=out, max_tokens=12)
    with pytest.raises(ConfigError, match="max_length"):
        engine.open("b", [1], max_length=-1)
