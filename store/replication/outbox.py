"""Finished outputs on their way from the step to the store: who stamps them, and the queue in which they wait."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from agentspec.store.clock import SteadyClock

logger = logging.getLogger("agentspec")

# Outputs gather for this long before they are taken. A transaction costs the writer half a millisecond of Python however
# many outputs it holds, and meanwhile the step's thread waits for the GIL. put() notifies nobody, because that would
# cost more than the rest of it.
GATHER_SECONDS = 0.2


class FinishedOutput(NamedTuple):
    """An output as the step hands it over, neither copied nor encoded yet. A tuple takes the step the least time."""

    namespace: str
    output_id: int
    request_id: str
    time: float
    """Seconds since 1970."""
    prompt_tail: Sequence[int]
    output: Sequence[int]
    """The first `num_output_tokens` tokens count. From now on the list may only be appended to."""
    num_output_tokens: int

    @property
    def num_tokens(self) -> int:
        return len(self.prompt_tail) + self.num_output_tokens


class OutputQueue(Protocol):
    """The calls of an Outbox that its users make."""

    @property
    def waiting_tokens(self) -> int: ...
    @property
    def num_dropped(self) -> int: ...
    def __len__(self) -> int: ...
    def put(self, output: FinishedOutput) -> None: ...
    def take(self, max_outputs: int, max_tokens: int, wait: float) -> list[FinishedOutput]: ...
    def delivered(self, *, aside: Sequence[FinishedOutput] = (), num_dropped: int = 0) -> None: ...
    def bring_back(self) -> None: ...
    def put_back(self, outputs: Sequence[FinishedOutput]) -> None: ...
    def hurry(self) -> None: ...
    def close(self) -> None: ...


class Publisher:
    """What Sharing and SharingProcess have in common: the step hands its outputs over, and they wait for the store."""

    def __init__(self, outbox: OutputQueue, clock: SteadyClock) -> None:
        """`clock` says when an output was finished."""
        self._outbox = outbox
        self._clock = clock

    def publish(
        self,
        namespace: str,
        output_id: int,
        request_id: str,
        prompt_tail: Sequence[int],
        output: Sequence[int],
        num_output_tokens: int,
    ) -> None:
        """Hands over a finished output, which close() put into the engine, for the store and the other replicas.

        Args:
            namespace: as the engine was given it, 32 hexadecimal digits.
            output: kept as it is until it is delivered; from now on it may only be appended to.
            num_output_tokens: number of its leading tokens that count.
        """
        self._outbox.put(
            FinishedOutput(namespace, output_id, request_id, self._clock.now(), prompt_tail, output, num_output_tokens)
        )

    def flush(self, timeout: float) -> bool:
        """Waits until everything published is in the store; False if it is not after `timeout` seconds."""
        deadline = time.monotonic() + timeout
        while len(self._outbox):
            if time.monotonic() > deadline or not self._delivers():
                return False
            self._outbox.hurry()
            time.sleep(0.005)
        return True

    def _delivers(self) -> bool:
        """Whether anything still takes outputs out of the queue."""
        raise NotImplementedError

    def _warn_of_lost(self, url: str) -> None:
        """Logs the number of outputs that are still waiting when nothing delivers them any more."""
        if num_lost := len(self._outbox):
            logger.warning(
                "agentspec: the store %s did not take %d finished outputs before the server ended; they are lost",
                url,
                num_lost,
            )


class Outbox:
    """A queue with an upper limit of tokens, from the step's thread to the writer's thread.

    Invariant: `waiting_tokens` is the sum over all waiting outputs and at most `max_tokens`, except that a single
    output is kept whatever its size. Outputs beyond the limit push out the oldest, those set aside first. put() takes
    some microseconds and waits only for the few instructions of another call. Only one thread may call take(); it then
    reports the result with delivered() or put_back().
    """

    def __init__(self, max_tokens: int) -> None:
        self._max_tokens = max_tokens
        self._waiting: deque[FinishedOutput] = deque()
        self._aside: deque[FinishedOutput] = deque()
        self._lock = threading.Lock()
        self._closed = False
        self._hurrying = threading.Event()
        self.waiting_tokens = 0
        self.num_dropped = 0
        """Number of outputs that were dropped before they could be delivered."""
        self._num_taken = 0

    def __len__(self) -> int:
        """Number of outputs that wait, are set aside, or are taken and not yet delivered."""
        with self._lock:
            return len(self._waiting) + len(self._aside) + self._num_taken

    def put(self, output: FinishedOutput) -> None:
        with self._lock:
            self._waiting.append(output)
            self.waiting_tokens += output.num_tokens
            if self.waiting_tokens > self._max_tokens:
                self._drop_oldest()

    def take(self, max_outputs: int, max_tokens: int, wait: float) -> list[FinishedOutput]:
        """Takes the oldest outputs within both limits, but at least one; [] if none came within `wait` seconds. Waits
        until outputs have gathered, unless they fill a batch."""
        deadline = time.monotonic() + wait
        while not self._closed and len(self._waiting) < max_outputs and self.waiting_tokens < max_tokens:
            left = max(deadline - time.monotonic(), 0.0)
            if self._hurrying.wait(min(left, GATHER_SECONDS)):
                self._hurrying.clear()
            if self._waiting or not left:
                break
        with self._lock:
            taken: list[FinishedOutput] = []
            num_tokens = 0
            while self._waiting and len(taken) < max_outputs:
                num_tokens += self._waiting[0].num_tokens
                if taken and num_tokens > max_tokens:
                    break
                output = self._waiting.popleft()
                self.waiting_tokens -= output.num_tokens
                taken.append(output)
            self._num_taken = len(taken)
            return taken

    def delivered(self, *, aside: Sequence[FinishedOutput] = (), num_dropped: int = 0) -> None:
        """Reports the taken outputs as delivered, except those to set aside and those that can never be delivered."""
        with self._lock:
            self._num_taken = 0
            self._aside.extend(aside)
            self.waiting_tokens += sum(output.num_tokens for output in aside)
            self.num_dropped += num_dropped
            self._drop_oldest()

    def bring_back(self) -> None:
        """Moves the outputs that were set aside to the head of the queue."""
        with self._lock:
            self._waiting.extendleft(reversed(self._aside))
            self._aside.clear()

    def put_back(self, outputs: Sequence[FinishedOutput]) -> None:
        """Returns taken outputs to the head of the queue; drops the oldest outputs if they no longer fit."""
        with self._lock:
            self._num_taken = 0
            self._waiting.extendleft(reversed(outputs))
            self.waiting_tokens += sum(output.num_tokens for output in outputs)
            self._drop_oldest()

    def hurry(self) -> None:
        """Ends the current wait of take(), or the next one."""
        self._hurrying.set()

    def close(self) -> None:
        """Ends the current wait of take() and all later ones."""
        self._closed = True
        self.hurry()

    def _drop_oldest(self) -> None:
        while self.waiting_tokens > self._max_tokens and len(self._waiting) + len(self._aside) > 1:
            self.waiting_tokens -= (self._aside or self._waiting).popleft().num_tokens
            self.num_dropped += 1
