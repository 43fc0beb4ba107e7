"""An SGLang plugin for GPU runs with random weights: an EAGLE-3 head with the acceptance rate of a trained one.

A head with random weights drafts nothing that is accepted. Here it runs at its full cost, and then each token that it
drafted is replaced. At some positions the new token is the recorded one, which the replayed target is going to write.
At all others it is a different one. SGLang's EAGLE-3 and agentspec's hybrid get the same head, because the positions
depend on the request alone:

- A request may say where the head is wrong, in its custom_params: what a real draft model gets wrong in this answer.
- Otherwise a hash of the answer and the position decides. SIMULATED_HEAD_ACCEPTANCE is the probability that a position
  is right, or several of them by context; see Acceptance.parse().

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
from dataclasses import dataclass
from typing import Any

import numpy as np

from agentspec.integrations.sglang import compat
from agentspec.integrations.sglang.replay.wire import unpacked

VARIABLE = "SIMULATED_HEAD_ACCEPTANCE"
PUBLISHED = (3.2, 4.7)
"""Accept lengths of EAGLE-3 heads, bonus token included, that their authors and SGLang's publish."""

PUBLISHED_BY_CONTEXT = {
    2_000: 2.30,
    4_000: 2.04,
    6_000: 1.86,
    8_000: 1.69,
    10_000: 1.40,
    12_000: 1.29,
    14_000: 1.16,
    16_000: 1.09,
}
"""Accept lengths of an EAGLE-3 head of Qwen3-8B by tokens of context, on LongBench-v2 (vllm-project/speculators, pull
request 684). With 16,000 tokens or more it stays at the last one."""

MISSES_KEY = "simulated_head_misses"
"""In a request's custom_params: the positions of its forced answer at which the head is wrong, a flat list."""
ACCEPTANCE_KEY = "simulated_head_acceptance"
"""Beside MISSES_KEY: how often the head expects to be right if all tokens before were right."""

_BITS = (1 << 31) - 1


def acceptance_for(accept_length: float, steps: int) -> float:
    """The probability p with which chains of `steps` tokens reach the accept length 1 + p + p^2 + ... + p^steps.

    Each drafted token is right with probability p, given that those before it are accepted. Raises ValueError if chains
    of `steps` tokens cannot reach this accept length.
    """
    if not 1.0 <= accept_length <= steps + 1:
        raise ValueError(f"an accept length with chains of {steps} is between 1 and {steps + 1}, got {accept_length}")
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        too_low = sum(middle**i for i in range(steps + 1)) < accept_length
        low, high = (middle, high) if too_low else (low, middle)
    return (low + high) / 2


@dataclass(frozen=True, slots=True)
class Acceptance:
    """The probability that the head drafts the right token if all tokens before it were right, by context.

    Between two points it is interpolated. Outside of all of them it is that of the nearest one."""

    contexts: tuple[int, ...]
    """Numbers of tokens before the drafted one, ascending."""
    rates: tuple[float, ...]
    """The probability at each of them."""

    @staticmethod
    def everywhere(rate: float) -> Acceptance:
        """The same probability in every context."""
        return Acceptance((0,), (rate,))

    @staticmethod
    def published(steps: int) -> Acceptance:
        """That of PUBLISHED_BY_CONTEXT, read as accept lengths of chains of `steps` tokens."""
        rates = tuple(acceptance_for(length, steps) for length in PUBLISHED_BY_CONTEXT.values())
        return Acceptance(tuple(PUBLISHED_BY_CONTEXT), rates)

    @staticmethod
    def parse(text: str) -> Acceptance:
        """What str() wrote: `0.8`, or `2000:0.6,4000:0.5`. Raises ValueError if the text has another form."""
        if ":" not in text:
            return Acceptance.everywhere(float(text))
        points = [point.split(":") for point in text.split(",")]
        return Acceptance(tuple(int(context) for context, _ in points), tuple(float(rate) for _, rate in points))

    def __str__(self) -> str:
        if len(self.rates) == 1:
            return str(self.rates[0])
        return ",".join(f"{context}:{rate}" for context, rate in zip(self.contexts, self.rates, strict=True))

    def at(self, contexts: Any) -> Any:
        """float64 [n], the probabilities after these numbers of tokens."""
        return np.interp(contexts, self.contexts, self.rates)


def comes_true(keys: Any, positions: Any, acceptance: Any) -> Any:
    """Whether the head is right at these positions of the answers with these keys.

    Both are int64 arrays or tensors that broadcast. The acceptance is a float, or an array beside arrays."""
    mixed = (keys + positions * 0x9E3779B1) & _BITS
    for factor in (0x2C1B3C6D, 0x297A2D39):
        mixed = ((mixed ^ (mixed >> 15)) * factor) & _BITS
    mixed = mixed ^ (mixed >> 15)
    below = acceptance * (_BITS + 1)
    return mixed < (int(below) if isinstance(below, float) else below.astype(np.int64))


