"""Finished outputs on their way to the store."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

# How often take() looks while there is nothing: put() wakes nobody, since that takes longer than all else it does.
_LOOK_SECONDS = 0.05


@dataclass(frozen=True, slots=True)
class FinishedOutput:
    """An output as the step hands it over: nothing of it is copied or encoded yet."""

    namespace: str
    output_id: int
    request_id: str
    time: float
    """Seconds since 1970."""
    prompt_tail: Sequence[int]
    output: Sequence[int]
    """Its first `num_output_tokens` count; only appended to from now on."""
    num_output_tokens: int

    @property
    def num_tokens(self) -> int:
        return len(self.prompt_tail) + self.num_output_tokens


class Outbox:
    """A queue with an upper limit of tokens, from the step's thread to the one that writes.

    Invariant: `waiting_tokens` is the sum over what waits, and at most `max_tokens`. What does not fit pushes out
    the oldest, what is set aside first. put() takes some microseconds and never waits for more than another call's few
    instructions. Only one thread takes; it says what became of what it took by delivered() or put_back().
    """

    def __init__(self, max_tokens: int) -> None:
        self._max_tokens = max_tokens
        self._waiting: deque[FinishedOutput] = deque()
        self._aside: deque[FinishedOutput] = deque()
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self.waiting_tokens = 0
        self.num_dropped = 0
        """Pushed out before they could be delivered."""
        self._num_taken = 0

    def __len__(self) -> int:
        """Outputs that wait, are set aside, or are taken and not yet delivered."""
        with self._lock:
            return len(self._waiting) + len(self._aside) + self._num_taken

    def put(self, output: FinishedOutput) -> None:
        with self._lock:
            self._waiting.append(output)
            self.waiting_tokens += output.num_tokens
            if self.waiting_tokens > self._max_tokens:
                self._drop_oldest()

    def take(self, max_outputs: int, max_tokens: int, wait: float) -> list[FinishedOutput]:
        """The oldest outputs, at most so many, but one at least; [] if none came within `wait` seconds."""
        deadline = time.monotonic() + wait
        while not self._waiting and (left := deadline - time.monotonic()) > 0:
            if self._closed.wait(min(left, _LOOK_SECONDS)):
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
        """What was taken is where it should be, but for what is to be set aside, and what can never be delivered."""
        with self._lock:
            self._num_taken = 0
            self._aside.extend(aside)
            self.waiting_tokens += sum(output.num_tokens for output in aside)
            self.num_dropped += num_dropped
            self._drop_oldest()

    def bring_back(self) -> None:
        """What was set aside waits again, at the head of the queue."""
        with self._lock:
            self._waiting.extendleft(reversed(self._aside))
            self._aside.clear()

    def put_back(self, outputs: Sequence[FinishedOutput]) -> None:
        """Returns what take() gave to the head of the queue; what does not fit any more is dropped, oldest first."""
        with self._lock:
            self._num_taken = 0
            self._waiting.extendleft(reversed(outputs))
            self.waiting_tokens += sum(output.num_tokens for output in outputs)
            self._drop_oldest()

    def remove(self, is_unwanted: Callable[[FinishedOutput], bool]) -> int:
        """Takes out what may not be delivered; returns how many outputs that was."""
        with self._lock:
            num_before = len(self._waiting) + len(self._aside)
            self._waiting, self._aside = (
                deque(output for output in each if not is_unwanted(output)) for each in (self._waiting, self._aside)
            )
            kept = (*self._waiting, *self._aside)
            self.waiting_tokens = sum(output.num_tokens for output in kept)
            return num_before - len(kept)

    def close(self) -> None:
        """Wakes take() up, for good."""
        self._closed.set()

    def _drop_oldest(self) -> None:
        while self.waiting_tokens > self._max_tokens and len(self._waiting) + len(self._aside) > 1:
            self.waiting_tokens -= (self._aside or self._waiting).popleft().num_tokens
            self.num_dropped += 1
