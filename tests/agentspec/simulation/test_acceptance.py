from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from agentspec.analysis.replay import Call, EngineSystem, replay
from agentspec.config import EngineConfig
from agentspec.errors import ConfigError
from agentspec.simulation import acceptance_at_rate, record_acceptance


def drawn_calls(seed: int) -> list[Call]:
    """Calls that repeat phrases, in sessions of two calls. The prompt of the second call holds the first call."""
    rng = np.random.default_rng(seed)
    phrases = [rng.integers(0, 50, 12).astype(np.int32) for _ in range(4)]
    calls = []
    for i in range(6):
        output = np.concatenate([phrases[j] for j in rng.integers(0, 4, 4)])
        parts = (np.full(3, 60 + i, np.int32),)
        if i % 2:
            before = calls[-1]
            parts = (*before.prompt_parts, before.output, np.array([7], np.int32))
        calls.append(Call(f"s{i // 2}", "t", "r", parts, output))
    return calls


@pytest.mark.parametrize("seed", range(4))
def test_walking_what_was_recorded_is_a_replay(seed: int) -> None:
    calls = drawn_calls(seed)
    # Estimates that learn would depend on which steps are taken.
    config = EngineConfig(max_draft_tokens=9, learning_rate=0.0)
    acceptance = record_acceptance("drawn", calls, config)
    system = EngineSystem("agentspec", 9)
    system.engine = type(system.engine)(config)
    sums = replay(calls, system, 9)
    steps = accepted = 0
    for i in range(len(acceptance)):
        place = acceptance.starts[i]
        while place < acceptance.starts[i + 1]:
            row = acceptance.drafts(np.array([place])).row(0)
            gained = int(acceptance.accepted[place, len(row.tokens) - 1])
            steps, accepted, place = steps + 1, accepted + gained, place + gained + 1
    assert (steps, accepted) == (sums.steps, sums.accepted) and accepted > 0
    assert acceptance.output_tokens.tolist() == [len(call.output) for call in calls]
    assert acceptance.prompt_tokens.tolist() == [len(call.prompt) for call in calls]


def test_prompts_that_go_on_are_cached() -> None:
    calls = drawn_calls(0)
    cached = record_acceptance("drawn", calls).cached_tokens
    assert cached.tolist() == [0, 51, 0, 51, 0, 51], "3 of the prompt and 48 of the output"


def test_drafts_are_cut_to_a_width() -> None:
    acceptance = record_acceptance("drawn", drawn_calls(1))
    places = np.array([20, 3, 40])
    whole, cut = acceptance.drafts(places), acceptance.drafts(places, 3)
    for i in range(3):
        row, short = whole.row(i), cut.row(i)
        assert short.estimates.tolist() == row.estimates[:3].tolist()
        assert short.parents.tolist() == row.parents[:3].tolist()
        assert short.estimates[0] == 1 and short.parents[0] == -1
    assert acceptance.drafts(places, 1).estimates.tolist() == [1, 1, 1]


def test_contradictions_are_refused() -> None:
    acceptance = acceptance_at_rate("0.5", 2, 4, 5, 3, 0)
    with pytest.raises(ConfigError, match="must fit each other"):
        replace(acceptance, starts=np.array([0, 4]))
