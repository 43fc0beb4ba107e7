"""Many outputs are deleted at once, by their request or by their age, wherever they are stored."""

from __future__ import annotations

import random

import numpy as np
import pytest
from engine_texts import as_bytes, ids, keep, random_output

from agentspec import ConfigError, Engine, EngineConfig

LONG = 300_000  # number of tokens of a prompt whose indexing makes outputs wait


def text_of(number: int) -> np.ndarray:
    """A text of 20 tokens. Its first three tokens identify it."""
    return np.arange(100 * number, 100 * number + 20, dtype=np.int32)


def add(engine: Engine, number: int, *, request: int, time: int) -> None:
    assert engine.add("a", (request << 32) + number + 1, text_of(number), num_prompt_tail=0, time=time)


def found(engine: Engine, numbers: list[int]) -> list[int]:
    """The numbers of those texts that are still drafted."""
    result = []
    for number in numbers:
        engine.open("asked", text_of(number)[:3], "a")
        engine.flush()
        if len(engine.draft(["asked"]).tokens) > 1:
            result.append(number)
        engine.close("asked", keep=False)
    return result


@pytest.mark.parametrize("how", ["request", "expire"])
def test_what_waits_goes_too(how: str) -> None:
    engine = Engine(EngineConfig(background=True))
    for number in range(4):
        add(engine, number, request=1, time=1)
    engine.flush()
    engine.open("long", random_output(np.random.default_rng(0), LONG))
    engine.open("now", ids(7), "a")
    engine.extend("now", text_of(50))
    for number in range(4, 8):
        add(engine, number, request=1 + number % 2, time=1 + number % 2)
    engine.close("now")
    assert engine.stats().waiting_outputs == 5
    assert (engine.delete_request("a", "now") if how == "request" else engine.expire("a", 2)) == (
        1 if how == "request" else 6
    )
    engine.flush()
    engine.check_integrity()
    expected = list(range(8)) if how == "request" else [5, 7, 50]
    assert found(engine, [*range(8), 50]) == expected


def test_drafts_are_as_if_the_deleted_had_never_been() -> None:
    """Counts, ages and order are the same, once nothing is left to rewrite."""
    for seed in range(10):
        rng, choose = np.random.default_rng(seed), random.Random(seed)
        config = EngineConfig(max_growing_tokens=2**24, min_token_prob=0.0)
        engine, never = Engine(config), Engine(config)
        for number in range(40):
            output, time, request = random_output(rng, 20, 4), choose.randrange(4), choose.randrange(1, 5)
            output_id = (request << 32) + number
            engine.add("", output_id, output, num_prompt_tail=2, time=time)
            if time >= 2 and number % 7:
                never.add("", output_id, output, num_prompt_tail=2, time=time)
            if number % 7 == 0:
                assert engine.delete_output(output_id)
            if number % 10 == 9:
                engine.expire("", 2)
        for step in range(20):
            text = random_output(rng, 5, 4)
            for one in (engine, never):
                one.open(f"{step}", text)
            assert as_bytes(engine.draft([f"{step}"])) == as_bytes(never.draft([f"{step}"]))


def test_deleted_text_leaves_memory() -> None:
    """A segment is rewritten without the deleted text even if nothing else happens."""
    for background in (False, True):
        engine = Engine(EngineConfig(max_growing_tokens=64, background=background))
        rng = np.random.default_rng(0)
        outputs = [random_output(rng, 70) + np.int32(100_000) for _ in range(4)]
        for number, output in enumerate(outputs):
            engine.add("a", number + 1, output, num_prompt_tail=0, time=number)
        engine.flush()
        (before,) = engine.snapshot("a").segments
        assert engine.expire("a", 2) == 2
        engine.flush()
        (after,) = engine.snapshot("a").segments
        assert [output.tobytes() in before.blob.tobytes() for output in outputs] == [True] * 4
        assert [output.tobytes() in after.blob.tobytes() for output in outputs] == [False, False, True, True]


def test_conversations_of_the_namespace_are_dropped_and_of_no_other() -> None:
    rng = np.random.default_rng(0)
    histories = {name: random_output(rng, 400) for name in "ab"}

    def filled() -> tuple[Engine, int]:
        engine = Engine()
        for name, history in histories.items():
            engine.open(f"turn {name}", history, name)
            engine.extend(f"turn {name}", ids(1, 2, 3))
            output_id = engine.close(f"turn {name}") or 0
        return engine, output_id

    for how in range(4):
        engine, output_id = filled()
        if how == 0:
            assert engine.delete_output(output_id)
        elif how == 1:
            assert engine.delete_request("b", "turn b") == 1
        elif how == 2:
            assert engine.expire("b", 2**62) == 1
        else:
            assert engine.delete_namespace("b")
        for name, history in histories.items():
            engine.open(f"next {name}", np.concatenate([history, ids(1, 2, 3, 4)]), name)
            assert engine.stats().spared_tokens == 403, "only what is in 'a' spares"


def test_times_out_of_range_are_refused() -> None:
    engine = Engine()
    keep(engine, ids(1, 2))
    for before in (2**63, 1.5, "1"):
        with pytest.raises(ConfigError, match="before must be an integer"):
            engine.expire("", before)  # type: ignore[arg-type]
    assert engine.stats().outputs == 1
