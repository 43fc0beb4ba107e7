"""What is deleted is never drafted again, wherever it stood: growing, sealed, waiting, merging, or in a conversation."""

from __future__ import annotations

from typing import get_args

import numpy as np
import pytest
from engine_texts import drafted, ids, keep, random_output
from numpy.typing import NDArray

from agentspec import Engine, EngineConfig
from agentspec.config import Rule

RULES = get_args(Rule)
# Each output has a vocabulary of its own, so that a drafted token shows where it is from. No output repeats a token.
VOCABULARY = 40


def output_of(rng: np.random.Generator, number: int) -> NDArray[np.int32]:
    return rng.permutation(VOCABULARY).astype(np.int32) + np.int32(100 + number * VOCABULARY)


def owners(tokens: list[int]) -> set[int]:
    return {(token - 100) // VOCABULARY for token in tokens}


def few_segments(rule: Rule, background: bool = False) -> Engine:
    return Engine(EngineConfig(rule=rule, max_growing_tokens=64, min_token_prob=0.0, background=background))


def test_deletion_is_seen_by_requests_that_draft_on() -> None:
    """An output of the same length takes the place of the deleted one. No match may be carried over between them."""
    rng = np.random.default_rng(0)
    engine = Engine(EngineConfig(min_token_prob=0.0))
    keep(engine, output_of(rng, 0))
    first, second = output_of(rng, 1), output_of(rng, 2)
    output_id = keep(engine, first)
    engine.open("a", first[:5])
    assert owners(engine.draft(["a"]).tokens.tolist()) == {1}
    assert engine.delete_output(output_id)
    keep(engine, second)
    assert engine.draft(["a"]).tokens.tolist() == [first[4]]
    engine.extend("a", second[:5])
    assert owners(engine.draft(["a"]).tokens[1:].tolist()) == {2}


@pytest.mark.parametrize("rule", RULES)
def test_a_waiting_output_can_be_deleted(rule: Rule) -> None:
    rng = np.random.default_rng(0)
    engine = few_segments(rule, background=True)
    for number in range(20):
        # The output waits while the long prompt is indexed.
        engine.open("long", random_output(rng, 50_000))
        output_id = keep(engine, output_of(rng, number))
        engine.close("long", keep=False)
        assert engine.delete_output(output_id)
        assert not engine.delete_output(output_id)
    engine.flush()
    stats = engine.stats()
    assert (stats.outputs, stats.waiting_outputs) == (0, 0)
    engine.check_integrity()


@pytest.mark.parametrize("rule", RULES)
def test_deletion_survives_a_running_merge(rule: Rule) -> None:
    rng = np.random.default_rng(1)
    engine = few_segments(rule, background=True)
    outputs = [output_of(rng, number) for number in range(150)]
    deleted: set[int] = set()
    for number in range(2 * len(outputs)):
        engine.open(f"{number}", ids(1))
    engine.flush()
    for number, output in enumerate(outputs):
        assert engine.add("", number + 1, output, num_prompt_tail=0, time=number)
        if number % 3 == 0:
            victim = int(rng.integers(0, number + 1))
            assert engine.delete_output(victim + 1) == (victim not in deleted)
            deleted.add(victim)
            engine.extend(f"{number}", outputs[victim][:4])
            assert engine.draft([f"{number}"]).tokens[1:].tolist() == []
        if number % 40 == 39:
            expired = set(range(number - 60)) - deleted
            assert engine.expire("", number - 60) == len(expired)
            deleted |= expired
            engine.check_integrity()
    engine.flush()
    engine.check_integrity()
    assert engine.stats().outputs == len(outputs) - len(deleted)
    for number, output in enumerate(outputs):
        reader = f"{number + len(outputs)}"
        engine.extend(reader, output[:4])
        assert owners(engine.draft([reader]).tokens[1:].tolist()) == (set() if number in deleted else {number})


@pytest.mark.parametrize("background", [False, True])
def test_a_deleted_namespace_is_gone_and_others_stay(background: bool) -> None:
    rng = np.random.default_rng(2)
    engine = few_segments("calibrated", background)
    outputs = [output_of(rng, number) for number in range(12)]
    for number, output in enumerate(outputs):
        keep(engine, output, "ab"[number % 2])
    engine.open("a", ids(1), "a")
    assert engine.delete_namespace("a")
    assert not engine.delete_namespace("a")
    assert not engine.delete_namespace("never there")
    engine.flush()
    engine.check_integrity()
    stats = engine.stats()
    assert (stats.namespaces, stats.outputs, stats.open_requests) == (1, 6, 1)
    engine.open("b", ids(1), "b")
    engine.flush()
    for number, output in enumerate(outputs):
        for name in ("a", "b"):
            engine.extend(name, output[:4])
            found = owners(engine.draft([name]).tokens[1:].tolist())
            assert found == ({number} if name == "ab"[number % 2] == "b" else set())


@pytest.mark.parametrize("background", [False, True])
def test_clear_leaves_nothing(background: bool) -> None:
    rng = np.random.default_rng(3)
    engine = few_segments("calibrated", background)
    for number in range(30):
        keep(engine, output_of(rng, number), "ab"[number % 2])
        if number % 10 == 9:
            engine.clear()
            stats = engine.stats()
            assert (stats.outputs, stats.namespaces, stats.global_bytes, stats.waiting_outputs) == (0, 0, 0, 0)
    engine.flush()
    stats = engine.stats()
    assert (stats.outputs, stats.namespaces, stats.global_bytes, stats.conversation_bytes) == (0, 0, 0, 0)
    engine.check_integrity()


def test_copies_of_a_deleted_output_are_gone_too() -> None:
    rng = np.random.default_rng(5)
    engine = few_segments("calibrated")
    outputs = [output_of(rng, number) for number in range(5)]
    output_ids = [keep(engine, output, "a") for output in outputs]
    engine.flush()
    blobs = [segment.blob for segment in engine.snapshot("a").segments]
    for namespace in ("a", "a", "b"):
        assert engine.load_segments(namespace, blobs).tolist() == output_ids[:4], "the last one still grows"
    assert engine.delete_output(output_ids[2])
    assert not engine.delete_output(output_ids[2])
    for namespace in ("a", "b"):
        assert drafted(engine, outputs[2][:5], namespace) == []
        assert owners(drafted(engine, outputs[3][:5], namespace)) == {3}
    assert engine.stats().outputs == 4 + 3 * 3
    engine.check_integrity()


@pytest.mark.parametrize("how", ["output", "namespace", "clear"])
def test_nothing_deleted_comes_back_from_a_conversation(how: str) -> None:
    """A request may go on with an earlier turn's index, in which a rewritten answer still stands."""
    rng = np.random.default_rng(4)
    engine = Engine(EngineConfig(min_token_prob=0.0))
    history, answer, news = random_output(rng, 640), output_of(rng, 0), random_output(rng, 100) + np.int32(50)
    engine.open("turn 1", history, "a")
    engine.extend("turn 1", answer)
    output_id = engine.close("turn 1") or 0
    prediction = random_output(rng, 100) + np.int32(1000)
    engine.open("turn 2", np.concatenate([history, news]), "a", prediction=prediction)
    assert engine.stats().spared_tokens == 640
    engine.extend("turn 2", history[-8:])
    assert 0 in owners(engine.draft(["turn 2"]).tokens[1:].tolist())
    if how == "output":
        assert engine.delete_output(output_id)
    elif how == "namespace":
        assert engine.delete_namespace("a")
    else:
        engine.clear()
    tokens = engine.draft(["turn 2"]).tokens[1:].tolist()
    assert tokens[0] == news[0] and 0 not in owners(tokens)
    engine.extend("turn 2", news[:8])
    assert engine.draft(["turn 2"]).tokens[1:4].tolist() == news[8:11].tolist()
    # A match in the prediction is not the one of the index before, which was longer.
    engine.extend("turn 2", prediction[50:54])
    assert engine.draft(["turn 2"]).tokens[1:4].tolist() == prediction[54:57].tolist()
    engine.close("turn 2")
    engine.open("turn 3", np.concatenate([history, answer[:4]]), "a")
    assert 0 not in owners(engine.draft(["turn 3"]).tokens[1:].tolist())
    engine.check_integrity()
