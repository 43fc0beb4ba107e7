"""Trains the drafters of the tiny SQL model on the model's own outputs, for its agents and for open requests."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

import torch
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn import functional as F

from agentspec.evals.research.tiny_sql.corpus import draw_samples
from agentspec.evals.research.tiny_sql.eagle3 import Eagle3Head, HeadShape
from agentspec.evals.research.tiny_sql.learner import Learner, halved, rate_at, show_progress
from agentspec.evals.research.tiny_sql.model import LlamaShape, TinyLlama
from agentspec.evals.research.tiny_sql.tokenizer import PAD, special_id
from agentspec.evals.research.tiny_sql.train import Encoded, TrainConfig, batches, encode, repeated_batches, to_batch
from agentspec.workflows.text_to_sql.generated.databases import Database

# Two layers, because a single one cannot copy a value from the question to the SQL.
STANDALONE_SHAPE = LlamaShape(hidden=128, layers=2, heads=2, kv_heads=1, mlp=352)


@dataclass(frozen=True)
class DistillConfig:
    """What the training of the drafters depends on, besides the target and the databases.

    `feed` has the batches and learning rates. The head drafts `unrolled` tokens from every position; the loss of each
    has `decay` times the weight of the one before. `open_share` of the batches hold the target's answers to
    `open_answers` open requests; the others hold the texts of the agents.
    """

    feed: TrainConfig = field(
        default_factory=lambda: TrainConfig(seed=1, steps=1500, copy_steps=20, measured_samples=100)
    )
    open_share: float = 0.5
    open_answers: int = 4096
    unrolled: int = 4
    decay: float = 0.8
    vocabulary_samples: int = 8000

    def __post_init__(self) -> None:
        if self.unrolled < 1:
            raise ValueError(f"unrolled must be at least 1, got {self.unrolled}")
        if not 0 <= self.open_share <= 1:
            raise ValueError(f"open_share must be within 0 and 1, got {self.open_share}")


@dataclass(frozen=True)
class Lesson:
    """A batch of texts with the target's predictions.

    Attributes:
        tokens: int64 [B, L].
        own: bool [B, L], the positions of an answer up to which the text is what the target itself would have
            written, one run a row.
        scores: float [N, vocab], the target's logits at those positions, row by row.
        features: [B, L, 3 H], the outputs of the target's captured layers.
    """

    tokens: Tensor
    own: Tensor
    scores: Tensor
    features: Tensor

    @property
    def choices(self) -> Tensor:
        """int64 [B, L]: the target's token after each of its own positions, -1 elsewhere."""
        found = torch.full(self.tokens.shape, -1)
        found[self.own] = self.scores.argmax(-1)
        return found


@torch.no_grad()
def teach(target: TinyLlama, tokens: Tensor, targets: Tensor, capture: tuple[int, ...]) -> Lesson:
    """The target's predictions for a batch of `train.to_batch`.

    Texts come from the corpus and not from the target. A row counts as far as both agree. Up to there the text equals
    greedy decoding, so nothing has to be generated to learn from the target's own outputs.
    """
    hidden, captured = target.states(tokens, capture)
    answers = targets != -100
    scores = F.linear(hidden[answers], target.embed_tokens.weight).float()
    differs = torch.zeros_like(tokens)
    differs[answers] = (scores.argmax(-1) != targets[answers]).long()
    own = answers & (differs.cumsum(1) - differs == 0)
    return Lesson(tokens, own, scores[own[answers]], torch.cat(captured, -1))


def draft_vocabulary(databases: dict[Database, Path], tokenizer: Tokenizer, size: int, config: DistillConfig) -> Tensor:
    """int64 [size], ascending: the most frequent tokens in the agents' answers."""
    samples = list(islice(draw_samples(databases, split="train", seed=config.feed.seed), config.vocabulary_samples))
    written = torch.tensor([token for sample in encode(tokenizer, samples) for token in sample.answer])
    counts = torch.bincount(written, minlength=size)
    return counts.argsort(descending=True, stable=True)[:size].sort().values


