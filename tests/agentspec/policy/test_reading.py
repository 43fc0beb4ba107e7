"""Prompts are read while drafts from them save more than reading takes, and again when that changes."""

from __future__ import annotations

import math

import numpy as np
import pytest

from agentspec import ConfigError
from agentspec.policy import PromptReading, ZeroLengthReading, prompt_rule
from agentspec.policy.selection import Times, saving


def run(reading: PromptReading, requests: int, *, saved: float, spent: float, steps: int = 10) -> None:
    for _ in range(requests):
        reading.observe_prompts(spent)
        for _ in range(steps):
            reading.observe_step(saved, 1)


def test_it_reads_until_it_knows_better() -> None:
    assert PromptReading().pays()


def test_it_follows_what_drafts_save() -> None:
    reading = PromptReading()
    run(reading, 200, saved=0.0, spent=0.002)
    assert not reading.pays()
    run(reading, 60, saved=0.001, spent=0.002)
    assert reading.pays(), "drafts would save five times what reading takes"
    run(reading, 200, saved=0.0001, spent=0.002)
    assert not reading.pays()


def test_an_endless_saving_is_never_outweighed() -> None:
    reading = PromptReading()
    reading.observe_step(math.inf, 1)
    reading.observe_prompts(1e9)
    assert reading.pays()


def test_what_a_step_would_save() -> None:
    times = Times(verify=10.0, verify_model=11.0, draft=2.0, draft_row=0.5, catch_up=1.0, catch_up_token=0.0)
    suffix, model = np.array([0.0, 4.0]), np.array([3.0, 3.0])
    # The first row gains 3 tokens; without the drafter 6 tokens take 10.
    assert saving(suffix, model, times) == 9.0 / 6.0 * 10.0 - (11.0 + 2.0 + 1.0 + 0.5)
    assert saving(np.array([3.0, 4.0]), model, times) == 0.0


def test_prompts_are_read_unless_most_of_the_latest_steps_had_no_draft() -> None:
    reading = ZeroLengthReading()
    assert reading.pays()
    for length in [0] * 70 + [3] * 30:
        reading.observe_step(0.0, length)
    assert reading.pays(), "just the threshold"
    for length in [0] * 70 + [0]:
        reading.observe_step(0.0, length)
    assert not reading.pays()
    for _ in range(30):
        reading.observe_step(0.0, 1)
    assert reading.pays()
    with pytest.raises(ConfigError, match="got 1.5"):
        ZeroLengthReading(1.5)


@pytest.mark.parametrize(("name", "reads"), [("payoff", False), ("zero-length", False), ("always", True)])
def test_rules_by_name(name: str, reads: bool) -> None:
    rule = prompt_rule(name)
    assert rule.pays(), "nothing is known yet"
    for _ in range(200):
        rule.observe_prompts(1.0)
        rule.observe_step(0.0, 0)
    assert rule.pays() == reads


def test_an_unknown_rule_is_refused() -> None:
    with pytest.raises(ConfigError, match="one of payoff, zero-length, always, got 'never'"):
        prompt_rule("never")
