"""An SGLang plugin for GPU runs with random weights: an EAGLE-3 head with the acceptance rate of a trained one.

A head with random weights drafts nothing that is accepted. Here it runs at its full cost, and then each token that it
drafted is replaced. At some positions the new token is the recorded one, which the replayed target is going to write.
At all others it is a different one. A hash of the answer and the position chooses the positions, so that SGLang's
EAGLE-3 and agentspec's hybrid get the same head. SIMULATED_HEAD_ACCEPTANCE is the probability that a position is right.
The run creates the entry point that loads the plugin; the plugin is never part of an installation.

SGLang's own simulation (SGLANG_SIMULATE_ACC_LEN) is of no use here. It draws one length per step for the whole batch
and accepts the drafts instead of the recorded text. It does so for suffix drafts too, so that the hybrid would get the
head's acceptance for every draft, and texts would differ between systems.

Drafts are chains, because random scores cannot tell which nodes of a tree are right. Published lengths are those of
trees, which cost more to verify, so this comparison favours the head.
"""

from __future__ import annotations

import os
import zlib
from typing import Any

import numpy as np

from agentspec.integrations.sglang import compat
from agentspec.integrations.sglang.replay.wire import unpacked

VARIABLE = "SIMULATED_HEAD_ACCEPTANCE"
PUBLISHED = (3.2, 4.7)
"""Accept lengths of EAGLE-3 heads, bonus token included, that their authors and SGLang's publish."""

_BITS = (1 << 31) - 1


def acceptance_for(accept_length: float, steps: int) -> float:
    """The probability p with which chains of `steps` tokens reach the accept length 1 + p + p^2 + ... + p^steps.

    Each drafted token is right with probability p, given that those before it are accepted.

    Raises:
        ValueError: Chains of `steps` tokens cannot reach this accept length.
    """
    if not 1.0 <= accept_length <= steps + 1:
        raise ValueError(f"an accept length with chains of {steps} is between 1 and {steps + 1}, got {accept_length}")
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        too_low = sum(middle**i for i in range(steps + 1)) < accept_length
        low, high = (middle, high) if too_low else (low, middle)
    return (low + high) / 2


def comes_true(keys: Any, positions: Any, acceptance: float) -> Any:
    """Whether the head is right at these positions of the answers with these keys.

    Both are int64 arrays or tensors that broadcast."""
    mixed = (keys + positions * 0x9E3779B1) & _BITS
    for factor in (0x2C1B3C6D, 0x297A2D39):
        mixed = ((mixed ^ (mixed >> 15)) * factor) & _BITS
    mixed = mixed ^ (mixed >> 15)
    return mixed < int(acceptance * (_BITS + 1))


def register() -> None:
    """Called by SGLang in each of its processes."""
    # On a CPU, agentspec drafts without SGLang's loop and stops when the head's own probabilities are low. Here it must
    # use SGLang's loop, as on a GPU.
    os.environ["SGLANG_CPU_DRAFTER"] = "off"
    from sglang.srt.speculative.eagle_worker_v2 import EagleDraftWorker

    from agentspec.integrations.sglang.drafting.stop_rule import DraftStop

    head = SimulatedHead(float(os.environ[VARIABLE]))
    draft = EagleDraftWorker.draft

    def drafted(self: Any, batch: Any) -> Any:
        return head.rewritten(draft(self, batch), batch)

    EagleDraftWorker.draft = drafted
    DraftStop.is_over = lambda self, scores, num_passes, rows=None: False  # type: ignore[method-assign]


