"""How many threads each of SGLang's forwards runs on.

A parallel region costs some ten microseconds, and a forward has hundreds of them. A small model that decodes one token
is quicker on one thread; the same model is half as quick again on two where it reads a prompt or verifies drafts.
"""

from __future__ import annotations

import functools
import importlib
from typing import Any

import torch

# Multiply-adds that each thread should have: a third of a millisecond. A model of 5M weights took 0.97 to 1.02 times as
# long on one of two threads as on both with 1 token, 0.95 to 1.07 with 4, 1.15 to 1.24 with 8, and 1.46 with 96.
_LEAST_WORK = 1 << 24


def patch_threads() -> None:
    """Let forwards run on as many threads as their work is worth, of those that torch has; imports SGLang.

    Calling it again changes nothing.
    """
    runner: Any = importlib.import_module("sglang.srt.model_executor.model_runner").ModelRunner
    original = runner.forward
    if getattr(original, "_agentspec_cpu", False):
        return

    @functools.wraps(original)
    def forward(self: Any, forward_batch: Any, *args: Any, **kwargs: Any) -> Any:
        most = torch.get_num_threads()
        torch.set_num_threads(_num_threads(self, forward_batch, most))
        try:
            return original(self, forward_batch, *args, **kwargs)
        finally:
            torch.set_num_threads(most)

    forward._agentspec_cpu = True  # type: ignore[attr-defined]
    runner.forward = forward


def num_threads(num_tokens: int, num_weights: int, most: int) -> int:
    """Of `most` threads those that a forward of so many tokens through so many weights is worth; at least 1."""
    return max(min(num_tokens * num_weights // _LEAST_WORK, most), 1)


def _num_threads(runner: Any, forward_batch: Any, most: int) -> int:
    if most == 1 or forward_batch.input_ids is None:
        return most
    weights = getattr(runner, "_agentspec_num_weights", 0)
    if not weights:
        weights = runner._agentspec_num_weights = sum(weight.numel() for weight in runner.model.parameters())
    return num_threads(len(forward_batch.input_ids), weights, most)
