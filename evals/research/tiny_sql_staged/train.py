"""Trains the small model of the staged agents: fresh random databases at every step, checkpoints, held-out measures."""

from __future__ import annotations

import os
import random
import sys
import tempfile
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import islice
from math import cos, pi
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer

from agentspec.evals.research.tiny_sql.model import TinyLlama
from agentspec.evals.research.tiny_sql.tokenizer import END, render
from agentspec.evals.research.tiny_sql.train import copy_sample
from agentspec.evals.research.tiny_sql_staged.corpus import Lesson, draw_lessons
from agentspec.evals.research.tiny_sql_staged.initial import CIRCUIT
from agentspec.evals.research.tiny_sql_staged.optimizer import Optimizer
from agentspec.evals.research.tiny_sql_staged.packed_model import exact_answers, packed_loss
from agentspec.evals.research.tiny_sql_staged.packing import Example, Pack
from agentspec.evals.research.tiny_sql_staged.tokenizer import FIXED_TEXTS, staged_tokenizer
from agentspec.workflows.text_to_sql.agents.stages import STAGES

# Few tokens decide: the kind of a question, the columns it names, and the statement. Most others are copies.
STAGE_WEIGHTS = {"classify": 3.0, "extract": 3.0, "draft": 2.5, "combine": 2.5, "repair": 2.5, "enrich": 0.7}
# Share of the other stages' calls that is learnt from: their answers are long and mostly copied.
STAGE_SHARES = {"enrich": 0.3, "check": 0.5}
_MOST_COPIED = 80
_RECENT = 50


@dataclass(frozen=True)
class TrainConfig:
    """What a training run depends on.

    `minutes` is the time after which the learning rate reaches zero; it is counted over all parts of a resumed run.
    `circuit_rate` is the share of `matrix_lr` at which the circuit of `initial` learns: the full rate destroys it.
    """

    minutes: float
    seed: int = 0
    lessons_per_step: int = 2
    lr: float = 3e-4
    matrix_lr: float = 1e-3
    circuit_rate: float = 0.3
    warmup_minutes: float = 1.0
    tokenizer_lessons: int = 200
    measured_lessons: int = 15


@dataclass
class Progress:
    """How far a run has come. `tokens` counts packed tokens, in which a common beginning counts once."""

    steps: int = 0
    seconds: float = 0.0
    tokens: int = 0
    answer_tokens: int = 0
    lessons: int = 0


def encode(tokenizer: Tokenizer, lesson: Lesson) -> list[Example]:
    """Token ids of the calls."""
    prompts = tokenizer.encode_batch([render(call.messages) for call in lesson.calls])
    answers = tokenizer.encode_batch([call.answer + END for call in lesson.calls])
    return [
        Example(call.stage, tuple(prompt.ids), tuple(answer.ids), STAGE_WEIGHTS.get(call.stage, 1.0))
        for call, prompt, answer in zip(lesson.calls, prompts, answers, strict=True)
    ]


def corpus_tokenizer(config: TrainConfig, vocab_size: int) -> Tokenizer:
    """The tokenizer, learnt from lessons on databases of training words."""

    def texts() -> Iterator[str]:
        with tempfile.TemporaryDirectory() as folder:
            drawn = draw_lessons(Path(folder), seed=f"tokenizer/{config.seed}")
            for lesson in islice(drawn, config.tokenizer_lessons):
                for call in lesson.calls:
                    text = render(call.messages)
                    for fixed in FIXED_TEXTS:
                        text = text.replace(fixed, "")
                    yield text
                    yield call.answer

    return staged_tokenizer(texts(), vocab_size=vocab_size)


def held_out_packs(tokenizer: Tokenizer, number: int, *, seed: str, unseen_words: bool) -> list[Pack]:
    """Lessons on databases that training never sees, one a pack."""
    packs = []
    with tempfile.TemporaryDirectory() as folder:
        for lesson in islice(draw_lessons(Path(folder), seed=seed, unseen_words=unseen_words), number):
            packs.append(Pack())
            packs[-1].add(encode(tokenizer, lesson))
    return packs


