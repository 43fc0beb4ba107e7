"""Lets SGLang overlap scheduling and speculation on a CPU, as it does on a GPU.

SGLang has a rule that switches the overlap schedule off for speculation on a CPU. Apart from this rule, only two calls
do not work on a CPU. Both are in the relay that carries a draft model's state from step to step: a call of a Triton
kernel and, in an older release, a call that informs the GPU's allocator.

The rule holds unless SGLANG_CPU_OVERLAP is "on". On a CPU the schedule cannot hide work, because host and "device" are
the same cores; agentspec's servers lose 3 to 12 % of their tokens/s with it. Tests and `agentspec bench parity` turn it
on, because servers on a GPU run with it.
"""

from __future__ import annotations

import functools
import importlib
import os
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from agentspec.errors import ConfigError

VARIABLE = "SGLANG_CPU_OVERLAP"
_RULE = "_disable_overlap_schedule_for_cpu"
_GATHER = "gather_spec_extras"
_RESOLVE = "_resolve_spec_extras"


def patch_overlap_rule() -> None:
    """Disables the rule if SGLANG_CPU_OVERLAP is "on"; `--disable-overlap-schedule` keeps its meaning.

    Imports SGLang; a second call changes nothing. Raises ConfigError if the variable is neither `on` nor `off`.
    """
    wanted = os.environ.get(VARIABLE, "off")
    if wanted not in ("on", "off"):
        raise ConfigError(f"{VARIABLE} must be on or off, got {wanted!r}: set it to one, or unset it")
    if wanted == "off":
        return
    module: Any = importlib.import_module("sglang.srt.arg_groups.speculative_hook")
    if hasattr(module, _RULE):
        setattr(module, _RULE, _keep_overlap)


def patch_relay() -> None:
    """Replaces what the relay calls by code that runs on CPU tensors. Imports SGLang; a second call changes nothing."""
    module: Any = importlib.import_module("sglang.srt.managers.overlap_utils")
    if hasattr(module, _GATHER):
        setattr(module, _GATHER, gather_rows)
    resolve = getattr(module.FutureMap, _RESOLVE, None)
    # The name occurs in the function's code only if the function calls the method.
    if resolve is not None and "record_stream" in resolve.__code__.co_names:
        setattr(module.FutureMap, _RESOLVE, _with_host_indices(resolve))


class HostIndices(Tensor):
    """Indices in host memory that accept `record_stream`, which plain CPU tensors refuse.

    The call has nothing to do, because no allocator waits for a stream before it reuses host memory. Results computed
    from these indices are plain tensors.
    """

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    def record_stream(self, stream: Any) -> None:
        """Does nothing."""


def gather_rows(
    indices: Tensor, topk_p: Tensor, topk_index: Tensor, output_tokens: Tensor, hidden_states: Tensor | None
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """The rows `indices`, integer [b], of each buffer [rows, ...]; None for a buffer that is None."""
    hidden = None if hidden_states is None else hidden_states[indices]
    return topk_p[indices], topk_index[indices], output_tokens[indices], hidden


def _with_host_indices(resolve: Callable[[Any, Any], None]) -> Callable[[Any, Any], None]:
    @functools.wraps(resolve)
    def resolve_spec_extras(self: Any, batch: Any) -> None:
        draft_input = batch.spec_info
        indices = getattr(draft_input, "future_indices", None)
        if indices is None:
            return resolve(self, batch)
        draft_input.future_indices = indices.as_subclass(HostIndices)
        try:
            resolve(self, batch)
        finally:
            draft_input.future_indices = indices

    return resolve_spec_extras


def _keep_overlap(server_args: Any) -> None:
    """Leaves the schedule as requested."""
