"""Which slots of the KV cache hold the drafter's keys and values for the token that the target keeps there."""

from __future__ import annotations

from typing import Any

import torch


class ReadSlots:
    """A bit for each slot: whether the drafter has read the token in it.

    The target and the drafter share slots, and the prefix cache hands slots with their content to later requests. So
    where the drafter did not read a prompt or an answer, requests that begin with it find holes.
    """

    def __init__(self) -> None:
        self._read = torch.empty(0, dtype=torch.bool)

    def written(self, batch: Any, slots: torch.Tensor, *, read: bool) -> None:
        """The target wrote tokens to `slots`, int64[n], and the drafter has read them or not."""
        if not len(self._read):
            # Known once memory is allocated; slot 0 is the one of padding.
            allocator = batch.token_to_kv_pool_allocator
            self._read = torch.zeros(allocator.size + allocator.page_size + 1, dtype=torch.bool, device=slots.device)
        self._read.index_fill_(0, slots.long(), read)

    def of(self, slots: torch.Tensor) -> torch.Tensor:
        """bool[n], of the slots int[n]."""
        if not len(self._read):
            return torch.zeros(len(slots), dtype=torch.bool, device=slots.device)
        return self._read[slots.long()]
