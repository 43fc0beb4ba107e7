"""Training of the drafters: what they learn from, and that they learn it."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="training needs torch; `make setup` installs it")

from tiny_models import written_by

from agentspec.evals.research.tiny_sql import distill
from agentspec.evals.research.tiny_sql.corpus import Sample, draw_samples
from agentspec.evals.research.tiny_sql.eagle3 import HeadShape
from agentspec.evals.research.tiny_sql.model import LlamaShape, TinyLlama
from agentspec.evals.research.tiny_sql.tokenizer import render, train_tokenizer
from agentspec.evals.research.tiny_sql.train import Encoded, TrainConfig, to_batch
from agentspec.workflows.text_to_sql import Database

TARGET = LlamaShape(vocab_size=512, hidden=32, layers=5, heads=4, kv_heads=2, head_dim=8, mlp=64, max_positions=512)
DRAFTER = LlamaShape(vocab_size=512, hidden=16, layers=1, heads=2, kv_heads=1, head_dim=8, mlp=32, max_positions=512)
HEAD = HeadShape(TARGET, capture=(0, 1, 3), draft_vocab=256, mlp=32)


@pytest.fixture(scope="module")
def tokenizer(databases: dict[Database, Path]):  # type: ignore[no-untyped-def]
    samples: list[Sample] = list(islice(draw_samples(databases, split="train", seed=0), 300))
    return train_tokenizer((text for s in samples for text in (render(s.messages), s.answer)), vocab_size=512)


@pytest.fixture(scope="module")
def target() -> TinyLlama:
    torch.manual_seed(0)
    target = TinyLlama(TARGET)
    with torch.no_grad():
        # Larger weights make the target's distributions far from uniform, so that there is something to learn.
        for parameter in target.parameters():
            parameter.mul_(8 if parameter.ndim == 2 else 1)
    return target


def test_a_lesson_ends_where_the_target_would_have_written_something_else(target: TinyLlama) -> None:
    prompts = [[1, 30, 31, 5], [1, 40, 5]]
    answers = [written_by(target, prompt, 6) for prompt in prompts]
    strange = list(answers[0])
    strange[3] = (strange[3] + 1) % 512
    rows = [Encoded("link", tuple(prompts[0]), tuple(strange)), Encoded("link", tuple(prompts[1]), tuple(answers[1]))]
    lesson = distill.teach(target, *to_batch(rows, pad_id=0), (0, 1, 3))
    # The prompt's last token predicts the answer's first; the fourth answer token is not the target's.
    assert lesson.own.nonzero().tolist() == [[0, t] for t in range(3, 7)] + [[1, t] for t in range(2, 8)]
    assert lesson.scores.argmax(-1).tolist() == answers[0][:4] + answers[1]
    assert lesson.features.shape == (2, 9, 3 * 32)


def test_training_changes_both_drafters_and_measures_them(databases, tokenizer, target) -> None:  # type: ignore[no-untyped-def]
    feed = TrainConfig(steps=3, copy_steps=1, tokens_per_batch=512, measured_samples=3)
    config = distill.DistillConfig(feed=feed, open_share=0.5, unrolled=2, vocabulary_samples=200)
    vocabulary = distill.draft_vocabulary(databases, tokenizer, HEAD.draft_vocab, config)
    drafter, head = distill.new_drafters(target, DRAFTER, HEAD, vocabulary, seed=0)
    before = drafter.norm.weight.clone(), head.fc.weight.clone()
    prompt = (1, 30, 31, 5)
    answers = [Encoded("open", prompt, tuple(written_by(target, list(prompt), 6)))]
    losses = distill.distill(target, tokenizer, databases, answers, drafter, head, config)
    assert len(losses) == 3
    assert not torch.equal(before[0], drafter.norm.weight) and not torch.equal(before[1], head.fc.weight)
    measured = distill.accept_lengths(target, drafter, head, answers, config)
    assert set(measured) == {"standalone", "eagle3"} and all(1 <= length <= 3 for length in measured.values())
