"""Answers torch calls on a target's logits, of which only the most likely token is known."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from agentspec.integrations.emulated_device.device.tensors import (
    EmulationError,
    ForcedLogits,
    HostLogits,
    forced_logits,
    to_device,
    to_host,
)
from agentspec.integrations.emulated_device.device.work import Work
from agentspec.integrations.emulated_device.torch_calls.torch_names import FACTS

_BYTES_OF_A_LOGIT = 4
_GREEDY = "only greedy sampling of forced answers is emulated"


def logits_answer(work: Work, func: Any, name: str, logits: ForcedLogits, args: Any, kwargs: dict[str, Any]) -> Any:
    """What a torch call of this name returns for logits that do not exist. Raises EmulationError if the call needs more
    than the most likely token and the shape."""
    if name == "argmax":
        dim = kwargs.get("dim", args[1] if len(args) > 1 else None)
        if dim not in (-1, 1):
            raise EmulationError(f"argmax over the dimension {dim} of logits was called; {_GREEDY}")
        tokens = torch.Tensor.flatten(logits).clone()
        work.kernel(name, tokens.numel() * logits.vocab_size * _BYTES_OF_A_LOGIT)
        tokens = to_host(tokens) if isinstance(logits, HostLogits) else to_device(tokens)
        work.wrote(tokens)
        return tokens[:, None] if kwargs.get("keepdim") else tokens
    if name == "shape":
        return torch.Size((logits.numel(), logits.vocab_size))
    if name == "size":
        shape = torch.Size((logits.numel(), logits.vocab_size))
        return shape if len(args) < 2 else shape[args[1]]
    if name == "dtype":
        return torch.float32
    if name == "numel":
        return func(logits) * logits.vocab_size
    if name == "nan_to_num_":
        return logits
    if name in FACTS:
        return func(*args, **kwargs)
    if name == "__getitem__" and isinstance(args[1], slice | Tensor):
        result = func(*args, **kwargs)
        if result.dim() == 2:
            return forced_logits(result, logits.vocab_size, type(logits))
    raise EmulationError(f"{name} of a target's logits was called; {_GREEDY}")
