"""Draws rollouts: several answers to each of some prompts, as reinforcement learning samples them.

Nothing here comes from a model. A prompt has a plan of steps, each with a few ways to say it. A rollout goes through the
plan, says some of it in its own words, goes back to what it said before, and ends after a number of tokens that varies
much: the longest of many rollouts has several times the usual length.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from itertools import cycle

import numpy as np

from agentspec.analysis.replay.traces import Call
from agentspec.errors import ConfigError

_VOCABULARY = 20_000
_PHRASE = (8, 40)
"""Least and greatest number of tokens of a phrase."""
_WAYS = (0.6, 0.25, 0.1, 0.05)
"""Probabilities of the ways to say a step."""
_PROMPT_TOKENS = 200
_PLAN_STEPS = 80


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutShape:
    """What rollouts are like.

    Raises:
        ConfigError: A field is out of range.
    """

    prompts: int = 8
    rollouts: int = 8
    """Of each prompt."""
    median_tokens: int = 800
    """Of a rollout; lengths are log-normal."""
    spread: float = 0.7
    """Standard deviation of the logarithm of lengths; half of its variance lies between prompts."""
    own_words: float = 0.25
    """Share of phrases that occur nowhere else."""
    repeats: float = 0.15
    """Share of phrases that the rollout has written before."""
    slips: float = 0.03
    """Share of tokens of a shared phrase that differ from it."""

    def __post_init__(self) -> None:
        if min(self.prompts, self.rollouts, self.median_tokens) < 1:
            raise ConfigError(
                "prompts, rollouts and median_tokens must be at least 1, got "
                f"{self.prompts}, {self.rollouts} and {self.median_tokens}"
            )
        shares = (self.own_words, self.repeats, self.slips)
        if min(*shares, self.spread) < 0 or self.own_words + self.repeats > 1 or self.slips > 1:
            raise ConfigError(f"shares and spread must be >= 0, and shares at most 1, got {shares} and {self.spread}")


def drawn_rollouts(shape: RolloutShape, seed: int) -> list[Call]:
    """The rollouts, those of a prompt one after another. A call's task is its prompt, and its session is its own."""
    draw = random.Random(f"rollouts/{seed}")
    calls = []
    for prompt in range(shape.prompts):
        plan = [[_phrase(draw) for _ in _WAYS] for _ in range(_PLAN_STEPS)]
        head = np.array(_tokens(draw, _PROMPT_TOKENS), np.int32)
        usual = shape.median_tokens * draw.lognormvariate(0.0, shape.spread * 0.5**0.5)
        for rollout in range(shape.rollouts):
            length = max(2, round(usual * draw.lognormvariate(0.0, shape.spread * 0.5**0.5)))
            calls.append(
                Call(
                    session=f"{prompt}/{rollout}",
                    task=str(prompt),
                    run="0",
                    prompt_parts=(head,),
                    output=np.array(_written(draw, plan, shape, length), np.int32),
                )
            )
    return calls


def _written(draw: random.Random, plan: list[list[list[int]]], shape: RolloutShape, length: int) -> list[int]:
    written: list[int] = []
    said: list[list[int]] = []
    steps = cycle(plan)
    while len(written) < length:
        kind = draw.random()
        if kind < shape.own_words:
            phrase = _phrase(draw)
        elif kind < shape.own_words + shape.repeats and said:
            phrase = draw.choice(said)
        else:
            (shared,) = draw.choices(next(steps), _WAYS)
            phrase = [_token(draw) if draw.random() < shape.slips else token for token in shared]
        said.append(phrase)
        written += phrase
    return written[:length]


def _phrase(draw: random.Random) -> list[int]:
    return _tokens(draw, draw.randint(*_PHRASE))


def _tokens(draw: random.Random, number: int) -> list[int]:
    return [_token(draw) for _ in range(number)]


def _token(draw: random.Random) -> int:
    # The few most frequent tokens make up much of a text.
    return int(_VOCABULARY * draw.random() ** 3)