def standalone_loss(drafter: TinyLlama, lesson: Lesson) -> Tensor:
    """Mean cross-entropy between the next-token distributions of target and drafter, over the target's own positions.

    A drafter under STANDALONE never sees the first token of a text: SGLang feeds it prompts as it does an EAGLE head,
    shifted by one token.
    """
    logits = F.linear(drafter.hidden(lesson.tokens[:, 1:])[lesson.own[:, 1:]], drafter.embed_tokens.weight)
    return _cross_entropy(lesson.scores, logits.float()).mean()


def head_loss(head: Eagle3Head, embeddings: Tensor, lesson: Lesson, config: DistillConfig) -> Tensor:
    """The same for each token that the head drafts, within its vocabulary and weighted by `decay`.

    Positions whose correct token cannot be drafted do not count.
    """
    assert isinstance(head.vocabulary, Tensor)
    drafted, places, counts = unrolled(head, embeddings, lesson, config.unrolled)
    scores = lesson.scores[:, head.vocabulary]
    may_draft = torch.isin(lesson.scores.argmax(-1), head.vocabulary)
    losses = []
    for step, logits in enumerate(drafted):
        wanted = counts & (torch.arange(counts.shape[1]) >= step) & may_draft[places]
        weight = config.decay**step / max(1, int(wanted.sum()))
        losses.append(weight * _cross_entropy(scores[places[wanted]], logits[wanted].float()).sum())
    return torch.stack(losses).sum() / sum(config.decay**step for step in range(config.unrolled))


def unrolled(head: Eagle3Head, embeddings: Tensor, lesson: Lesson, steps: int) -> tuple[list[Tensor], Tensor, Tensor]:
    """Lets the head draft over a lesson, from the position of each answer's first token on.

    Returns:
        logits: For each step [B, S, draft_vocab]; see `Eagle3Head.unroll`.
        places: int64 [B, S], the row of `lesson.scores` with the target's prediction there.
        counts: bool [B, S], where there is one.
    """
    runs = lesson.own.sum(1)
    width = max(1, int(runs.max()) - 1)
    logits = head.unroll(
        # The first token of an answer comes from the prefill; drafts begin after it.
        F.embedding(lesson.tokens[:, 1:], embeddings),
        lesson.features[:, :-1].to(embeddings.dtype),
        lesson.own.long().argmax(1),
        width,
        steps,
    )
    offsets = torch.arange(width)
    counts = offsets + 1 < runs[:, None]
    places = ((runs.cumsum(0) - runs)[:, None] + 1 + offsets).clamp(max=max(0, len(lesson.scores) - 1))
    return logits, places, counts


def _cross_entropy(scores: Tensor, logits: Tensor) -> Tensor:
    """[N], between distributions given by logits [N, V]."""
    return -(scores.softmax(-1) * logits.log_softmax(-1)).sum(-1)


def new_drafters(
    target: TinyLlama, drafter_shape: LlamaShape, head_shape: HeadShape, vocabulary: Tensor, *, seed: int
) -> tuple[TinyLlama, Eagle3Head]:
    """Both drafters before any training; `vocabulary` is that of the head, int64 [draft_vocab]."""
    torch.manual_seed(seed)
    drafter, head = TinyLlama(drafter_shape), Eagle3Head(head_shape, vocabulary)
    with torch.no_grad():
        # The output matrix starts as the target's.
        head.lm_head.weight.copy_(target.embed_tokens.weight[vocabulary])
    return drafter, head


