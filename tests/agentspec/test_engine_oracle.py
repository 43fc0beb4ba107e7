"""The engine drafts what the brute-force oracle drafts, after whatever was done to it before; deleted outputs are as if
they had never been."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from agentspec import DraftBatch, Engine, EngineConfig, Source, request_hash


@dataclass
class Tree:
    """A draft. Node 0 is the root; its token is the request's last token."""

    tokens: list[int]
    parents: list[int] = field(default_factory=lambda: [-1])
    estimates: list[float] = field(default_factory=lambda: [1.0])
    source: Source = Source.ROOT
    match_len: int = 0
    score: float = 0.0


END = -1
"""Marks the end of a finished output. It counts as a continuation but is never drafted."""

Continuations = dict[int, tuple[int, tuple[int, int]]]  # token -> (count, last place), where a place is (text, end)


def continuations(texts: Sequence[Sequence[int]], string: Sequence[int]) -> Continuations:
    """Counts how often each token follows the string, and finds the last place. Later texts are more recent."""
    found: Continuations = {}
    for number, text in enumerate(texts):
        for start in range(len(text) - len(string)):
            end = start + len(string)
            if list(text[start:end]) == list(string):
                found[text[end]] = (found.get(text[end], (0,))[0] + 1, (number, end))
    return found


def grow(config: EngineConfig, texts: Sequence[Sequence[int]], pattern: Sequence[int], size: int) -> Tree:
    """Grows the tree of one pattern in one source, one node at a time, by the best estimate."""
    tree = Tree([pattern[-1]], match_len=len(pattern))
    strings = [list(pattern)]
    candidates: list[tuple[float, tuple[int, int], int, int]] = []
    while len(tree.tokens) <= size:
        parent = len(tree.tokens) - 1
        found = continuations(texts, strings[parent])
        total = sum(count for count, _ in found.values())
        if config.mode == "chain":
            candidates = []
        for token, (count, place) in found.items():
            if token == END:
                continue
            candidates.append((tree.estimates[parent] * (count / total), place, -parent, token))
        candidates = [candidate for candidate in candidates if candidate[0] >= config.min_token_prob]
        if not candidates:
            break
        best = max(candidates)
        candidates.remove(best)
        estimate, _, negative_parent, token = best
        tree.tokens.append(token)
        tree.parents.append(-negative_parent)
        tree.estimates.append(estimate)
        tree.score += estimate
        strings.append([*strings[-negative_parent], token])
    return tree


def expected_draft(
    config: EngineConfig, text: Sequence[int], outputs: Sequence[Sequence[int]], cap: int | None
) -> Tree:
    """The draft for a request with this text, whose namespace has these outputs, oldest first."""
    ended = [[*output, END] for output in outputs]
    cap = config.max_draft_tokens if cap is None else min(cap, config.max_draft_tokens)
    best = Tree([text[-1]])
    for length in range(min(config.max_pattern, len(text)), 0, -1):
        for source, texts in ((Source.REQUEST, [text]), (Source.GLOBAL, ended)):
            tree = grow(config, texts, text[-length:], min(cap, math.floor(config.alpha * length)))
            if tree.score > best.score:
                best = tree
                best.source = source
    return best


NAMESPACES = ("", "tenant-a", "tenant-b")
ADDED_BY = ("x", "y")
"""The requests of outputs from elsewhere."""


@dataclass
class Kept:
    """A finished output after the end of its prompt."""

    namespace: str
    tokens: list[int]
    num_output_tokens: int
    output_id: int
    time: float = math.inf

    def is_of(self, namespace: str, request_id: str) -> bool:
        return self.namespace == namespace and self.output_id >> 32 == request_hash(request_id)


