"""What turns of a conversation share: the index of the last turn, and the end of a prompt before its answer."""

from __future__ import annotations

from typing import get_args

import numpy as np
import pytest
from engine_texts import as_bytes, drafted, ids, random_output
from numpy.typing import NDArray

from agentspec import Engine, EngineConfig
from agentspec.config import Rule

RULES = get_args(Rule)


def turn(engine: Engine, prompt: NDArray[np.int32], output: NDArray[np.int32], namespace: str = "") -> int:
    """Runs one whole request. Returns the number of prompt tokens that an earlier turn spared it from indexing."""
    before = engine.stats().spared_tokens
    engine.open("turn", prompt, namespace)
    engine.extend("turn", output)
    engine.close("turn")
    return engine.stats().spared_tokens - before


@pytest.mark.parametrize("rule", RULES)
def test_a_turn_that_goes_on_drafts_as_a_fresh_engine_does(rule: Rule) -> None:
    rng = np.random.default_rng(1)
    # Without a global index only the requests' own texts can make a difference.
    config = EngineConfig(rule=rule, budget_bytes=0, max_pattern=8, learning_rate=0.0)
    engine = Engine(config)
    history = random_output(rng, 30, 4)
    spared = 0
    for _ in range(6):
        fresh = Engine(config)
        engine.open("a", history)
        fresh.open("a", history)
        assert engine.stats().spared_tokens == spared
        for _ in range(8):
            assert as_bytes(engine.draft(["a"])) == as_bytes(fresh.draft(["a"]))
            tokens = random_output(rng, int(rng.integers(1, 5)), 4)
            engine.extend("a", tokens)
            fresh.extend("a", tokens)
            history = np.concatenate([history, tokens])
        engine.check_integrity()
        engine.close("a")
        spared += len(history)
        history = np.concatenate([history, random_output(rng, 10, 4)])


@pytest.mark.parametrize("rule", RULES)
def test_a_rewritten_history_drafts_from_both(rule: Rule) -> None:
    rng = np.random.default_rng(2)
    engine = Engine(EngineConfig(rule=rule))
    history, answer, news = np.arange(640, dtype=np.int32), ids(*range(700, 740)), ids(*range(800, 900))
    turn(engine, history, answer)
    assert turn(engine, np.concatenate([history, news]), random_output(rng, 20) + np.int32(900)) == 640
    engine.open("a", np.concatenate([history, news[:90]]), "")
    assert engine.stats().spared_tokens == 1280
    # Drafts continue the request's own text, and also the answer that was rewritten.
    engine.extend("a", ids(5, 6, 7))
    assert engine.draft(["a"]).tokens[1:4].tolist() == [8, 9, 10]
    engine.extend("a", news[50:54])
    assert engine.draft(["a"]).tokens[1:4].tolist() == news[54:57].tolist()
    engine.extend("a", answer[:4])
    assert engine.draft(["a"]).tokens[1:4].tolist() == answer[4:7].tolist()
    engine.check_integrity()


def test_a_conversation_stays_in_its_namespace() -> None:
    rng = np.random.default_rng(4)
    history, answer, news = random_output(rng, 640), random_output(rng, 40), random_output(rng, 80)
    engine = Engine(EngineConfig(budget_bytes=0))
    turn(engine, history, answer, "a")
    for prompt in (np.concatenate([history, answer, news]), np.concatenate([history, news])):
        assert turn(engine, prompt, news, "b") == 0
        engine.delete_namespace("b")
    assert turn(engine, np.concatenate([history, answer, news]), news, "a") == 680


def test_what_is_not_kept_spares_nothing() -> None:
    rng = np.random.default_rng(5)
    history = random_output(rng, 100)
    engine = Engine()
    engine.open("a", history)
    engine.close("a", keep=False)
    assert engine.stats().conversation_bytes == 0
    assert turn(engine, np.concatenate([history, history]), history) == 0


def test_a_short_common_beginning_spares_nothing() -> None:
    history, news = np.arange(640, dtype=np.int32), np.arange(700, 1400, dtype=np.int32)
    for shared, spared in ((255, 0), (320, 0), (384, 384), (639, 576)):
        engine = Engine()
        turn(engine, history, ids(1))
        assert turn(engine, np.concatenate([history[:shared], news]), ids(2)) == spared


def test_the_budget_keeps_the_last_conversations() -> None:
    rng = np.random.default_rng(6)
    histories = [random_output(rng, 400) for _ in range(8)]
    none = Engine(EngineConfig(conversation_bytes=0))
    few = Engine(EngineConfig(conversation_bytes=120_000))
    for history in histories:
        for engine in (none, few):
            turn(engine, history, ids(1))
        assert few.stats().conversation_bytes <= 120_000
    for number in reversed(range(8)):
        prompt = np.concatenate([histories[number], ids(1, 2)])
        none.open(f"{number}", prompt)
        few.open(f"{number}", prompt)
    assert none.stats().conversation_bytes == none.stats().spared_tokens == 0
    num_kept, rest = divmod(few.stats().spared_tokens, 401)
    assert (0 < num_kept < 8, rest) == (True, 0)
    # The conversations that requests took out of the cache are open again, and the cache is empty.
    assert few.stats().conversation_bytes == 0


@pytest.mark.parametrize("rule", RULES)
def test_an_answer_matches_across_the_end_of_its_prompt(rule: Rule) -> None:
    prompt, answer = np.arange(40, dtype=np.int32), ids(90, 91, 92)
    with_tail, without = (Engine(EngineConfig(rule=rule, prompt_tail=n, min_token_prob=0.0)) for n in (4, 0))
    for engine in (with_tail, without):
        engine.open("a", prompt)
        engine.extend("a", answer)
        engine.close("a")
        assert engine.stats().output_tokens == 3
    assert drafted(with_tail, ids(99, 38, 39)) == answer.tolist()
    assert drafted(without, ids(99, 38, 39)) == []
    assert drafted(with_tail, ids(99, 34, 35)) == []
    assert drafted(without, ids(99, 90)) == [91, 92]
