"""No draft ever has a token of another namespace.

Each namespace has a vocabulary of its own, and every token of every draft is checked, during everything that moves text
from one place to another: sealing, merging, eviction, deletion, conversations, threads.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
from engine_texts import drafted, ids
from every import every

from agentspec import Engine, EngineConfig
from agentspec.analysis.corpus import build_corpus
from agentspec.config import Rule

NAMESPACES = ["", "a", "b", "ab"]
VOCABULARY = 6


class Life:
    """Random operations on an engine. All namespaces use the same texts, each in its own tokens."""

    def __init__(self, config: EngineConfig, seed: int) -> None:
        self.rng = random.Random(seed)
        self.engine = Engine(config)
        self.config = config
        self.open: dict[str, tuple[int, list[int]]] = {}
        self.ended: list[tuple[int, list[int]]] = []  # namespace and text of closed requests, for their next turns
        self.output_ids: list[int] = []
        self.num_drafted = [0] * len(NAMESPACES)
        self.num_opened = 0
        self.most_segments = 0
        # All namespaces use the same phrases, so what one of them writes would suit the others well.
        self.phrases = [[self.rng.randrange(VOCABULARY) for _ in range(5)] for _ in range(6)]

    def text(self, namespace: int, length: int) -> list[int]:
        tokens = [t for _ in range(length) for t in self.rng.choice(self.phrases)][:length]
        return [namespace * VOCABULARY + token for token in tokens]

    def step(self) -> None:
        weights = {"open": 20, "turn": 10, "extend": 40, "close": 30, "delete": 3, "all": 1}
        (action,) = self.rng.choices(list(weights), list(weights.values()))
        if action == "open" or not self.open:
            namespace = self.rng.randrange(len(NAMESPACES))
            self.start(namespace, self.text(namespace, self.rng.randrange(1, 50)))
        elif action == "turn" and self.ended:
            # The prompt continues a text or rewrites its end.
            namespace, text = self.rng.choice(self.ended)
            if self.rng.random() < 0.4:
                text = text[: self.rng.randrange(1, len(text) + 1)]
            self.start(namespace, text + self.text(namespace, self.rng.randrange(100)))
        elif action == "extend":
            request_id = self.rng.choice(sorted(self.open))
            self.extend(request_id, self.text(self.open[request_id][0], self.rng.randrange(30)))
        elif action == "close":
            request_id = self.rng.choice(sorted(self.open))
            namespace, text = self.open.pop(request_id)
            self.output_ids.append(self.engine.close(request_id, self.rng.random() < 0.9) or 0)
            self.ended = [*self.ended[-10:], (namespace, text)]
        elif action == "delete" and self.output_ids:
            self.engine.delete_output(self.rng.choice(self.output_ids))
        elif action == "all":
            if self.rng.random() < 0.7:
                self.engine.delete_namespace(self.rng.choice(NAMESPACES))
            else:
                self.engine.clear()
        self.draft()
        stats = self.engine.stats()
        assert self.config.background or stats.global_bytes <= self.config.budget_bytes
        self.most_segments = max(self.most_segments, stats.segments)

    def start(self, namespace: int, prompt: list[int]) -> None:
        self.num_opened += 1
        request_id = f"{self.num_opened}"
        self.engine.open(request_id, np.array(prompt, dtype=np.int32), NAMESPACES[namespace])
        self.open[request_id] = (namespace, list(prompt))

    def extend(self, request_id: str, tokens: list[int]) -> None:
        self.engine.extend(request_id, np.array(tokens, dtype=np.int32))
        self.open[request_id][1].extend(tokens)

    def draft(self) -> None:
        request_ids = sorted(self.open)
        batch = self.engine.draft(request_ids)
        for i, request_id in enumerate(request_ids):
            namespace, text = self.open[request_id]
            tokens = batch.row(i).tokens
            assert tokens[0] == text[-1]
            assert set((tokens // VOCABULARY).tolist()) == {namespace}, f"{NAMESPACES[namespace]!r} got {tokens}"
            self.num_drafted[namespace] += len(tokens) - 1


@every("background", [False, True])
@every("rule", get_args(Rule))
@every("seed", range(4))
def test_no_draft_has_a_token_of_another_namespace(rule: Rule, seed: int, background: bool) -> None:
    config = EngineConfig(
        rule=rule,
        vocab_size=VOCABULARY * len(NAMESPACES),
        # The budget is small enough to evict in every second run.
        budget_bytes=[20_000, 1 << 24][seed % 2],
        conversation_bytes=1 << 20,
        max_growing_tokens=64,
        min_token_prob=0.0,
        max_pattern=[4, 64][seed // 2],
        background=background,
        num_threads=1 + seed % 2,
    )
    life = Life(config, seed)
    for number in range(1, 501):
        life.step()
        # A starved thread would index nothing before it is deleted.
        if background and number % 50 == 0:
            life.engine.flush()
    life.engine.flush()
    life.draft()
    life.engine.check_integrity()
    stats = life.engine.stats()
    assert all(life.num_drafted)
    assert stats.spared_tokens > 0
    if not background:
        assert life.most_segments > 2
        assert (stats.evicted_outputs > 0) == (seed % 2 == 0)


@pytest.mark.parametrize("rule", get_args(Rule))
def test_a_text_that_another_namespace_has_written_brings_nothing_of_it(rule: Rule) -> None:
    """A request may claim any text as its prompt: the whole of a conversation of another namespace, or a part of it."""
    engine = Engine(EngineConfig(rule=rule, vocab_size=100, min_token_prob=0.0, conversation_bytes=1 << 20))
    prompt, output, more = ids(1, 2, 3, 4, 5), ids(10, 11, 12, 13), ids(20, 21, 22)
    for text in ([prompt, output], [np.concatenate([prompt, output]), more]):
        engine.open("owner", text[0], "a")
        engine.extend("owner", text[1])
        engine.close("owner", True)
    conversation = np.concatenate([prompt, output, more])
    for length in range(1, len(conversation)):
        claimed = conversation[:length]
        for namespace in NAMESPACES:
            found = set(drafted(engine, claimed, namespace)) - set(claimed.tolist())
            assert not found or namespace == "a", f"{namespace!r} got {found} of 'a' after {claimed}"
    assert set(drafted(engine, prompt, "a")) & {10, 11, 12, 13}, "the owner itself is drafted for"


def test_a_corpus_is_drafted_from_only_where_it_is_attached(tmp_path: Path) -> None:
    engine = Engine(EngineConfig(vocab_size=100, min_token_prob=0.0))
    own, common = tmp_path / "own", tmp_path / "common"
    build_corpus(own, [ids(1, 2, 50, 51)], vocab_size=100, tokenizer="")
    build_corpus(common, [ids(1, 2, 60, 61)], vocab_size=100, tokenizer="")
    engine.attach_corpus(own, ["a"])
    engine.attach_corpus(common)
    for namespace in NAMESPACES:
        expected = {60, 61} | ({50, 51} if namespace == "a" else set())
        assert set(drafted(engine, ids(9, 1, 2), namespace)) == expected
    engine.attach_corpus(own, ["b"])
    assert set(drafted(engine, ids(9, 1, 2), "a")) == {60, 61}
    engine.open("stays", ids(9, 1, 2), "b")
    assert set(engine.draft(["stays"]).tokens[1:].tolist()) == {50, 51, 60, 61}
    assert engine.detach_corpus(common)
    assert not engine.detach_corpus(common)
    assert set(engine.draft(["stays"]).tokens[1:].tolist()) == {50, 51}
    assert drafted(engine, ids(9, 1, 2), "a") == []
