"""Outputs from elsewhere, and the ids by which they are known."""

from __future__ import annotations

import numpy as np
import pytest
from engine_texts import as_bytes, ids, random_output

from agentspec import ConfigError, Engine, EngineConfig, TokenError, request_hash


@pytest.mark.parametrize("background", [False, True])
def test_an_added_output_is_as_if_it_had_been_closed_here(background: bool) -> None:
    rng = np.random.default_rng(0)
    config = EngineConfig(max_growing_tokens=64, prompt_tail=4, learning_rate=0.0, background=background)
    closed, added = Engine(config), Engine(config)
    for step in range(30):
        prompt, output, namespace = random_output(rng, 8, 5), random_output(rng, 20, 5), "ab"[step % 2]
        closed.open("a", prompt, namespace)
        closed.extend("a", output)
        output_id = closed.close("a") or 0
        tokens = np.concatenate([prompt, output])
        assert added.add(namespace, output_id, tokens, num_prompt_tail=len(prompt), time=1_700_000_000 + step)
    for engine in (closed, added):
        engine.flush()
        engine.check_integrity()
    assert closed.stats().output_tokens == added.stats().output_tokens == 30 * 20
    assert sorted(closed.namespaces(), key=lambda n: n.name) == sorted(added.namespaces(), key=lambda n: n.name)
    for step in range(20):
        text = random_output(rng, 6, 5)
        for engine in (closed, added):
            engine.open(f"{step}", text, "ab"[step % 2])
            engine.flush()
        assert as_bytes(closed.draft([f"{step}"])) == as_bytes(added.draft([f"{step}"]))


def test_an_output_that_waits_is_not_added_again() -> None:
    engine = Engine(EngineConfig(background=True))
    # The output waits while the long prompt is indexed.
    engine.open("long", random_output(np.random.default_rng(0), 300_000))
    assert engine.add("a", 7, ids(1, 2, 3), num_prompt_tail=0, time=0)
    assert not engine.add("a", 7, ids(1, 2, 3), num_prompt_tail=0, time=0)
    # A deleted id may be added again, even with another text.
    assert engine.delete_output(7)
    assert engine.add("b", 7, ids(1, 2, 4), num_prompt_tail=0, time=0)
    engine.flush()
    assert [(stats.name, stats.num_outputs) for stats in engine.namespaces()] == [("b", 1)]
    assert engine.stats().waiting_outputs == 0
    engine.open("asked", ids(1, 2), "b")
    engine.flush()
    assert engine.draft(["asked"]).tokens.tolist() == [2, 4]


def test_what_is_wrong_with_an_output_is_said() -> None:
    engine = Engine(EngineConfig(vocab_size=10))
    for tokens, num_prompt_tail in ((ids(1, 10), 0), (ids(1, -1), 0), (ids(1, 2), 3), (ids(1, 2), -1)):
        with pytest.raises(TokenError, match=r"got (10|-1|3)"):
            engine.add("", 7, tokens, num_prompt_tail=num_prompt_tail, time=0)
    for output_id in (0, -1, 2**64):
        with pytest.raises(ConfigError, match=r"output_id must be in \[1, 2\*\*64\)"):
            engine.add("", output_id, ids(1), num_prompt_tail=0, time=0)
    for time in (2**63, 0.5):
        with pytest.raises(ConfigError, match="time must be an integer"):
            engine.add("", 7, ids(1), num_prompt_tail=0, time=time)  # type: ignore[arg-type]
    assert engine.stats().outputs == 0


def test_an_output_id_names_its_request() -> None:
    output_ids = set()
    for _ in range(2):
        engine = Engine()
        for request_id in ("a", "", "été", "a"):
            engine.open(request_id, ids(1))
            engine.extend(request_id, ids(2))
            output_id = engine.close(request_id)
            assert output_id is not None
            assert output_id >> 32 == request_hash(request_id)
            output_ids.add(output_id)
    assert len(output_ids) == 8