class SimulatedHead:
    """Rewrites drafts on the device, without waiting for it.

    What the head drafts at each position of an answer is known when its request joins. It is copied to the device then,
    so that a step looks it up by a handful of operations.
    """

    def __init__(self, acceptance: float) -> None:
        self._acceptance = acceptance
        self._held: dict[int, str] = {}
        """Slot -> id of the request that has this row of the table."""
        self._table: Any = None
        """int64 [slots, columns]: what to add to the number of tokens in the cache for the column of the first drafted
        token; then the token to draft at each position of the answer, between zeros for what is outside of it."""
        self._constants: dict[int, tuple[Any, Any]] = {}
        """Length of the chains -> int64 [length], the place of each token behind the first one, and float32 [length],
        the estimate of each."""

    def rewritten(self, drafts: Any, batch: Any) -> Any:
        """Replaces a step's drafts in place by those of a trained head, and returns them.

        Args:
            drafts: SGLang's verify input, or the result of agentspec's drafting loop. All drafts are chains.
            batch: SGLang's `ScheduleBatch`, whose requests bring their answers.
        """
        if not batch.reqs:
            return drafts
        self._take_in(batch)
        ours = not hasattr(drafts, "draft_token")
        rows = len(batch.reqs)
        tokens = drafts.tokens if ours else drafts.draft_token.view(rows, -1)[:, 1:]
        steps, estimates = self._constants_for(tokens)
        slots = batch.req_pool_indices
        first = self._table[:, 0][slots] + batch.seq_lens
        columns = (first[:, None] + steps).clamp_(1, self._table.shape[1] - 1)
        tokens.copy_(self._table[slots[:, None], columns])
        if ours:
            # The head's estimates are right on average, but they do not tell where the head is wrong.
            drafts.estimates = estimates.expand(rows, -1)
        return drafts

    def _constants_for(self, tokens: Any) -> tuple[Any, Any]:
        import torch

        length = tokens.shape[1]
        found = self._constants.get(length)
        if found is None:
            steps = torch.arange(length, device=tokens.device)
            found = self._constants[length] = steps, (self._acceptance ** (steps + 1)).to(torch.float32)
        return found

    def _take_in(self, batch: Any) -> None:
        """Copies what to draft for new requests to the device."""
        import torch

        device = batch.seq_lens.device
        for request in batch.reqs:
            slot = compat.request_slot(request)
            if self._held.get(slot) == request.rid:
                continue
            answer = replayed_answer(request)
            self._make_room(slot + 1, len(answer) + 3, device)
            row = np.zeros(self._table.shape[1], np.int64)
            # The root is not in the cache yet, and the first drafted token follows it. The answer begins in column 2.
            row[0] = 1 - len(request.origin_input_ids) + 2
            row[2 : 2 + len(answer)] = self._drafted(answer)
            there = torch.from_numpy(row)
            # The host waits for a copy from other memory, and so for all work of the device before it.
            self._table[slot].copy_(there.pin_memory() if device.type == "cuda" else there, non_blocking=True)
            self._held[slot] = request.rid

    def _drafted(self, answer: list[int]) -> Any:
        """int64 [n], the token that the head drafts at each position of an answer."""
        recorded = np.array(answer, np.int64)
        right = comes_true(np.int64(answer_key(answer)), np.arange(len(answer)), self._acceptance)
        # A token that differs from the recorded one; 0 and 1 are in every vocabulary.
        return np.where(right, recorded, recorded == 0)

    def _make_room(self, slots: int, columns: int, device: Any) -> None:
        import torch

        old = self._table
        if old is not None and old.shape[0] >= slots and old.shape[1] >= columns:
            return
        before = (0, 0) if old is None else old.shape
        size = max(2 * before[0], slots, 64), max(before[1], columns, 256)
        self._table = torch.zeros(size, dtype=torch.int64, device=device)
        if old is not None:
            self._table[: before[0], : before[1]] = old


def replayed_answer(request: Any) -> list[int]:
    """The forced answer of an SGLang request; [] if it has none, so that no draft is right."""
    found = unpacked(request.sampling_params.custom_params)
    return [] if found is None else list(found.tokens)


def answer_key(answer: list[int]) -> int:
    """A number below 2^31, the same for the same answer on all servers."""
    return zlib.crc32(",".join(map(str, answer)).encode()) & _BITS
