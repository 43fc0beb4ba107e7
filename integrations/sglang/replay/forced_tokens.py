"""The tokens that the target must write, by request slot and position, where its forward can look them up.

    slot   begin  length  end   answers
       0      17       3    2   [ 41  7 99  -  - ]     positions 17, 18, 19 are forced, then `end` for ever
       1       0      -1    0   [  -  -  -  -  - ]     free

A logit at position p of a slot says which token comes at p + 1. Nodes of a draft tree are looked up by their positions
alone: the parent of a node off the recorded path is forced to another token, so such a node is never reached.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

_FREE = -1
# Exceeds every logit by so much that no temperature, penalty or bias changes the choice; also of half precision.
_RAISED = 1e9


class ForcedTokens:
    """A table on the device of the target. Nothing here waits for the device; whoever writes and whoever looks up must
    do so on one stream."""

    def __init__(self, num_slots: int, device: torch.device | str) -> None:
        self._device = torch.device(device)
        # int64[slots, 3]: begin, length, end.
        self._rows = torch.zeros((num_slots, 3), dtype=torch.int64, device=self._device)
        self._rows[:, 1] = _FREE
        self._answers = torch.zeros((num_slots, 1), dtype=torch.int32, device=self._device)

    def write(self, slot: int, begin: int, answer: Sequence[int], end: int) -> None:
        """Forces `answer` from position `begin` on, and `end` at every position behind it."""
        if len(answer) > self._answers.shape[1]:
            self._widen(len(answer))
        if len(answer):
            self._answers[slot, : len(answer)].copy_(self._moved(answer, torch.int32), non_blocking=True)
        self._rows[slot].copy_(self._moved((begin, len(answer), end), torch.int64), non_blocking=True)

    def free(self, slot: int) -> None:
        """Forces nothing in this slot."""
        self._rows[slot].copy_(self._moved((0, _FREE, 0), torch.int64), non_blocking=True)

    def look_up(self, slots: Tensor, positions: Tensor) -> Tensor:
        """The forced tokens, int64[n], -1 where there is none; `positions` int[n] are those of the tokens themselves."""
        begin, length, end = self._rows[slots].unbind(1)
        index = positions - begin
        inside = index.clamp(0, self._answers.shape[1] - 1)
        token = torch.where(index < length, self._answers[slots, inside].long(), end)
        return torch.where((length >= 0) & (index >= 0), token, _FREE)

    def force(self, logits: Tensor, slots: Tensor, positions: Tensor) -> None:
        """Raises the logit of each row's forced token, in place.

        Args:
            logits: float[n, vocabulary].
            slots: int[n].
            positions: int[n], of the tokens that the logits are of; those that they predict come one later.
        """
        slots = slots.long()
        token = self.look_up(slots, positions.long() + 1)
        raised = min(_RAISED, torch.finfo(logits.dtype).max / 16)
        index = token.clamp(min=0)[:, None]
        value = torch.where(token[:, None] >= 0, raised, logits.gather(1, index).float()).to(logits.dtype)
        logits.scatter_(1, index, value)

    def _moved(self, values: Sequence[int], dtype: torch.dtype) -> Tensor:
        # From pinned memory, which the allocator gives out again only after the copy.
        host = torch.tensor(values, dtype=dtype, pin_memory=self._device.type == "cuda")
        return host.to(self._device, non_blocking=True)

    def _widen(self, length: int) -> None:
        wider = self._answers.new_zeros((self._answers.shape[0], 1 << (length - 1).bit_length()))
        wider[:, : self._answers.shape[1]] = self._answers
        self._answers = wider
