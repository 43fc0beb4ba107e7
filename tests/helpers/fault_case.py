"""Two replicas that share a store while a fault is injected, with checks for the time during and after the fault."""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from itertools import count
from typing import Any, Self

from replicas import SCOPE, A, Replica, until

from agentspec.errors import RecordError
from agentspec.store.base import Store
from agentspec.store.codec import Codec
from agentspec.store.records import OutputRecord

SECONDS = 30.0
_VOCAB_SIZE = 1_000_000
_FROM_THE_FOLLOWER = _VOCAB_SIZE // 8


def words(number: int) -> list[int]:
    """Four tokens that belong to this number alone."""
    return list(range(4 * number + 1, 4 * number + 5))


def drafts(replica: Replica, number: int, namespace: str = A) -> bool:
    """Whether a request that begins with a number's first word gets a draft, made of that number's other words
    alone."""
    first, *others = words(number)
    drafted = replica.drafts([first], namespace)
    assert drafted == others[: len(drafted)], (number, drafted)
    return bool(drafted)


def stored(store: Store, namespace: str = A) -> Counter[int]:
    """Counts how often a log has each output. Entries that are not records are skipped."""
    found: Counter[int] = Counter()
    position: str | None = None
    while entries := store.scan(namespace, position):
        position = entries[-1].position
        for entry in entries:
            try:
                record = Codec(SCOPE).decode(namespace, entry.data)
            except RecordError:
                continue
            assert isinstance(record, OutputRecord)
            found[record.output_id] += 1
    return found


class Traffic:
    """Runs requests of a replica one after another on its own thread, in each namespace in turn.

    Each request writes the words of its number. Then an earlier one is repeated, and its draft must have the words that
    it wrote before.
    """

    def __init__(self, replica: Replica, namespaces: tuple[str, ...]) -> None:
        self.outputs: dict[int, int] = {}
        """The output's id for each number, in order."""
        self.error: BaseException | None = None
        self._replica = replica
        self._namespaces = namespaces
        self._random = random.Random(0)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="traffic", daemon=True)
        self._thread.start()

    def namespace(self, number: int) -> str:
        return self._namespaces[number % len(self._namespaces)]

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join(SECONDS)
        self.check()

    def check(self) -> None:
        """Raises the error of a failed request, if any."""
        if self.error is not None:
            raise self.error
        assert self._thread.is_alive() or self._stopping.is_set()

    def _run(self) -> None:
        try:
            for number in count():
                if self._stopping.wait(0.004):
                    return
                name, tokens = self.namespace(number), words(number)
                self.outputs[number] = self._replica.finish(f"r{number}", tokens, name, is_delivered=False)
                asked = self._random.randrange(number + 1)
                assert drafts(self._replica, asked, self.namespace(asked)), asked
        except BaseException as error:  # noqa: BLE001 - check() raises it
            self.error = error


class FaultCase:
    """A replica with traffic, a follower, and a view of the store that no fault affects.

    Args:
        open_one: Opens a store for the replica with traffic, and another one for the view.
        open_other: Opens a store for the follower.
    """

    def __init__(
        self,
        open_one: Callable[[], Store],
        open_other: Callable[[], Store] | None = None,
        *,
        namespaces: tuple[str, ...] = (A,),
        **config: Any,
    ) -> None:
        self._opens = (open_one, open_other or open_one)
        self._namespaces = namespaces
        self._config = {"keep_seconds": 0.3, "max_growing_tokens": 128, "vocab_size": _VOCAB_SIZE} | config
        self._opened = ExitStack()
        self._mark = 0

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            stores = [self._opens[0](), self._opens[1](), self._opens[0]()]
            for store in stores:
                stack.callback(store.close)
            self.view = stores[2]
            self.one = stack.enter_context(Replica(stores[0], **self._config))
            self.other = stack.enter_context(Replica(stores[1], **self._config))
            self.traffic = Traffic(self.one, self._namespaces)
            stack.callback(self.traffic.stop)
            self._opened = stack.pop_all()
        self.shared()
        return self

    def __exit__(self, *error: object) -> None:
        self._opened.__exit__(*error)

    def health(self) -> dict[str, Any]:
        """Health of the replica with traffic."""
        return self.one.sharing.health()

    def goes_on(self, num_requests: int = 20) -> None:
        """Checks that requests are finished regardless of the store."""
        aim = len(self.traffic.outputs) + num_requests
        self.until(lambda: len(self.traffic.outputs) >= aim)

    def shared(self) -> None:
        """Checks that outputs finished from now on reach the follower."""
        number = len(self.traffic.outputs) + 1
        self.until(lambda: number in self.traffic.outputs)
        self.until(lambda: drafts(self.other, number, self.traffic.namespace(number)))

    def until(self, condition: Callable[[], object]) -> None:
        """Waits for a condition. Raises the error of a request that fails meanwhile."""
        until(lambda: (self.traffic.check(), condition())[1], SECONDS)

    def fails(self, thread: str = "writer") -> None:
        """Checks that the thread reports the fault and that requests go on."""
        self.until(lambda: self.health()["failures_in_a_row"].get(thread, 0) >= 2)
        self.goes_on()

    def mark(self) -> None:
        """Notes that the store has lost its contents: only outputs finished from now on must be in it at the end."""
        self._mark = len(self.traffic.outputs)

    def recovers(self) -> None:
        """Checks that all finished outputs are in the store and in both engines, and that none was dropped."""
        self.shared()
        self.other.finish("back", words(_FROM_THE_FOLLOWER), is_delivered=False)
        self.until(lambda: drafts(self.one, _FROM_THE_FOLLOWER, A))
        self.traffic.stop()
        assert self.one.sharing.flush(SECONDS)
        assert self.health()["dropped_outputs"] == 0
        until(lambda: self.health()["connected"])
        there = {name: stored(self.view, name) for name in self._namespaces}
        for number, output_id in list(self.traffic.outputs.items())[self._mark :]:
            name = self.traffic.namespace(number)
            assert there[name][output_id], f"output {number} of {len(self.traffic.outputs)} is not in the store"
            until(lambda number=number, name=name: drafts(self.other, number, name))  # type: ignore[misc]
        if not self._mark:
            until(lambda: self.other.num_outputs() == self.one.num_outputs() == len(self.traffic.outputs) + 1)
