"""Trains the tiny SQL model from scratch: the loop, its schedule and its measure on held-out samples."""

from __future__ import annotations

import random
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import torch
from tokenizers import Tokenizer
from torch import Tensor

from agentspec.evals.research.tiny_sql.corpus import Sample, draw_samples
from agentspec.evals.research.tiny_sql.learner import Learner, rate_at, show_progress
from agentspec.evals.research.tiny_sql.model import LlamaShape, TinyLlama
from agentspec.evals.research.tiny_sql.tokenizer import (
    BEGIN,
    END,
    PAD,
    SPECIAL_TOKENS,
    render,
    special_id,
    train_tokenizer,
)
from agentspec.workflows.text_to_sql.generated.databases import Database

# Batches are sorted by length within a pool of this many, which needs little padding and still mixes well.
_POOL_BATCHES = 32
_COPIED_TOKENS = 40


@dataclass(frozen=True)
class TrainConfig:
    """What a training run depends on, besides the databases.

    `tokens_per_batch` counts prompt, answer and padding; `matrix_lr` is the rate of Muon for the matrices of the
    layers, `lr` the rate of AdamW for embeddings and norms. Rates warm up over `warmup` of the steps, then decay
    linearly to zero. The first `copy_steps` batches, and `copy_share` of the later samples, contain only random tokens
    to repeat. Values have to be copied from the question to the SQL, and a model that begins with copying has half the
    held-out loss after the next 200 steps.
    """

    seed: int = 0
    steps: int = 1600
    copy_steps: int = 120
    copy_share: float = 0.04
    tokens_per_batch: int = 4096
    lr: float = 3e-3
    matrix_lr: float = 6e-3
    weight_decay: float = 0.01
    warmup: float = 0.03
    tokenizer_samples: int = 20_000
    measured_samples: int = 400

    def __post_init__(self) -> None:
        if self.steps < 1 or self.tokens_per_batch < 512:
            raise ValueError(
                f"steps must be at least 1 and tokens_per_batch at least 512, got {self.steps}, {self.tokens_per_batch}"
            )


@dataclass(frozen=True)
class Encoded:
    """Token ids of one sample: the prompt with the generation prompt, and the answer with its end token."""

    stage: str
    prompt: tuple[int, ...]
    answer: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.prompt) + len(self.answer)


def encode(tokenizer: Tokenizer, samples: Sequence[Sample]) -> list[Encoded]:
    """Token ids of the samples."""
    prompts = tokenizer.encode_batch([render(sample.messages) for sample in samples])
    answers = tokenizer.encode_batch([sample.answer + END for sample in samples])
    return [
        Encoded(sample.stage, tuple(prompt.ids), tuple(answer.ids))
        for sample, prompt, answer in zip(samples, prompts, answers, strict=True)
    ]


def copy_sample(tokenizer: Tokenizer, rng: random.Random, length: int) -> Encoded:
    """`length` random tokens that the answer repeats."""
    begin, user, end, assistant = (special_id(tokenizer, t) for t in (BEGIN, "<|user|>", END, "<|assistant|>"))
    copied = tuple(rng.randrange(len(SPECIAL_TOKENS), tokenizer.get_vocab_size()) for _ in range(length))
    return Encoded("copy", (begin, user, *copied, end, assistant), (*copied, end))


def to_batch(samples: Sequence[Encoded], pad_id: int) -> tuple[Tensor, Tensor]:
    """(tokens, targets), int64 [batch, length], padded on the right; targets are -100 except at answer tokens."""
    length = max(len(sample) for sample in samples) - 1
    tokens = torch.full((len(samples), length), pad_id)
    targets = torch.full((len(samples), length), -100)
    for row, sample in enumerate(samples):
        ids = torch.tensor(sample.prompt + sample.answer)
        tokens[row, : len(ids) - 1] = ids[:-1]
        targets[row, len(sample.prompt) - 1 : len(ids) - 1] = ids[len(sample.prompt) :]
    return tokens, targets


