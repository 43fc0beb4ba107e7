"""Lets SGLang overlap scheduling and speculation on a CPU, as it does on a GPU.

SGLang switches the overlap schedule off for speculation on a CPU and for nothing else. Two places stand in its way:
the rule itself, and one Triton kernel of the relay that carries a draft model's state from step to step.
"""

from __future__ import annotations

import importlib
from typing import Any

from torch import Tensor

_RULE = "_disable_overlap_schedule_for_cpu"
_GATHER = "gather_spec_extras"


def patch_overlap_rule() -> None:
    """Lifts the rule; `--disable-overlap-schedule` keeps its meaning. Imports SGLang; a second call changes nothing."""
    module: Any = importlib.import_module("sglang.srt.arg_groups.speculative_hook")
    if hasattr(module, _RULE):
        setattr(module, _RULE, _keep_overlap)


def patch_relay() -> None:
    """Gives the relay a gather of rows that CPU tensors can run. Imports SGLang; a second call changes nothing."""
    module: Any = importlib.import_module("sglang.srt.managers.overlap_utils")
    if hasattr(module, _GATHER):
        setattr(module, _GATHER, gather_rows)


def gather_rows(
    indices: Tensor, topk_p: Tensor, topk_index: Tensor, output_tokens: Tensor, hidden_states: Tensor | None
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """The rows `indices`, integer [b], of each buffer [rows, ...]; None for a buffer that is None."""
    hidden = None if hidden_states is None else hidden_states[indices]
    return topk_p[indices], topk_index[indices], output_tokens[indices], hidden


def _keep_overlap(server_args: Any) -> None:
    """Leaves the schedule as it was asked for."""