def register() -> None:
    """Called by SGLang in each of its processes."""
    from sglang.srt.speculative.eagle_worker_v2 import EagleDraftWorker

    from agentspec.integrations.sglang.drafting.stop_rule import DraftStop

    head = SimulatedHead(Acceptance.parse(os.environ[VARIABLE]))
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

    def __init__(self, acceptance: Acceptance) -> None:
        self._acceptance = acceptance
        self._held: dict[int, str] = {}
        """Slot -> id of the request that has this row of the tables."""
        self._table: Any = None
        """int64 [slots, columns]: what to add to the number of tokens in the cache for the column of the first drafted
        token; then the token to draft at each position of the answer, between zeros for what is outside of it."""
        self._rates: Any = None
        """float32 [slots, columns]: the head's own estimate that the token in this column of the table is right."""
        self._steps: dict[int, tuple[Any, Any]] = {}
        """Length of the chains -> int64 [length], the place of each token behind the first one, and behind the root."""

    def rewritten(self, drafts: Any, batch: Any) -> Any:
        """Replaces a step's drafts in place by those of a trained head, and returns them. `drafts`: SGLang's verify
        input, or the result of agentspec's drafting loop. All drafts are chains. `batch`: SGLang's `ScheduleBatch`,
        whose requests bring their answers."""
        if not batch.reqs:
            return drafts
        self._take_in(batch)
        ours = not hasattr(drafts, "draft_token")
        rows = len(batch.reqs)
        tokens = drafts.tokens if ours else drafts.draft_token.view(rows, -1)[:, 1:]
        steps, depths = self._steps_of(tokens)
        slots = batch.req_pool_indices
        first = self._table[:, 0][slots] + batch.seq_lens
        columns = (first[:, None] + steps).clamp_(1, self._table.shape[1] - 1)
        tokens.copy_(self._table[slots[:, None], columns])
        if ours:
            # The head's estimates are right on average, but they do not tell where the head is wrong. Within a chain the
            # context hardly changes.
            drafts.estimates = self._rates[slots, columns[:, 0]][:, None] ** depths
        return drafts

    def _steps_of(self, tokens: Any) -> tuple[Any, Any]:
        import torch

        length = tokens.shape[1]
        found = self._steps.get(length)
        if found is None:
            steps = torch.arange(length, device=tokens.device)
            found = self._steps[length] = steps, steps + 1
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
            num_columns = self._table.shape[1]
            row = np.zeros(num_columns, np.int64)
            # The root is not in the cache yet, and the first drafted token follows it. The answer begins in column 2.
            row[0] = 1 - len(request.origin_input_ids) + 2
            rates = self._estimated(request, np.arange(num_columns) - 2)
            row[2 : 2 + len(answer)] = self._drafted(request, answer)
            for table, values in ((self._table, row), (self._rates, rates)):
                there = torch.from_numpy(values)
                # The host waits for a copy from other memory, and so for all work of the device before it.
                table[slot].copy_(there.pin_memory() if device.type == "cuda" else there, non_blocking=True)
            self._held[slot] = request.rid

    def _estimated(self, request: Any, positions: Any) -> Any:
        """float32 [n], how likely the head thinks that it is right at these positions of an answer."""
        told = _params(request).get(ACCEPTANCE_KEY)
        if told is not None:
            return np.full(len(positions), told, np.float32)
        return self._acceptance.at(len(request.origin_input_ids) + positions).astype(np.float32)

    def _drafted(self, request: Any, answer: list[int]) -> Any:
        """int64 [n], the token that the head drafts at each position of an answer."""
        recorded, positions = np.array(answer, np.int64), np.arange(len(answer))
        misses = _params(request).get(MISSES_KEY)
        if misses is None:
            rates = self._acceptance.at(len(request.origin_input_ids) + positions)
            right = comes_true(np.int64(answer_key(answer)), positions, rates)
        else:
            right = ~np.isin(positions, np.array(misses, np.int64))
        # A token that differs from the recorded one; 0 and 1 are in every vocabulary.
        return np.where(right, recorded, recorded == 0)

    def _make_room(self, slots: int, columns: int, device: Any) -> None:
        import torch

        old = self._table
        if old is not None and old.shape[0] >= slots and old.shape[1] >= columns:
            return
        before = (0, 0) if old is None else old.shape
        size = max(2 * before[0], slots, 64), max(before[1], columns, 256)
        for name, kind in (("_table", torch.int64), ("_rates", torch.float32)):
            held, grown = getattr(self, name), torch.zeros(size, dtype=kind, device=device)
            if held is not None:
                grown[: before[0], : before[1]] = held
            setattr(self, name, grown)


def _params(request: Any) -> dict[str, Any]:
    return request.sampling_params.custom_params or {}


def replayed_answer(request: Any) -> list[int]:
    """The forced answer of an SGLang request; [] if it has none, so that no draft is right."""
    found = unpacked(request.sampling_params.custom_params)
    return [] if found is None else list(found.tokens)


def answer_key(answer: list[int]) -> int:
    """A number below 2^31, the same for the same answer on all servers."""
    return zlib.crc32(",".join(map(str, answer)).encode()) & _BITS
