"""Chooses the number of threads for each forward.

A parallel region costs some ten microseconds, and a forward has hundreds of them. A small model that decodes one token
is quicker on one thread; the same model is half as quick again on two where it reads a prompt or verifies drafts.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

# Multiply-adds that each thread should have: a third of a millisecond. A model of 5M weights took 0.97 to 1.02 times as
# long on one of two threads as on both with 1 token, 0.95 to 1.07 with 4, 1.15 to 1.24 with 8, and 1.46 with 96.
_LEAST_WORK = 1 << 24

_most = torch.get_num_threads()


def num_threads(num_tokens: int, num_weights: int, most: int) -> int:
    """The number of threads, from 1 to `most`, that pays off for `num_tokens` tokens through `num_weights` weights."""
    return max(min(num_tokens * num_weights // _LEAST_WORK, most), 1)


@contextmanager
def threads_for(num_tokens: int, num_weights: int) -> Iterator[None]:
    """Sets torch's number of threads to what pays off for this forward, and restores it afterwards."""
    before = torch.get_num_threads()
    torch.set_num_threads(num_threads(num_tokens, num_weights, _most))
    try:
        yield
    finally:
        torch.set_num_threads(before)


def patch_threads() -> None:
    """Let each of SGLang's forwards run on the number of threads that pays off; imports SGLang.

    Once there was one, what comes between forwards has one thread: a few operations on small tensors, some of which
    torch would share out however small they are, and then wait for a thread that sleeps. Calling it again changes
    nothing.
    """
    runner: Any = importlib.import_module("sglang.srt.model_executor.model_runner").ModelRunner
    original = runner.forward
    if getattr(original, "_agentspec_cpu", False):
        return

    @functools.wraps(original)
    def forward(self: Any, forward_batch: Any, *args: Any, **kwargs: Any) -> Any:
        torch.set_num_threads(1)
        with threads_for(_num_tokens(forward_batch), _num_weights(self)):
            return original(self, forward_batch, *args, **kwargs)

    forward._agentspec_cpu = True  # type: ignore[attr-defined]
    runner.forward = forward


def _num_tokens(forward_batch: Any) -> int:
    tokens = forward_batch.input_ids
    # Where embeddings are given instead, there are many.
    return len(tokens) if tokens is not None else _LEAST_WORK


def _num_weights(runner: Any) -> int:
    if not hasattr(runner, "_agentspec_num_weights"):
        runner._agentspec_num_weights = sum(weight.numel() for weight in runner.model.parameters())
    known: int = runner._agentspec_num_weights
    return known
