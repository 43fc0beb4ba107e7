"""The schedulers' side of a replay: overwrites the target's logits before they are read.

    prefill of a batch    admit   writes the answers of the batch's requests to their slots of the table
    the target's forward  force   raises one token of each row of its logits above all others
    from time to time     sweep   compares finished requests with their recorded answers

admit() and force() run on the stream of the forward, so they cannot overwrite what an earlier step still reads. A slot
is written whenever a new request is prefilled in it, so it never holds the answer of an earlier request. The draft
model's forwards are not changed.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass

from agentspec.integrations.sglang import arguments, compat
from agentspec.integrations.sglang.drafting.requests import visible_length
from agentspec.integrations.sglang.metrics import Exported
from agentspec.integrations.sglang.replay.forced_tokens import ForcedTokens
from agentspec.integrations.sglang.replay.wire import ForcedAnswer, unpacked
from agentspec.integrations.sglang.sglang_types import (
    ForwardBatch,
    ForwardOutput,
    ModelRunner,
    Req,
    ScheduleBatch,
    TpWorker,
)

logger = logging.getLogger("agentspec")

_SWEEP_SECONDS = 1.0
_TOLD = ("finished", "forced_tokens", "diverged")
"""The counts that are exported to Prometheus."""


@dataclass(frozen=True, slots=True)
class _Open:
    request: Req
    answer: ForcedAnswer


class ReplayTarget:
    """The state of a replay in a scheduler process. For the scheduler's thread only."""

    def __init__(self) -> None:
        self._table: ForcedTokens | None = None
        self._owners: dict[int, Req] = {}
        self._open: dict[int, _Open] = {}
        self._next_sweep = 0.0
        self._counts = {"forced_requests": 0, "free_prefills": 0, "forced_tokens": 0, "finished": 0, "diverged": 0}
        self._exported: Exported | None = None

    def admit(self, worker: TpWorker, batch: ScheduleBatch | None) -> None:
        """Writes the answers of a batch that is about to be prefilled. Other batches are ignored."""
        if worker.model_runner.is_draft_worker or batch is None or not batch.forward_mode.is_extend():
            return
        if batch.forward_mode.is_target_verify():
            return
        table = self._table or self._make_table(worker.model_runner)
        for request in batch.reqs:
            slot = compat.request_slot(request)
            if self._owners.get(slot) is request:
                continue
            self._owners[slot] = request
            answer = unpacked(getattr(request.sampling_params, "custom_params", None))
            if answer is None:
                table.free(slot)
                self._counts["free_prefills"] += 1
                continue
            table.write(slot, len(request.origin_input_ids), answer.tokens, answer.end)
            if id(request) not in self._open:
                self._open[id(request)] = _Open(request, answer)
                self._counts["forced_requests"] += 1

    def force(self, runner: ModelRunner, output: ForwardOutput, forward_batch: ForwardBatch) -> None:
        """Overwrites the logits that a forward of the target returned."""
        logits = getattr(output.logits_output, "next_token_logits", None)
        if runner.is_draft_worker or self._table is None or logits is None or not len(logits):
            return
        slots, positions = compat.logit_positions(forward_batch, len(logits))
        self._table.force(logits, slots, positions)
        now = time.monotonic()
        if now >= self._next_sweep:
            self._next_sweep = now + _SWEEP_SECONDS
            self.sweep()

    def sweep(self) -> None:
        """Counts the requests that have finished, and compares their outputs with the recorded answers."""
        for key, entry in list(self._open.items()):
            if not entry.request.finished():
                continue
            del self._open[key]
            output = list(entry.request.output_ids)[: visible_length(entry.request)]
            self._add("finished", 1)
            self._add("forced_tokens", len(output))
            if not entry.answer.matches(output):
                self._add("diverged", 1)
                logger.error("agentspec replay: an output of %d tokens is not the recorded one", len(output))

    def describe(self) -> dict[str, object]:
        """This process's part of the block `agentspec.replay`."""
        self.sweep()
        return {**self._counts, "open_requests": len(self._open)}

    def export(self, labels: dict[str, str]) -> None:
        """Registers the counts with Prometheus, like Counters.export()."""
        self._exported = Exported([f"replay_{name}" for name in _TOLD], labels)
        for name in _TOLD:
            self._exported.add(f"replay_{name}", self._counts[name])

    def _add(self, name: str, amount: int) -> None:
        self._counts[name] += amount
        if self._exported is not None:
            self._exported.add(f"replay_{name}", amount)

    def _make_table(self, runner: ModelRunner) -> ForcedTokens:
        pool = runner.req_to_token_pool.req_to_token
        table = self._table = ForcedTokens(pool.shape[0], pool.device)
        server_args = runner.server_args
        if arguments.metrics_enabled(server_args) and compat.tp_rank(runner) == 0:
            self.export({"model_name": arguments.served_model_name(server_args)})
        logger.warning("agentspec REPLAYS RECORDED ANSWERS: the target's logits are overwritten")
        return table
