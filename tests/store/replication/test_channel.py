"""Calls between two processes carry arrays and errors, and end when one of them does."""

from __future__ import annotations

import pickle
import socket
import threading
from collections.abc import Iterator

import numpy as np
import pytest
from numpy.typing import NDArray

from agentspec.errors import StoreError, StoreUnavailableError
from agentspec.store.replication.channel import Channel


class Unreadable:
    def __reduce__(self) -> tuple[type, tuple[str]]:
        return int, ("no number",)


class Handlers:
    def __init__(self) -> None:
        self.may_answer = threading.Event()

    def twice(self, arrays: list[NDArray[np.int32]]) -> list[NDArray[np.int32]]:
        return [2 * array for array in arrays]

    def unreadable(self) -> object:
        return Unreadable()

    def slow(self) -> str:
        assert self.may_answer.wait(30.0)
        return "late"

    def fail(self, error: Exception) -> None:
        raise error


@pytest.fixture
def handlers() -> Handlers:
    return Handlers()


@pytest.fixture
def channel(handlers: Handlers) -> Iterator[Channel]:
    ours, theirs = (Channel(each) for each in socket.socketpair())
    thread = threading.Thread(target=theirs.serve, args=(handlers,))
    thread.start()
    yield ours
    handlers.may_answer.set()
    ours.close()
    thread.join(30.0)
    assert not thread.is_alive()
    theirs.close()


def test_arrays_arrive_whatever_their_size(channel: Channel) -> None:
    arrays = [np.arange(size, dtype=np.int32) for size in (0, 1, 5_000_000)]
    for sent, received in zip(arrays, channel.call("twice", arrays), strict=True):
        assert received.dtype == np.int32 and (received == 2 * sent).all()


def test_an_error_is_raised_where_the_call_was_made(channel: Channel) -> None:
    with pytest.raises(StoreUnavailableError, match="away"):
        channel.call("fail", StoreUnavailableError("away"))
    with pytest.raises(StoreError, match="ZeroDivisionError: whatever"):
        channel.call("fail", ZeroDivisionError("whatever"))
    assert channel.call("twice", []) == []


def test_what_cannot_be_pickled_costs_its_own_call(channel: Channel) -> None:
    with pytest.raises((AttributeError, TypeError, pickle.PicklingError)):
        channel.call("twice", lambda: None)
    with pytest.raises(ValueError, match="no number"):
        channel.call("unreadable")
    assert channel.call("twice", [], timeout=30.0) == []


def test_a_late_answer_is_skipped(channel: Channel, handlers: Handlers) -> None:
    for _ in range(2):
        with pytest.raises(StoreUnavailableError, match="within 0.01 s"):
            channel.call("slow", timeout=0.01)
    handlers.may_answer.set()
    assert channel.call("twice", [], timeout=30.0) == []


def test_calls_that_nobody_takes_out_of_the_socket_end() -> None:
    ours, theirs = (Channel(each) for each in socket.socketpair())
    for _ in range(1000):
        with pytest.raises(StoreUnavailableError):
            ours.call("twice", [], timeout=0.0)
    ours.close()
    theirs.close()


def test_a_call_ends_when_the_other_end_does() -> None:
    ours, theirs = (Channel(each) for each in socket.socketpair())
    ended: list[EOFError] = []

    def call() -> None:
        with pytest.raises(EOFError) as caught:
            ours.call("twice", [])
        ended.append(caught.value)

    thread = threading.Thread(target=call)
    thread.start()
    theirs.close()
    thread.join(30.0)
    assert len(ended) == 1
    with pytest.raises(EOFError):
        ours.call("twice", [])
    ours.close()
