"""A namespace's drafts are the same to the last bit whatever other namespaces do, within the budgets."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import get_args

import numpy as np
import pytest
from engine_texts import random_output
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from agentspec import Engine, EngineConfig
from agentspec.config import Rule

LIVING = ("open", "turn", "accept", "accept", "accept", "extend", "close", "close", "add")
DELETING = ("delete_output", "delete_request", "expire", "delete_namespace", "load")
ACTIONS = LIVING * 8 + DELETING
VOCABULARY = 5

Step = tuple[str, str, int]
"""Namespace, action, and the seed of its choices."""

steps = st.lists(
    st.tuples(st.sampled_from(["a", "b"]), st.sampled_from(ACTIONS), st.integers(0, 2**16)), min_size=10, max_size=60
)


@dataclass
class Space:
    """The operations of one namespace in an engine. Output ids differ between engines, so a list numbers them."""

    engine: Engine
    name: str
    open: list[str] = field(default_factory=list)
    texts: dict[str, NDArray[np.int32]] = field(default_factory=dict)
    output_ids: list[int] = field(default_factory=list)
    drafted: dict[str, list[int]] = field(default_factory=dict)
    num_steps: int = 0

    def step(self, action: str, seed: int) -> None:
        rng, choose = np.random.default_rng(seed), random.Random(seed)
        self.num_steps += 1
        new_id = f"{self.name}-{self.num_steps}"
        if action == "open" or not (self.open or action in ("add", "delete_namespace", "expire")):
            self.start(new_id, random_output(rng, choose.choice([1, 20, 80, 400]), VOCABULARY))
        elif action == "turn":
            # The prompt continues a text or rewrites its end, like the next turn of a conversation.
            text = self.texts[choose.choice(list(self.texts)[-4:])]
            kept = text[: len(text) if choose.random() < 0.5 else choose.randrange(len(text) // 2, len(text)) + 1]
            self.start(new_id, np.concatenate([kept, random_output(rng, 70, VOCABULARY)]))
        elif action in ("accept", "extend"):
            request_id = choose.choice(self.open)
            tokens = random_output(rng, int(rng.integers(0, 40)), VOCABULARY)
            if action == "accept":
                tokens = np.array([*self.drafted.get(request_id, [])[: choose.randrange(8)], 0], np.int32)
            self.engine.extend(request_id, tokens)
            self.texts[request_id] = np.concatenate([self.texts[request_id], tokens])
        elif action == "close":
            request_id = self.open.pop(choose.randrange(len(self.open)))
            if (output_id := self.engine.close(request_id)) is not None:
                self.output_ids.append(output_id)
        elif action == "add":
            self.output_ids.append((choose.randrange(1, 4) << 32) + self.num_steps * 2 + (self.name == "a"))
            tokens = random_output(rng, 50, VOCABULARY)
            self.engine.add(self.name, self.output_ids[-1], tokens, num_prompt_tail=9, time=choose.randrange(100))
        elif action == "delete_output" and self.output_ids:
            # The output may be deleted already.
            self.engine.delete_output(choose.choice(self.output_ids))
        elif action == "delete_request":
            self.engine.delete_request(self.name, choose.choice(sorted(self.texts)))
        elif action == "expire":
            self.engine.expire(self.name, choose.randrange(120) if choose.random() < 0.8 else 2**62)
        elif action == "delete_namespace" and choose.random() < 0.3:
            self.engine.delete_namespace(self.name)
        elif action == "load":
            blobs = [segment.blob.tobytes() for segment in self.engine.snapshot(self.name).segments]
            self.engine.delete_namespace(self.name)
            self.engine.load_segments(self.name, blobs, known=self.output_ids[:3])

    def start(self, request_id: str, prompt: NDArray[np.int32]) -> None:
        self.engine.open(request_id, prompt, self.name)
        self.open.append(request_id)
        self.texts[request_id] = prompt


def lead(config: EngineConfig, life: list[Step]) -> tuple[list[bytes], Engine]:
    """Runs the steps of `life` in an engine. Returns all drafts for "a" after each of its own steps."""
    engine = Engine(config)
    spaces = {name: Space(engine, name) for name in ("a", "b")}
    seen: list[bytes] = []
    for name, action, seed in life:
        spaces[name].step(action, seed)
        engine.flush()
        # A step of "a" drafts for both namespaces in one batch, a step of "b" only for "b".
        rows = [(space, row) for space in spaces.values() if name in ("a", space.name) for row in space.open]
        batch = engine.draft([request_id for _, request_id in rows])
        for number, (space, request_id) in enumerate(rows):
            row = batch.row(number)
            space.drafted[request_id] = row.tokens[1:].tolist()
            if space.name == name == "a":
                arrays = (row.tokens, row.parents, row.estimates, row.sources)
                scores = np.array([row.match_len, row.score], np.float64)
                seen.append(b"|".join(array.tobytes() for array in (*arrays, scores)))
    engine.check_integrity()
    return seen, engine


@pytest.mark.parametrize("background", [False, True])
@pytest.mark.parametrize("rule", get_args(Rule))
@settings(max_examples=25, derandomize=True)
@given(life=steps)
def test_drafts_are_the_same_with_and_without_others(rule: Rule, background: bool, life: list[Step]) -> None:
    config = EngineConfig(
        rule=rule, max_growing_tokens=64, learning_rate=0.3, min_token_prob=0.0, background=background, prompt_tail=4
    )
    alone, one = lead(config, [step for step in life if step[0] == "a"])
    among_others, both = lead(config, life)
    assert alone == among_others
    np.testing.assert_array_equal(one.estimates("a").weights, both.estimates("a").weights)
    assert [s for s in one.namespaces() if s.name == "a"] == [s for s in both.namespaces() if s.name == "a"]


def test_lives_have_what_could_leak() -> None:
    """In a long life both namespaces learn, seal segments, reuse conversations and delete. Otherwise the test above
    would say little."""
    choose = random.Random(0)
    life = [(choose.choice("ab"), choose.choice(ACTIONS), choose.randrange(2**16)) for _ in range(400)]
    config = EngineConfig(max_growing_tokens=64, learning_rate=0.3, min_token_prob=0.0, prompt_tail=4)
    alone, _ = lead(config, [step for step in life if step[0] == "a"])
    among_others, engine = lead(config, life)
    assert alone == among_others
    stats = engine.stats()
    assert stats.spared_tokens > 500 and stats.conversation_bytes > 0 and stats.segments > 0
    weights = [engine.estimates(name).weights for name in ("a", "b", "c")]
    assert len({array.tobytes() for array in weights}) == 3


def test_what_a_namespace_has_learnt_goes_with_it() -> None:
    engine = Engine(EngineConfig(learning_rate=0.3))
    initial = engine.estimates().weights

    def learn(name: str) -> None:
        engine.open("asked", np.array([1, 2, 3, 9, 1, 2], np.int32), name)
        engine.draft(["asked"])
        engine.extend("asked", [3])
        engine.close("asked")

    def has_learnt(name: str) -> bool:
        return not np.array_equal(engine.estimates(name).weights, initial)

    for name in ("a", "b"):
        learn(name)
    assert [has_learnt(name) for name in ("a", "b", "")] == [True, True, False]
    engine.delete_namespace("a")
    assert [has_learnt(name) for name in ("a", "b", "")] == [False, True, False]
    engine.clear()
    assert not has_learnt("b")
    learn("b")
    assert has_learnt("b")
