"""Training of the drafters: what they learn from, and that they learn it."""

from __future__ import annotations

import random
from itertools import islice
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="training needs torch; `make setup` installs it")

from tiny_models import written_by

from agentspec.evals.research.tiny_sql import distill
from agentspec.evals.research.tiny_sql.corpus import Sample, draw_samples
from agentspec.evals.research.tiny_sql.eagle3 import Eagle3Head, HeadShape
from agentspec.evals.research.tiny_sql.learner import Learner
from agentspec.evals.research.tiny_sql.model import LlamaShape, TinyLlama, load_model, save_model
from agentspec.evals.research.tiny_sql.tokenizer import render, train_tokenizer
from agentspec.evals.research.tiny_sql.train import Encoded, TrainConfig, encode, to_batch
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
    rows = [
        Encoded("link", tuple(prompts[0]), tuple(strange)),
        Encoded("link", tuple(prompts[1]), tuple(answers[1])),
    ]
    lesson = distill.teach(target, *to_batch(rows, pad_id=0), (0, 1, 3))
    # The prompt's last token predicts the answer's first; the fourth answer token is not the target's.
    assert lesson.own.nonzero().tolist() == [[0, t] for t in range(3, 7)] + [[1, t] for t in range(2, 8)]
    assert lesson.scores.argmax(-1).tolist() == answers[0][:4] + answers[1]
    assert lesson.features.shape == (2, 9, 3 * 32)


def test_the_draft_vocabulary_is_what_answers_are_written_with(databases, tokenizer) -> None:  # type: ignore[no-untyped-def]
    config = distill.DistillConfig(feed=TrainConfig(seed=3), vocabulary_samples=200)
    vocabulary = distill.draft_vocabulary(databases, tokenizer, 100, config)
    samples = list(islice(draw_samples(databases, split="train", seed=3), 200))
    written = [token for sample in encode(tokenizer, samples) for token in sample.answer]
    assert vocabulary.tolist() == sorted(set(vocabulary.tolist())) and len(vocabulary) == 100
    inside, outside = set(vocabulary.tolist()), set(written) - set(vocabulary.tolist())
    assert outside and min(map(written.count, inside)) >= max(map(written.count, outside))


@pytest.mark.parametrize(
    ("hits", "steps"),
    [
        # No drafted token is right: each step yields only the target's own token.
        ([[0, 0, 0, 0], [0, 0, 0, 0]], 4),
        # All drafted tokens are right: each step yields up to two of them and one of the target's.
        ([[1, 1, 1, 1], [1, 1, 1, 1]], 2),
        # The second token of a draft is never right.
        ([[1, 1, 1, 1], [0, 0, 0, 0]], 2),
        # The first draft is wrong at once, the second after one right token. The third has one right token.
        ([[0, 1, 1, 1], [1, 1, 0, 1]], 3),
    ],
)
def test_steps_that_chains_take(hits: list[list[int]], steps: int) -> None:
    assert distill._walk([[bool(hit) for hit in row] for row in hits]) == steps


def test_the_losses_of_both_drafters_fall(target: TinyLlama) -> None:
    rng = random.Random(0)
    prompts = [[1, *(rng.randrange(6, 512) for _ in range(4)), 5] for _ in range(6)]
    rows = [Encoded("link", tuple(prompt), tuple(written_by(target, prompt, 8))) for prompt in prompts]
    lesson = distill.teach(target, *to_batch(rows, pad_id=0), HEAD.capture)
    vocabulary = lesson.scores.argmax(-1).unique()
    others = [token for token in range(512) if token not in vocabulary.tolist()]
    vocabulary = torch.cat((vocabulary, torch.tensor(others[: 256 - len(vocabulary)]))).sort().values
    config = distill.DistillConfig(unrolled=3)
    rates = {"matrix_lr": 1e-2, "lr": 1e-2, "weight_decay": 0.0}
    drafter, head = Learner(TinyLlama(DRAFTER), **rates), Learner(Eagle3Head(HEAD, vocabulary), **rates)
    embeddings = target.embed_tokens.weight.detach().bfloat16()
    losses = [
        (
            drafter.step(distill.standalone_loss(drafter.twin, lesson), 1.0),
            head.step(distill.head_loss(head.twin, embeddings, lesson, config), 1.0),
        )
        for _ in range(30)
    ]
    least = float(-(lesson.scores.softmax(-1) * lesson.scores.log_softmax(-1)).sum(-1).mean())
    assert losses[-1][0] - least < 0.7 * (losses[0][0] - least)
    assert losses[-1][1] < 0.95 * losses[0][1]


def test_tokens_that_cannot_be_drafted_are_not_learnt(target: TinyLlama) -> None:
    prompt = [1, 30, 31, 5]
    lesson = distill.teach(
        target, *to_batch([Encoded("link", tuple(prompt), tuple(written_by(target, prompt, 5)))], 0), HEAD.capture
    )
    never = [token for token in range(512) if token not in lesson.scores.argmax(-1).tolist()][:256]
    head = Eagle3Head(HEAD, torch.tensor(never))
    assert distill.head_loss(head, target.embed_tokens.weight, lesson, distill.DistillConfig()) == 0


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


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_batches_hold_both_kinds_of_text_as_asked(databases, tokenizer, share: float) -> None:  # type: ignore[no-untyped-def]
    feed = TrainConfig(copy_steps=2, tokens_per_batch=512)
    config = distill.DistillConfig(feed=feed, open_share=share)
    answers = [Encoded("open", (1, 5), (9, 9, 9))]
    drawn = list(islice(distill._mixed(databases, tokenizer, answers, config), 42))
    opened = [bool((tokens == torch.tensor([1, 5, 9, 9])).all()) for tokens, _ in drawn if tokens.shape[1] == 4]
    assert not any(tokens.shape[1] == 4 for tokens, _ in drawn[:2])
    assert len(opened) == sum(opened) == {0.0: 0, 1.0: 40}.get(share, len(opened))
    assert share != 0.5 or 8 < len(opened) < 32


def test_a_saved_model_is_read_back(target: TinyLlama, tmp_path: Path) -> None:
    save_model(target, TARGET.hf_config(begin_id=1, end_id=2, pad_id=0), tmp_path)
    loaded = load_model(tmp_path)
    assert loaded.shape == TARGET
    torch.testing.assert_close(
        loaded.logits(torch.tensor([[3, 9]])), target.logits(torch.tensor([[3, 9]])), atol=1e-2, rtol=0
    )


def test_impossible_settings_are_refused() -> None:
    with pytest.raises(ValueError, match="unrolled"):
        distill.DistillConfig(unrolled=0)
    with pytest.raises(ValueError, match="open_share must be within 0 and 1, got 1.5"):
        distill.DistillConfig(open_share=1.5)
