"""A table on the device of the tokens that the target must write, by request slot and position.

    slot   begin  length  end   answers
       0      17       3    2   [ 41  7 99  -  - ]     positions 17, 18, 19 are forced, then `end` at all later ones
       1       0      -1    0   [  -  -  -  -  - ]     nothing is forced

A logit at position p of a slot says which token comes at p + 1. For a node of a draft tree, only its position is looked
up. This is enough: the parent of a node off the recorded path is forced to another token, so such a node is never
accepted.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

_FREE = -1
# Exceeds every logit by so much that no temperature, penalty or bias changes the choice. force() clamps it for half
# precision.
_RAISED = 1e9


class ForcedTokens:
    """The table, on the target's device. Nothing here waits for the device. All calls must be on the same stream."""

    def __init__(self, num_slots: int, device: torch.device | str) -> None:
        self._device = torch.device(device)
        # int64[slots, 3]: begin, length, end.
        self._rows = torch.zeros((num_slots, 3), dtype=torch.int64, device=self._device)
        self._rows[:, 1] = _FREE
        self._answers = torch.zeros((num_slots, 1), dtype=torch.int32, device=self._device)

    def write(self, slot: int, begin: int, answer: Sequence[int], end: int) -> None:
        """Forces `answer` from position `begin` on, and `end` at every later position."""
        if len(answer) > self._answers.shape[1]:
            self._widen(len(answer))
        if len(answer):
            self._answers[slot, : len(answer)].copy_(self._moved(answer, torch.int32), non_blocking=True)
        self._rows[slot].copy_(self._moved((begin, len(answer), end), torch.int64), non_blocking=True)

    def free(self, slot: int) -> None:
        """Forces nothing in this slot."""
        self._rows[slot].copy_(self._moved((0, _FREE, 0), torch.int64), non_blocking=True)

    def look_up(self, slots: Tensor, positions: Tensor) -> Tensor:
        """The forced tokens, int64[n], or -1 if nothing is forced. `positions`: int[n], the tokens' own."""
        begin, length, end = self._rows[slots].unbind(1)
        index = positions - begin
        inside = index.clamp(0, self._answers.shape[1] - 1)
        token = torch.where(index < length, self._answers[slots, inside].long(), end)
        return torch.where((length >= 0) & (index >= 0), token, _FREE)

    def force(self, logits: Tensor, slots: Tensor, positions: Tensor) -> None:
        """Raises the logit of each row's forced token, in place.

        Args:
            logits: float[n, vocabulary].
            slots: int[n], the request slot of each row.
            positions: int[n], the position of each row's input token. The predicted token comes one later.
        """
        slots = slots.long()
        token = self.look_up(slots, positions.long() + 1)
        raised = min(_RAISED, torch.finfo(logits.dtype).max / 16)
        index = token.clamp(min=0)[:, None]
        value = torch.where(token[:, None] >= 0, raised, logits.gather(1, index).float()).to(logits.dtype)
        logits.scatter_(1, index, value)

    def _moved(self, values: Sequence[int], dtype: torch.dtype) -> Tensor:
        # The allocator reuses pinned memory only after the copy.
        host = torch.tensor(values, dtype=dtype, pin_memory=self._device.type == "cuda")
        return host.to(self._device, non_blocking=True)

    def _widen(self, length: int) -> None:
        wider = self._answers.new_zeros((self._answers.shape[0], 1 << (length - 1).bit_length()))
        wider[:, : self._answers.shape[1]] = self._answers
        self._answers = wider
