"""The tiny target with its drafters, and the time of a forward of each and of their acceptance heads, in this
process."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from tokenizers import Tokenizer
from torch import Tensor

from agentspec.errors import ConfigError
from agentspec.evals.research.tiny_sql.chains import (
    Branches,
    Drafter,
    Eagle3Drafter,
    LlamaBranches,
    StandaloneDrafter,
    Text,
)
from agentspec.evals.research.tiny_sql.eagle3 import load_head
from agentspec.evals.research.tiny_sql.model import TinyLlama, load_model
from agentspec.integrations.sglang.drafting.acceptance_head import AcceptanceHead

WIDTHS = (1, 5, 9, 15, 21)
"""Numbers of tokens in the timed verifications."""
_USUAL_WIDTH = 9


@dataclass(frozen=True)
class Costs:
    """Medians in seconds: `target` by tokens verified, `draft` and `head` by drafter."""

    target: dict[int, float]
    draft: dict[str, float]
    head: dict[str, float]

    @property
    def target_seconds(self) -> float:
        """t_target of equation 2.1, which assumes that it is constant: that of a verification of nine tokens."""
        return self.target[_USUAL_WIDTH]


@torch.no_grad()
def measure_costs(pair: Drafters, heads: Mapping[str, AcceptanceHead], texts: Sequence[Text], rounds: int) -> Costs:
    """Medians over `rounds`. Each round times everything once, in the middle of one of the texts.

    Raises:
        ConfigError: All texts are shorter than the widest verification.
    """
    long = [text for text in texts if len(text.starts) > max(WIDTHS)]
    if not long:
        raise ConfigError(f"timing needs a text of more than {max(WIDTHS)} answer tokens: take more texts")
    target: dict[int, list[float]] = {width: [] for width in WIDTHS}
    draft: dict[str, list[float]] = {name: [] for name in pair.drafters}
    judged: dict[str, list[float]] = {name: [] for name in heads}
    for number in range(rounds):
        text = long[number % len(long)]
        middle = int(text.starts[(len(text.starts) - max(WIDTHS)) // 2])
        for width in WIDTHS:
            # The verified tokens see as many keys of the prefix as when serving, and bring their own.
            places = torch.arange(middle, middle + width)
            verify = LlamaBranches(pair.target, text.tokens[: middle + width], places)
            target[width].append(_seconds(partial(_go_on, verify, text.tokens[places + 1])))
        start = torch.tensor([middle])
        for name, drafter in pair.drafters.items():
            branches = drafter.branches(text, start)
            draft[name].append(_seconds(partial(_go_on, branches, text.tokens[start + 1])))
            if name in heads:
                judge = partial(heads[name], branches.states)
                # A drafting loop calls the head many times, and the overhead of the first call would exceed so short a time.
                judge()
                judged[name].append(_seconds(judge))
    return Costs(
        {width: statistics.median(seconds) for width, seconds in target.items()},
        {name: statistics.median(seconds) for name, seconds in draft.items()},
        {name: statistics.median(seconds) for name, seconds in judged.items()},
    )


def _go_on(branches: Branches, tokens: Tensor) -> None:
    branches.step(tokens)
    branches.logits().softmax(-1).max(-1)


def _seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


@dataclass(frozen=True)
class Drafters:
    """A target, its tokenizer, drafters by name, and the target's layers that they need (see `own_texts`)."""

    target: TinyLlama
    tokenizer: Tokenizer
    drafters: dict[str, Drafter]
    capture: tuple[int, ...]


def load_drafters(target_folder: Path, folders: Mapping[str, Path]) -> Drafters:
    """Loads checkpoints as `make model` writes them; `folders` maps "standalone" and "eagle3" to theirs.

    Raises:
        ConfigError: A checkpoint is missing.
    """
    for folder in (target_folder, *folders.values()):
        if not (folder / "model.safetensors").is_file():
            raise ConfigError(f"{folder} must hold a checkpoint as `make model` writes it, got no model.safetensors")
    target = load_model(target_folder)
    drafters: dict[str, Drafter] = {}
    # A text that no EAGLE-3 head reads needs no layer, but at least one is needed for concatenation.
    capture: tuple[int, ...] = (0,)
    for name, folder in folders.items():
        if name == "eagle3":
            head = load_head(folder, target.shape)
            capture = head.shape.capture
            drafters[name] = Eagle3Drafter(head, target.embed_tokens.weight.detach())
        else:
            drafters[name] = StandaloneDrafter(load_model(folder))
    tokenizer = Tokenizer.from_file(str(target_folder / "tokenizer.json"))
    return Drafters(target, tokenizer, drafters, capture)