def batches(samples: Iterator[Sample], tokenizer: Tokenizer, config: TrainConfig) -> Iterator[tuple[Tensor, Tensor]]:
    """Batches of about `tokens_per_batch` tokens, with samples of similar length, in random order."""
    rng = random.Random(f"batches/{config.seed}")
    pad_id = special_id(tokenizer, PAD)
    for _ in range(config.copy_steps):
        count = config.tokens_per_batch // (2 * _COPIED_TOKENS + 5)
        yield to_batch([copy_sample(tokenizer, rng, _COPIED_TOKENS) for _ in range(count)], pad_id)
    while True:
        pool: list[Encoded] = []
        while sum(len(sample) for sample in pool) < _POOL_BATCHES * config.tokens_per_batch:
            pool += encode(tokenizer, list(islice(samples, 512)))
            copies = round(512 * config.copy_share)
            pool += [copy_sample(tokenizer, rng, rng.randint(2, 2 * _COPIED_TOKENS)) for _ in range(copies)]
        for group in _groups(pool, rng, config):
            yield to_batch(group, pad_id)


def repeated_batches(samples: Sequence[Encoded], pad_id: int, config: TrainConfig) -> Iterator[tuple[Tensor, Tensor]]:
    """Endless batches like those of `batches`, of the same samples again and again."""
    rng = random.Random(f"repeated/{config.seed}")
    # Each time other samples share a batch.
    pool_size = max(1, _POOL_BATCHES * config.tokens_per_batch // max(map(len, samples)))
    while True:
        order = rng.sample(samples, len(samples))
        for first in range(0, len(order), pool_size):
            for group in _groups(order[first : first + pool_size], rng, config):
                yield to_batch(group, pad_id)


def _groups(pool: list[Encoded], rng: random.Random, config: TrainConfig) -> list[list[Encoded]]:
    """The samples in batches of like length, in random order."""
    pool.sort(key=lambda sample: (len(sample), sample.answer))
    groups: list[list[Encoded]] = [[]]
    for sample in pool:
        if len(sample) * (len(groups[-1]) + 1) > config.tokens_per_batch:
            groups.append([])
        groups[-1].append(sample)
    rng.shuffle(groups)
    return [group for group in groups if group]


def train(
    databases: dict[Database, Path], shape: LlamaShape, config: TrainConfig
) -> tuple[Tokenizer, TinyLlama, list[float]]:
    """Train tokenizer and model; gives both and the loss of every step. Progress goes to standard error.

    The forward and backward passes run on a bfloat16 copy; the float32 master weights take the steps.
    """
    torch.manual_seed(config.seed)
    tokenizer = train_tokenizer(
        (
            text
            for sample in islice(draw_samples(databases, split="train", seed=config.seed), config.tokenizer_samples)
            for text in (render(sample.messages), sample.answer)
        ),
        vocab_size=shape.vocab_size,
    )
    learner = Learner(TinyLlama(shape), matrix_lr=config.matrix_lr, lr=config.lr, weight_decay=config.weight_decay)
    feed = batches(draw_samples(databases, split="train", seed=config.seed), tokenizer, config)
    losses: list[float] = []
    start, seen = time.monotonic(), 0
    for step in range(config.steps):
        tokens, targets = next(feed)
        losses.append(learner.step(learner.twin(tokens, targets), rate_at(step, config.steps, config.warmup)))
        seen += tokens.numel()
        if (step + 1) % 20 == 0 or step + 1 == config.steps:
            recent = losses[-20:]
            mean = f"{sum(recent) / len(recent):.4f}"
            show_progress(step + 1, config.steps, mean, seen, time.monotonic() - start)
    return tokenizer, learner.master, losses


@torch.no_grad()
def exact_share(
    model: TinyLlama, tokenizer: Tokenizer, databases: dict[Database, Path], config: TrainConfig
) -> dict[str, float]:
    """Share of held-out samples, by stage, whose every answer token is the model's first choice.

    That is what greedy decoding would write, given the right prompt.
    """
    samples = list(islice(draw_samples(databases, split="heldout", seed=config.seed), config.measured_samples))
    pad_id = special_id(tokenizer, PAD)
    right: dict[str, list[bool]] = defaultdict(list)
    for sample in sorted(encode(tokenizer, samples), key=len):
        tokens, targets = to_batch([sample], pad_id)
        wanted = targets != -100
        right[sample.stage].append(bool((model.logits(tokens).argmax(-1)[wanted] == targets[wanted]).all()))
    return {stage: sum(hits) / len(hits) for stage, hits in sorted(right.items())}
