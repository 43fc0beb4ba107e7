"""The rule "calibrated" drafts what the brute-force oracle says, over growing and sealed text."""

from __future__ import annotations

import random
from typing import get_args

import calibrated_oracle as oracle
import numpy as np
import pytest

from agentspec import Engine, EngineConfig
from agentspec.config import Mode
from agentspec.estimates import NUM_WEIGHTS, Estimates


class Life:
    """An engine and a namespace of the oracle, which get the same random outputs."""

    def __init__(self, seed: int, vocab_size: int, mode: Mode) -> None:
        self.rng = rng = random.Random(seed)
        # Random weights tell slots, lengths and ages apart better than sensible ones.
        self.weights = np.random.default_rng(seed).normal(0.0, 0.6, NUM_WEIGHTS).astype(np.float32)
        if seed % 3 == 0:
            self.weights = Estimates.default().weights
        self.config = EngineConfig(
            vocab_size=vocab_size,
            max_pattern=rng.choice([3, 8, 64]),
            min_token_prob=rng.choice([0.0, 0.02, 0.1]),
            mode=mode,
            max_draft_tokens=rng.choice([4, 12]),
            prompt_tail=rng.choice([0, 5]),
            max_growing_tokens=rng.choice([64, 200]),
            conversation_bytes=0,
            learning_rate=0.0,
            estimates=Estimates(self.weights),
        )
        self.engine = Engine(self.config)
        self.namespace = oracle.Namespace(self.config.max_growing_tokens)
        # Token 0 ends every phrase, as a comma might.
        self.phrases = [[rng.randrange(vocab_size) for _ in range(rng.randrange(2, 9))] + [0] for _ in range(7)]
        self.num_checked = 0
        self.num_unpredictable = 0

    def text(self, length: int) -> list[int]:
        tokens = [t for _ in range(length) for t in self.rng.choice(self.phrases)][:length]
        noise = self.config.vocab_size or 1
        return [self.rng.randrange(noise) if self.rng.random() < 0.07 else t for t in tokens]

    def request(self, request_id: str) -> None:
        prompt, output = self.text(self.rng.randrange(1, 50)), []
        self.engine.open(request_id, prompt)
        for _ in range(self.rng.randrange(1, 5)):
            tokens = self.text(self.rng.randrange(1, 12))
            self.engine.extend(request_id, tokens)
            output += tokens
            self.check(request_id, prompt + output)
        self.engine.close(request_id)
        self.namespace.add(prompt[max(len(prompt) - self.config.prompt_tail, 0) :] + output)
        stats = self.engine.stats()
        assert stats.segments == len(self.namespace.sealed)

    def check(self, request_id: str, text: list[int]) -> None:
        cap = self.rng.choice([0, 3, 12])
        row = self.engine.draft([request_id], max_tokens=cap).row(0)
        self.num_checked += 1
        try:
            oracle.check_draft(self.config, self.weights, text, self.namespace.parts(), cap, row)
        except oracle.Unpredictable:
            self.num_unpredictable += 1


@pytest.mark.parametrize("vocab_size", [4, 9, 40])
@pytest.mark.parametrize("mode", get_args(Mode))
@pytest.mark.parametrize("seed", range(4))
def test_drafts_are_what_counting_gives(seed: int, mode: Mode, vocab_size: int) -> None:
    life = Life(seed, vocab_size, mode)
    for number in range(18):
        life.request(f"{number}")
    assert life.namespace.sealed
    assert life.num_unpredictable < life.num_checked / 4