class Model:
    """An engine, and plain lists of everything that it was given."""

    def __init__(self, config: EngineConfig) -> None:
        self.config = config
        self.engine = Engine(config)
        self.prompts: dict[str, list[int]] = {}
        self.texts: dict[str, list[int]] = {}
        self.namespaces: dict[str, str] = {}
        self.kept: list[Kept] = []
        self.num_added = 0

    def open(self, request_id: str, prompt: list[int], namespace: str) -> None:
        self.engine.open(request_id, np.array(prompt, dtype=np.int32), namespace)
        self.prompts[request_id] = prompt
        self.texts[request_id] = list(prompt)
        self.namespaces[request_id] = namespace

    def extend(self, request_id: str, tokens: list[int]) -> None:
        self.engine.extend(request_id, np.array(tokens, dtype=np.int32))
        self.texts[request_id] += tokens
        assert self.engine.num_tokens(request_id) == len(self.texts[request_id])

    def close(self, request_id: str, keep: bool, num_output_tokens: int | None) -> None:
        output_id = self.engine.close(request_id, keep, num_output_tokens=num_output_tokens)
        prompt = self.prompts.pop(request_id)
        output = self.texts.pop(request_id)[len(prompt) :][:num_output_tokens]
        namespace = self.namespaces.pop(request_id)
        if keep and output:
            assert output_id is not None
            self.kept.append(Kept(namespace, [*self.tail(prompt), *output], len(output), output_id))
        assert not self.engine.is_open(request_id)

    def add(self, namespace: str, request_id: str, tail: list[int], output: list[int], time: int) -> None:
        self.num_added += 1
        output_id = request_hash(request_id) << 32 | self.num_added
        tokens = np.array(tail + output, dtype=np.int32)
        assert self.engine.add(namespace, output_id, tokens, num_prompt_tail=len(tail), time=time) == bool(output)
        if output:
            self.kept.append(Kept(namespace, [*self.tail(tail), *output], len(output), output_id, time))

    def tail(self, prompt: list[int]) -> list[int]:
        """The end of the prompt, which stands before the output in the global index."""
        return prompt[max(len(prompt) - self.config.prompt_tail, 0) :]

    def forget(self, is_deleted: Callable[[Kept], bool]) -> int:
        """Forgets outputs that the engine has deleted, and checks what it drafts; the number of these outputs."""
        before = len(self.kept)
        self.kept = [one for one in self.kept if not is_deleted(one)]
        self.check_draft(sorted(self.texts), None)
        return before - len(self.kept)

    def outputs(self, namespace: str) -> list[list[int]]:
        return [one.tokens for one in self.kept if one.namespace == namespace]

    def check_draft(self, request_ids: list[str], max_tokens: list[int] | int | None) -> None:
        limits = np.array(max_tokens, dtype=np.int32) if isinstance(max_tokens, list) else max_tokens
        batch = self.engine.draft(request_ids, max_tokens=limits)
        assert len(batch) == len(request_ids)
        for i, request_id in enumerate(request_ids):
            cap = max_tokens[i] if isinstance(max_tokens, list) else max_tokens
            text = self.texts[request_id]
            check_row(batch, i, expected_draft(self.config, text, self.outputs(self.namespaces[request_id]), cap))

    def check_stats(self) -> None:
        self.engine.check_integrity()
        stats = self.engine.stats()
        assert stats.open_requests == len(self.texts)
        assert stats.outputs == len(self.kept)
        assert stats.output_tokens == sum(one.num_output_tokens for one in self.kept)
        assert stats.namespaces == len({one.namespace for one in self.kept})
        assert stats.evicted_outputs == 0


def check_row(batch: DraftBatch, i: int, expected: Tree) -> None:
    row = batch.row(i)
    assert row.tokens.tolist() == expected.tokens
    assert row.parents.tolist() == expected.parents
    assert row.sources.tolist() == [Source.ROOT] + [expected.source] * (len(expected.tokens) - 1)
    assert row.match_len == expected.match_len
    np.testing.assert_array_equal(row.estimates, np.array(expected.estimates, dtype=np.float32))
    assert row.score == float(np.float32(expected.score))


configs = st.builds(
    EngineConfig,
    vocab_size=st.just(4),
    rule=st.just("suffixdecoding"),
    prompt_tail=st.sampled_from([0, 2]),
    max_growing_tokens=st.just(64),
    max_pattern=st.integers(1, 6),
    alpha=st.sampled_from([0.4, 1.0, 1.5, 2.0, 4.0]),
    min_token_prob=st.sampled_from([0.0, 0.1, 0.25, 0.5, 1.0]),
    mode=st.sampled_from(["tree", "chain"]),
    max_draft_tokens=st.integers(1, 8),
)
texts = st.lists(st.integers(0, 3), min_size=1, max_size=16) | st.lists(st.integers(0, 1), min_size=1, max_size=30)


class EngineMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.num_opened = 0

    @initialize(config=configs)
    def make(self, config: EngineConfig) -> None:
        self.model = Model(config)

    def request_id(self, data: st.DataObject) -> str:
        return data.draw(st.sampled_from(sorted(self.model.texts)))

    @rule(prompt=texts, namespace=st.sampled_from(NAMESPACES))
    def open(self, prompt: list[int], namespace: str) -> None:
        self.num_opened += 1
        self.model.open(f"request-{self.num_opened}", prompt, namespace)

    @precondition(lambda self: self.model.texts)
    @rule(data=st.data(), tokens=texts)
    def extend(self, data: st.DataObject, tokens: list[int]) -> None:
        self.model.extend(self.request_id(data), tokens)

    @precondition(lambda self: self.model.texts)
    @rule(data=st.data())
    def extend_by_draft(self, data: st.DataObject) -> None:
        # The text grows by what was drafted for it, as after a verification.
        request_id = self.request_id(data)
        self.model.extend(request_id, self.model.engine.draft([request_id]).tokens[1:4].tolist())

    @precondition(lambda self: self.model.texts)
    @rule(data=st.data())
    def draft(self, data: st.DataObject) -> None:
        request_ids = data.draw(st.lists(st.sampled_from(sorted(self.model.texts)), max_size=3))
        each = st.lists(st.integers(0, 9), min_size=len(request_ids), max_size=len(request_ids))
        self.model.check_draft(request_ids, data.draw(st.none() | st.integers(0, 9) | each))

    @precondition(lambda self: self.model.texts)
    @rule(data=st.data(), keep=st.sampled_from([True, True, False]), cut=st.none() | st.integers(0, 12))
    def close(self, data: st.DataObject, keep: bool, cut: int | None) -> None:
        self.model.close(self.request_id(data), keep, cut)

    @rule(
        namespace=st.sampled_from(NAMESPACES),
        request_id=st.sampled_from(ADDED_BY),
        tail=st.lists(st.integers(0, 3), max_size=4),
        output=st.just([]) | texts,
        time=st.integers(0, 3),
    )
    def add(self, namespace: str, request_id: str, tail: list[int], output: list[int], time: int) -> None:
        self.model.add(namespace, request_id, tail, output, time)

    @precondition(lambda self: self.model.kept)
    @rule(data=st.data())
    def delete_output(self, data: st.DataObject) -> None:
        deleted = data.draw(st.sampled_from(self.model.kept)).output_id
        assert self.model.engine.delete_output(deleted)
        assert self.model.forget(lambda one: one.output_id == deleted) == 1
        assert not self.model.engine.delete_output(deleted)

    @rule(namespace=st.sampled_from(NAMESPACES), request_id=st.sampled_from(ADDED_BY), before=st.integers(0, 4))
    def delete_some(self, namespace: str, request_id: str, before: int) -> None:
        found = self.model.engine.delete_request(namespace, request_id)
        assert found == self.model.forget(lambda one: one.is_of(namespace, request_id))
        found = self.model.engine.expire(namespace, before)
        assert found == self.model.forget(lambda one: one.namespace == namespace and one.time < before)

    @precondition(lambda self: len(self.model.kept) > 3)
    @rule(namespace=st.sampled_from(NAMESPACES))
    def delete_namespace(self, namespace: str) -> None:
        found = self.model.engine.delete_namespace(namespace)
        assert found == bool(self.model.forget(lambda one: one.namespace == namespace))

    @precondition(lambda self: len(self.model.kept) > 3)
    @rule()
    def clear(self) -> None:
        self.model.engine.clear()
        self.model.forget(lambda one: True)

    @invariant()
    def stats_agree(self) -> None:
        if hasattr(self, "model"):
            self.model.check_stats()


EngineMachine.TestCase.settings = settings(
    max_examples=300,
    stateful_step_count=30,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
)
TestEngineMachine = EngineMachine.TestCase


def test_long_lives() -> None:
    """Texts are longer and requests more numerous than those of the state machine above, and repeats lie far apart."""
    rng = random.Random(7)
    for round_number in range(12):
        config = EngineConfig(
            vocab_size=40,
            rule="suffixdecoding",
            max_growing_tokens=rng.choice([64, 256]),
            max_pattern=rng.choice([3, 8, 64]),
            alpha=rng.choice([1.0, 2.0, 4.0]),
            min_token_prob=rng.choice([0.0, 0.1, 0.3]),
            mode=rng.choice(["tree", "chain"]),
            max_draft_tokens=rng.choice([5, 16]),
        )
        model = Model(config)
        # Texts are made of shared phrases; one token in ten is noise. Token 0 ends every phrase, as a comma might.
        phrases = [[rng.randrange(40) for _ in range(rng.randrange(3, 12))] + [0] for _ in range(10)]

        def some_text(length: int, phrases: list[list[int]] = phrases) -> list[int]:
            text = [t for _ in range(length) for t in rng.choice(phrases)][:length]
            return [rng.randrange(40) if rng.random() < 0.1 else t for t in text]

        for step in range(14):
            request_id = f"{round_number}-{step}"
            model.open(request_id, some_text(60), rng.choice(NAMESPACES[:2]))
            for _ in range(4):
                model.extend(request_id, some_text(rng.randrange(8)))
                model.check_draft([request_id, rng.choice(list(model.texts))], None)
            if step % 4:
                model.close(request_id, keep=True, num_output_tokens=None)
            model.check_stats()


def test_drafts_follow_what_eviction_left() -> None:
    rng = random.Random(11)
    for budget_bytes in (4_000, 9_000):
        model = Model(
            EngineConfig(
                vocab_size=4,
                max_pattern=5,
                max_draft_tokens=6,
                budget_bytes=budget_bytes,
                rule="suffixdecoding",
                prompt_tail=0,
            )
        )
        # This request stays open throughout, so its matches meet segments that grow and disappear.
        model.open("watcher", [0, 1, 2, 3], "")
        for step in range(60):
            model.open("writer", [0], "")
            model.extend("writer", [rng.randrange(4) for _ in range(rng.randrange(1, 20))])
            model.close("writer", keep=True, num_output_tokens=None)
            stats = model.engine.stats()
            assert stats.global_bytes <= budget_bytes
            assert 0 < stats.outputs == step + 1 - stats.evicted_outputs
            model.kept = model.kept[-stats.outputs :]
            assert stats.output_tokens == sum(one.num_output_tokens for one in model.kept)
            model.extend("watcher", [rng.randrange(4)])
            model.check_draft(["watcher"], None)
        assert stats.evicted_outputs > 10