class Trainer:
    """A run that `checkpoint` files in a folder make resumable.

    Args:
        folder: The folder of the checkpoint, the latest one only.
        tokenizer: The tokenizer.
        model: The model, changed in place.
        config: The settings.
    """

    def __init__(self, folder: Path, tokenizer: Tokenizer, model: TinyLlama, config: TrainConfig) -> None:
        self._file = folder / "checkpoint.pt"
        self._tokenizer = tokenizer
        self.model = model
        self._config = config
        self._optimizer = Optimizer(
            model, matrix_lr=config.matrix_lr, lr=config.lr, slow=CIRCUIT, slow_rate=config.circuit_rate
        )
        self.progress = Progress()
        self._losses: deque[float] = deque(maxlen=_RECENT)
        if self._file.exists():
            state: dict[str, Any] = torch.load(self._file, weights_only=True)
            model.load_state_dict(state["model"])
            self._optimizer.restore(state["optimizer"])
            self.progress = Progress(**state["progress"])

    def run(self, *, measure_minutes: float = 4.0, stop_after_minutes: float | None = None) -> None:
        """Train until the rate is zero, or for some minutes; print a measure every few minutes and keep a checkpoint."""
        config, progress = self._config, self.progress
        measured = {
            name: held_out_packs(self._tokenizer, config.measured_lessons, seed=f"measure/{name}", unseen_words=unseen)
            for name, unseen in (("seen words", False), ("unseen words", True))
        }
        began = last = measured_at = time.monotonic()
        with tempfile.TemporaryDirectory() as databases:
            # A resumed run draws new lessons.
            feed = draw_lessons(Path(databases), seed=f"train/{config.seed}/{progress.lessons}")
            while progress.seconds < 60 * config.minutes:
                pack = self._pack(feed)
                loss = self._optimizer.step(packed_loss(self.model, pack), self._rate())
                self._losses.append(loss)
                progress.steps += 1
                progress.tokens += len(pack.tokens)
                progress.answer_tokens += sum(target >= 0 for target in pack.targets)
                now = time.monotonic()
                progress.seconds += now - last
                last = now
                if progress.steps % 20 == 0:
                    self._print(f"loss {sum(self._losses) / len(self._losses):.4f}")
                if now - measured_at > 60 * measure_minutes:
                    self.measure(measured)
                    self.save()
                    last = measured_at = time.monotonic()
                if stop_after_minutes is not None and now - began > 60 * stop_after_minutes:
                    break
        self.measure(measured)
        self.save()

    def measure(self, measured: dict[str, list[Pack]]) -> None:
        """Print the share of exact answers by stage."""
        for name, packs in measured.items():
            counts = exact_answers(self.model, packs)
            self._print(f"exact, {name}: " + shares(counts))

    def save(self) -> None:
        """Write the checkpoint; an interruption leaves the one before."""
        self._file.parent.mkdir(parents=True, exist_ok=True)
        state = {
            "model": self.model.state_dict(),
            "optimizer": self._optimizer.state(),
            "progress": asdict(self.progress),
        }
        beside = self._file.with_suffix(".part")
        torch.save(state, beside)
        os.replace(beside, self._file)

    def _pack(self, feed: Iterator[Lesson]) -> Pack:
        config, pack = self._config, Pack()
        rng = random.Random(f"pack/{config.seed}/{self.progress.steps}")
        sample = copy_sample(self._tokenizer, rng, rng.randint(4, _MOST_COPIED))
        pack.add([Example("copy", sample.prompt, sample.answer)])
        for lesson in islice(feed, config.lessons_per_step):
            examples = encode(self._tokenizer, lesson)
            pack.add([example for example in examples if rng.random() < STAGE_SHARES.get(example.stage, 1.0)])
            self.progress.lessons += 1
        return pack

    def _rate(self) -> float:
        """Share of the full rates: a rise over the first minutes, then half a cosine wave to zero."""
        config, minutes = self._config, self.progress.seconds / 60
        rising = min(1.0, (minutes + 0.05) / config.warmup_minutes)
        return rising * (0.02 + 0.98 * (1 + cos(pi * min(1.0, minutes / config.minutes))) / 2)

    def _print(self, text: str) -> None:
        p = self.progress
        print(
            f"{p.seconds / 60:5.1f} min  step {p.steps}  {p.tokens / 1e6:.2f}M tokens, "
            f"{p.tokens / max(1.0, p.seconds):,.0f}/s  {text}",
            file=sys.stderr,
            flush=True,
        )


def shares(counts: dict[str, tuple[int, int]]) -> str:
    """Shares by stage as text."""
    return ", ".join(f"{stage} {counts[stage][0] / counts[stage][1]:.0%}" for stage in STAGES if stage in counts)