def distill(
    target: TinyLlama,
    tokenizer: Tokenizer,
    databases: dict[Database, Path],
    answers: Sequence[Encoded],
    drafter: TinyLlama,
    head: Eagle3Head,
    config: DistillConfig,
) -> list[tuple[float, float]]:
    """Trains both drafters in place, side by side, so that the target runs once for both; gives both losses of each
    step.

    Progress goes to standard error.

    Args:
        answers: The target's own answers to open requests; unused if `config.open_share` is 0.
    """
    feed = config.feed
    rates = {"matrix_lr": feed.matrix_lr, "lr": feed.lr, "weight_decay": feed.weight_decay}
    learners = Learner(drafter, **rates), Learner(head, **rates)
    teacher = halved(target)
    embeddings = teacher.embed_tokens.weight.detach()
    losses: list[tuple[float, float]] = []
    start, seen = time.monotonic(), 0
    for step, (tokens, targets) in enumerate(islice(_mixed(databases, tokenizer, answers, config), feed.steps)):
        lesson = teach(teacher, tokens, targets, head.shape.capture)
        rate = rate_at(step, feed.steps, feed.warmup)
        losses.append(
            (
                learners[0].step(standalone_loss(learners[0].twin, lesson), rate),
                learners[1].step(head_loss(learners[1].twin, embeddings, lesson, config), rate),
            )
        )
        seen += tokens.numel()
        if (step + 1) % 20 == 0 or step + 1 == feed.steps:
            means = [sum(of_one) / len(of_one) for of_one in zip(*losses[-20:], strict=True)]
            text = f"standalone {means[0]:.4f}, head {means[1]:.4f}"
            show_progress(step + 1, feed.steps, text, seen, time.monotonic() - start)
    return losses


def _mixed(
    databases: dict[Database, Path], tokenizer: Tokenizer, answers: Sequence[Encoded], config: DistillConfig
) -> Iterator[tuple[Tensor, Tensor]]:
    """Batches of both kinds of text; batches of tokens to copy come first."""
    feed = config.feed
    rng = random.Random(f"mixed/{feed.seed}")
    of_agents = batches(draw_samples(databases, split="train", seed=feed.seed), tokenizer, feed)
    if not config.open_share:
        yield from of_agents
    opened = repeated_batches(answers, special_id(tokenizer, PAD), feed)
    yield from islice(of_agents, feed.copy_steps)
    while True:
        yield next(opened if rng.random() < config.open_share else of_agents)


@torch.no_grad()
def accept_lengths(
    target: TinyLlama, drafter: TinyLlama, head: Eagle3Head, samples: Sequence[Encoded], config: DistillConfig
) -> dict[str, float]:
    """Tokens a verify step on held-out samples, with chains of `unrolled` tokens from each drafter."""
    assert isinstance(head.vocabulary, Tensor)
    tokens = {"standalone": 0, "eagle3": 0}
    steps = {"standalone": 0, "eagle3": 0}
    for sample in samples:
        # A batch of one row has no padding.
        lesson = teach(target, *to_batch([sample], pad_id=0), head.shape.capture)
        right = lesson.scores.argmax(-1)
        if len(right) < 2:
            continue
        said = drafter.logits(lesson.tokens[:, 1:])[lesson.own[:, 1:]].argmax(-1)
        logits, _, _ = unrolled(head, target.embed_tokens.weight, lesson, config.unrolled)
        hits = {
            "standalone": (said == right)[1:].repeat(config.unrolled, 1),
            "eagle3": torch.stack([head.vocabulary[one[0].argmax(-1)] == right[1:] for one in logits]),
        }
        for name, hit in hits.items():
            tokens[name] += len(right) - 1
            steps[name] += _walk(hit.tolist())
    return {name: tokens[name] / max(1, steps[name]) for name in tokens}


def _walk(hits: list[list[bool]]) -> int:
    """Verify steps that a text takes. hits[j][s] says whether token s is correct as the j-th token of a draft."""
    place = taken = 0
    while place < len(hits[0]):
        depth = 0
        while depth < len(hits) and place < len(hits[0]) and hits[depth][place]:
            depth, place = depth + 1, place + 1
        # The target's own token follows whatever was accepted.
        place, taken = place + 1, taken + 1
    return taken
