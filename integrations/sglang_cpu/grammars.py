"""Lets releases of SGLang that mask logits only on accelerators serve requests with a grammar on a CPU.

Newer releases allocate XGrammar's mask in ordinary memory and apply it to CPU tensors. An older release requires pinned
memory, which only an accelerator's driver provides, and refuses CPU tensors.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from torch import Tensor

_ALLOCATE = "_allocate_token_bitmask"


def patch_grammars() -> None:
    """Add CPU support to SGLang's XGrammar backend; imports SGLang. Calling it again changes nothing."""
    module: Any = importlib.import_module("sglang.srt.constrained.xgrammar_backend")
    allocate = getattr(module, _ALLOCATE, None)
    # Code that checks for pinned memory, or names the device, already supports a CPU.
    if allocate is not None and "is_pin_memory_available" not in allocate.__code__.co_names:
        setattr(module, _ALLOCATE, allocate_bitmask)
    grammar = getattr(module, "XGrammarGrammar", None)
    if grammar is not None and "cpu" not in grammar.apply_vocab_mask.__code__.co_consts:
        grammar.apply_vocab_mask = _apply_on_cpu(grammar.apply_vocab_mask)


def allocate_bitmask(vocab_size: int, batch_size: int) -> Tensor:
    """A mask, int32 [batch_size, ceil(vocab_size / 32)], that allows every token."""
    mask: Tensor = importlib.import_module("xgrammar").allocate_token_bitmask(batch_size, vocab_size)
    return mask


def _apply_on_cpu(apply: Callable[[Any, Tensor, Tensor], None]) -> Callable[[Any, Tensor, Tensor], None]:
    def apply_vocab_mask(self: Any, logits: Tensor, vocab_mask: Tensor) -> None:
        if logits.device.type == "cpu":
            importlib.import_module("xgrammar").apply_token_bitmask_inplace(logits, vocab_mask, backend="cpu")
        else:
            apply(self, logits, vocab_mask)

    return apply_vocab_mask
