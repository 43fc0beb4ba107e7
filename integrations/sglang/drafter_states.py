"""What a drafter has of each request: how far it has read, and what it needs to read on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

# So many requests are known before any is looked for that ended unseen.
_FIRST_SWEEP = 256
# The share of a text's beginning that a head may have missed: it drafts a little worse then.
_MAX_HOLES = 0.125


@dataclass(slots=True)
class DrafterState:
    """What the drafter has of one request.

    Invariant: of a drafter that reads hidden states, those of the positions from `length` on are in `hidden`, in
    order, without gaps.
    """

    request: Any
    """SGLang's `Req`."""
    length: int
    """Positions whose keys and values the drafter has."""
    prefix: torch.Tensor | None = None
    """bool[n] until it is looked at: which of the first positions, found in the prefix cache, it has."""
    is_fit: bool = True
    """False: too much of the prompt can never be read."""
    hidden: list[torch.Tensor] = field(default_factory=list)
    """[n, H'] each, the target's hidden states of the positions that follow."""
    num_hidden: int = 0
    topk_p: torch.Tensor | None = None
    """float32[topk], with `topk_index`: the likeliest next tokens after `length` positions and the root."""
    topk_index: torch.Tensor | None = None
    """int64[topk], in the drafter's vocabulary."""
    state: torch.Tensor | None = None
    """[H], the drafter's own hidden state there."""

    def keep(self, hidden: torch.Tensor) -> None:
        self.hidden.append(hidden)
        self.num_hidden += len(hidden)


class DrafterStates:
    """The states of all requests, by id."""

    def __init__(self, *, reads_hidden: bool) -> None:
        """`reads_hidden`: whether the drafter's input has the target's hidden states, which nobody can ask for later."""
        self._reads_hidden = reads_hidden
        self._states: dict[str, DrafterState] = {}
        self._sweep_at = _FIRST_SWEEP

    def __len__(self) -> int:
        return len(self._states)

    def __getitem__(self, rid: str) -> DrafterState:
        return self._states[rid]

    def get(self, rid: str) -> DrafterState | None:
        return self._states.get(rid)

    def open(self, request: Any, length: int, prefix: torch.Tensor) -> DrafterState:
        """The target read `length` tokens of a request, SGLang's `Req`; `prefix`, bool[length], which of them the
        drafter has read."""
        state = self._states[request.rid] = DrafterState(request, length, prefix)
        return state

    def forget(self, rid: str) -> None:
        self._states.pop(rid, None)

    def sweep(self) -> list[str]:
        """Forgets requests that ended without a word, as aborted ones do, once many are known; says which."""
        if len(self._states) < self._sweep_at:
            return []
        ended = [rid for rid, state in self._states.items() if state.request.finished()]
        for rid in ended:
            del self._states[rid]
        self._sweep_at = max(_FIRST_SWEEP, 2 * len(self._states))
        return ended

    def pending(self, rids: Sequence[str], seq_lens: NDArray[np.int64]) -> tuple[NDArray[np.int32], NDArray[np.bool_]]:
        """How many positions the drafter must read for each row before it can draft, int32[b], and whether it can."""
        missing = np.zeros(len(rids), np.int32)
        fit = np.zeros(len(rids), bool)
        for row, (rid, seq_len) in enumerate(zip(rids, seq_lens.tolist(), strict=True)):
            state = self._states.get(rid)
            if state is not None:
                self._look_at_prefix(state)
                missing[row] = seq_len - state.length
                fit[row] = state.is_fit and (not self._reads_hidden or state.num_hidden == missing[row])
        return missing, fit

    def _look_at_prefix(self, state: DrafterState) -> None:
        # Late, because on a GPU it waits for what the prefill launched.
        if state.prefix is None:
            return
        holes = int((~state.prefix).sum())
        if holes and self._reads_hidden:
            state.is_fit = state.is_fit and holes <= _MAX_HOLES * len(state.prefix)
        elif holes:
            state.length = int((~state.prefix).int().argmax())
        state.prefix = None
