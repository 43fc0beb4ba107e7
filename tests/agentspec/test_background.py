"""The engine's own threads change when drafts begin to use a text, never what is drafted from it."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import get_args

import numpy as np
import pytest
from engine_texts import as_bytes, drafted, ids, keep, random_output
from every import every

from agentspec import Engine, EngineConfig
from agentspec.config import Rule

RULES = get_args(Rule)
LONG = 60_000  # tokens of a prompt whose index is still being built when the next call is made


def lead_same_life(engines: list[Engine], seed: int) -> None:
    """Gives all engines the same random operations. Their drafts must be equal whenever all text is indexed."""
    rng = random.Random(seed)
    names = ["a", "b"]
    phrases = [[rng.randrange(30) for _ in range(rng.randrange(3, 9))] for _ in range(8)]
    output_ids: list[list[int]] = [[] for _ in engines]
    is_open: list[str] = []

    def some_text(length: int) -> list[int]:
        return [t for _ in range(length) for t in rng.choice(phrases)][:length]

    for step in range(80):
        action = rng.choice(["open", "open", "extend", "extend", "close", "delete"])
        if action == "open" or not is_open:
            is_open.append(f"{step}")
            prompt, name = some_text(rng.randrange(1, 60)), rng.choice(names)
            for engine in engines:
                engine.open(is_open[-1], prompt, name)
        elif action == "extend":
            request_id, tokens = rng.choice(is_open), some_text(rng.randrange(12))
            for engine in engines:
                engine.extend(request_id, tokens)
        elif action == "close":
            request_id, kept = is_open.pop(rng.randrange(len(is_open))), rng.random() < 0.9
            for number, engine in enumerate(engines):
                output_ids[number].append(engine.close(request_id, kept) or 0)
        elif output_ids[0]:
            # An output has different ids in different engines.
            which = rng.randrange(len(output_ids[0]))
            done = {engine.delete_output(output_ids[number][which]) for number, engine in enumerate(engines)}
            assert len(done) == 1
        rows = [rng.choice(is_open) for _ in range(rng.randrange(8))] if is_open else []
        limit = rng.choice([None, 1, 5])
        for engine in engines:
            engine.flush()
        batches = {as_bytes(engine.draft(rows, max_tokens=limit)) for engine in engines}
        assert len(batches) == 1
    counts = {(s.outputs, s.output_tokens, s.waiting_outputs) for s in (engine.stats() for engine in engines)}
    assert len(counts) == 1
    for engine in engines:
        engine.check_integrity()


@every("rule", RULES)
@every("seed", range(3))
def test_drafts_are_the_same_with_threads_and_without(rule: Rule, seed: int) -> None:
    config = EngineConfig(rule=rule, max_growing_tokens=64, learning_rate=0.0)
    variants = [config, replace(config, background=True), replace(config, num_threads=2)]
    lead_same_life([Engine(variant) for variant in variants], seed)


def test_a_request_without_an_index_yet_has_its_root_only() -> None:
    rng = np.random.default_rng(1)
    engine = Engine(EngineConfig(background=True, rule="suffixdecoding"))
    keep(engine, ids(1, 2, 3))
    engine.flush()
    num_early = 0
    for step in range(20):
        # The second index is built after the first, which takes a while.
        engine.open(f"long-{step}", random_output(rng, LONG))
        engine.open(f"{step}", ids(1, 2))
        row = engine.draft([f"{step}"]).row(0)
        if row.tokens.tolist() == [2]:
            num_early += 1
            assert (row.match_len, row.score) == (0, 0.0)
        engine.flush()
        assert engine.draft([f"{step}"]).tokens.tolist() == [2, 3]
        engine.close(f"long-{step}", keep=False)
    assert num_early > 0


def test_what_is_said_while_an_index_is_built_is_indexed_too() -> None:
    rng = np.random.default_rng(2)
    prompt, output = random_output(rng, LONG, 1000), ids(*range(1000, 1400))
    engine, plain = Engine(EngineConfig(background=True)), Engine()
    engine.open("a", prompt)
    plain.open("a", prompt)
    for start in range(0, len(output), 4):
        for one in (engine, plain):
            one.extend("a", output[start : start + 4])
            one.draft(["a"], max_tokens=0)
    engine.flush()
    engine.check_integrity()
    assert engine.num_tokens("a") == len(prompt) + len(output)
    for one in (engine, plain):
        one.extend("a", output[:5])
    assert engine.draft(["a"]).tokens[1:3].tolist() == output[5:7].tolist()
    assert as_bytes(engine.draft(["a"])) == as_bytes(plain.draft(["a"]))


@pytest.mark.parametrize("kept", [True, False])
def test_a_request_can_be_closed_while_its_index_is_built(kept: bool) -> None:
    rng = np.random.default_rng(3)
    prompt = random_output(rng, LONG)
    engine = Engine(EngineConfig(background=True))
    for step in range(4):
        engine.open("a", prompt)
        engine.extend("a", ids(60, 61, 62 + step))
        engine.close("a", keep=kept)
        assert not engine.is_open("a")
    engine.flush()
    engine.check_integrity()
    stats = engine.stats()
    assert (stats.outputs, stats.open_requests, stats.waiting_outputs) == (4 if kept else 0, 0, 0)
    assert (stats.conversation_bytes > 0) == kept
    engine.open("b", ids(60, 61))
    engine.flush()
    assert set(engine.draft(["b"]).tokens[1:].tolist()) == ({62, 63, 64, 65} if kept else set())


def test_an_engine_can_go_while_it_works() -> None:
    rng = np.random.default_rng(5)
    for _ in range(5):
        engine = Engine(EngineConfig(background=True, max_growing_tokens=64))
        for step in range(30):
            keep(engine, random_output(rng, 200), f"{step % 3}")
        engine.open("a", random_output(rng, LONG))
        del engine


@every("total", [180_000, 1_000_000])
def test_whoever_waits_between_outputs_keeps_near_the_budget_and_loses_nothing_that_fits(total: int) -> None:
    """Outputs come faster than they are sealed, and take several times their final memory until then."""
    rng = np.random.default_rng(0)
    engine = Engine(EngineConfig(budget_bytes=4 << 20, background=True))
    for number in range(1, total // 500 + 1):
        engine.add("", number, rng.integers(0, 50_000, 500, dtype=np.int32), num_prompt_tail=0, time=1)
        if number % 16 == 0:
            engine.wait_indexed()
            assert engine.stats().global_bytes <= 6 << 20
    engine.flush()
    stats = engine.stats()
    assert stats.global_bytes <= 4 << 20
    assert (stats.evicted_outputs == 0) == (total == 180_000)


@pytest.mark.parametrize("background", [False, True])
def test_threads_may_share_an_engine(background: bool) -> None:
    engine = Engine(EngineConfig(budget_bytes=200_000, max_growing_tokens=64, background=background, num_threads=2))

    def work(number: int) -> None:
        rng = np.random.default_rng(number)
        for step in range(40):
            names = [f"{number}-{step}-{i}" for i in range(5)]
            for name in names:
                engine.open(name, random_output(rng, 50, 5), f"{number % 2}")
            for name in names:
                engine.extend(name, random_output(rng, 50, 5))
            assert len(engine.draft([*names, names[0]])) == 6
            output_ids = [engine.close(name) for name in names]
            if step % 8 == 0:
                assert engine.delete_output(output_ids[0] or 0) in (True, False)
            if step % 8 == 1:
                engine.check_integrity()

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))
    engine.flush()
    engine.check_integrity()
    stats = engine.stats()
    assert stats.outputs + stats.evicted_outputs <= 800
    assert (stats.open_requests, stats.waiting_outputs) == (0, 0)
    assert 0 < stats.global_bytes <= 200_000
    assert drafted(engine, ids(1)) == []
