"""Steps in stream order of several tensor-parallel ranks.

The first rank decides and drafts for all. Before a step is launched, its decisions go from its scheduler's thread to
those of the other ranks in one small message, which waits for no device. Its trees go from its device to theirs in
stream order:

    first rank     main stream   ── verify t ─── passes ──┬─ unite ─┬─ broadcast ─ verify t + 1
                   side stream        └─ host function ───┘         │
    other ranks    main stream   ── verify t ─── passes ────────────┴─ broadcast ─ verify t + 1

The broadcast is on the main stream, on which the model's own collectives run, so that all ranks run them in one order.
"""

from __future__ import annotations

from typing import TypeVar

import torch

from agentspec.integrations.sglang.drafting.verify_input import VerifyStaging
from agentspec.integrations.sglang.sglang_types import ProcessGroup

T = TypeVar("T")


class Ranks:
    """The ranks that run steps in stream order together; one rank alone, if there is no group."""

    def __init__(self, group: ProcessGroup | None, staging: VerifyStaging, device: torch.device | str) -> None:
        """All ranks of the group call this together.

        Args:
            group: The ranks.
            staging: The memory of this rank's steps.
            device: The device that runs the model.
        """
        self._group = group
        self._staging = staging
        if group is not None:
            # The first collective of a group may take seconds to connect the devices.
            group.broadcast(torch.zeros(1, dtype=torch.uint8, device=device), src=0)

    def agreed(self, decision: T | None) -> T | None:
        """What the first rank has decided about the next step, on all ranks. Other ranks pass None."""
        if self._group is None:
            return decision
        decided: T | None = self._group.broadcast_object(decision, src=0)
        return decided

    def share(self, rows: int, width: int) -> None:
        """Gives the first rank's trees of b rows to all devices, on the current stream of each."""
        if self._group is not None:
            self._group.broadcast(self._staging.on_device(rows, width), src=0)
