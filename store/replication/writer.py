"""Writes finished outputs from the outbox to the store."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from agentspec.errors import BrokenLogError
from agentspec.store.base import Store
from agentspec.store.codec import Codec
from agentspec.store.records import OutputRecord
from agentspec.store.replication.backoff import Retry
from agentspec.store.replication.health import Health
from agentspec.store.replication.interfaces import LearningEngine
from agentspec.store.replication.outbox import FinishedOutput, OutputQueue
from agentspec.store.replication.tombstones import SeenIds, Tombstones
from agentspec.store.rules import BROKEN_SECONDS

_BATCH_OUTPUTS, _BATCH_TOKENS = 256, 1 << 19
# Longest time, in seconds, that the writer waits for an output before it checks whether to stop.
_WAIT = 1.0


@dataclass(slots=True, kw_only=True)
class Writer:
    """Appends outputs in batches, in the order in which they finished, and retries failed appends.

    Outputs that were deleted meanwhile are left out. Outputs whose namespace's log is broken are set aside for a while,
    so that they delay no others. Only one thread may call run().
    """

    engine: LearningEngine
    store: Store
    codec: Codec
    outbox: OutputQueue
    tombstones: Tombstones
    seen: SeenIds
    health: Health
    on_failure: Callable[[str, Exception], None]
    # Namespaces whose logs could not be appended to, and the time of the next attempt, by time.monotonic().
    _broken: set[str] = field(default_factory=set)
    _mended_at: float = 0.0

    @property
    def num_broken(self) -> int:
        """Number of broken logs, whose outputs are set aside."""
        return len(self._broken)

    def run(self, retry: Retry, stopping: threading.Event) -> None:
        """Writes outputs until `stopping` is set."""
        while not stopping.is_set():
            if self._broken and time.monotonic() >= self._mended_at:
                self._broken.clear()
                self.outbox.bring_back()
            outputs = self.outbox.take(_BATCH_OUTPUTS, _BATCH_TOKENS, _WAIT)
            try:
                if self._deliver(outputs):
                    retry.succeeded()
            except Exception as error:  # noqa: BLE001 - the thread must go on; whoever listens logs it
                self.on_failure("writing to the store", error)
                # Outputs that wait for a retry go back, because they must count towards the queue's limit.
                self.outbox.put_back(outputs)
                retry.failed()

    def _deliver(self, outputs: Sequence[FinishedOutput]) -> bool:
        """Appends outputs and sets aside those whose logs are broken; returns whether any was appended. Raises
        StoreError if the store accepted none of them."""
        wanted = [each for each in outputs if each.namespace not in self._broken and not self._is_deleted(each)]
        encoded = [(output.namespace, data) for output in wanted if (data := self._encode(output)) is not None]
        num_dropped = len(wanted) - len(encoded)
        try:
            if encoded:
                self.store.append(encoded)
        except BrokenLogError as error:
            self.on_failure("writing to the store", error)
            self._broken.update(error.namespaces)
            self._mended_at = time.monotonic() + BROKEN_SECONDS
        delivered = [data for namespace, data in encoded if namespace not in self._broken]
        self.health.add("delivered_outputs", len(delivered))
        self.health.add("delivered_bytes", sum(map(len, delivered)))
        aside = [output for output in outputs if output.namespace in self._broken]
        self.outbox.delivered(aside=aside, num_dropped=num_dropped)
        return bool(delivered)

    def _is_deleted(self, output: FinishedOutput) -> bool:
        """Whether the output was deleted while it was generated or waited; if so, the engine forgets it too."""
        if not self.tombstones.covers(output.namespace, output.request_id, output.time):
            return False
        self.engine.delete_request(output.namespace, output.request_id)
        self.health.add("refused_outputs")
        return True

    def _encode(self, output: FinishedOutput) -> bytes | None:
        """The entry for an output; None if it cannot be encoded, so that it does not block the outputs after it."""
        try:
            data = self.codec.encode(output.namespace, _record(output))
        except Exception as error:  # noqa: BLE001 - whatever is wrong with it; whoever listens logs it
            self.on_failure("encoding an output", error)
            return None
        self.seen.add(output.output_id)
        return data


def _record(output: FinishedOutput) -> OutputRecord:
    tokens = np.empty(output.num_tokens, np.int32)
    num_tail = len(output.prompt_tail)
    tokens[:num_tail] = output.prompt_tail
    tokens[num_tail:] = output.output[: output.num_output_tokens]
    return OutputRecord(output.output_id, output.request_id, output.time, num_tail, tokens)
