"""Calls from one process to another over a pair of connected sockets."""

from __future__ import annotations

import logging
import pickle
import select
import socket
import struct
import threading
from contextlib import suppress
from typing import Any

import numpy as np

from agentspec.errors import AgentspecError, StoreError, StoreUnavailableError

logger = logging.getLogger("agentspec")

# Bytes of the pickled message, and number of the arrays that follow it.
_HEAD = struct.Struct("<QI")


class Channel:
    """One end of a channel. The bytes of large arrays are sent as they are, with the GIL released.

    One end makes calls, one at a time, and the other end serves them. Only the two processes of a server use it, so
    messages are pickled. Every method raises EOFError once the other end is closed or its process has ended.
    """

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected
        self._lock = threading.Lock()
        self._num_calls = 0
        self._num_answers = 0

    def call(self, name: str, *arguments: Any, timeout: float | None = None) -> Any:
        """Calls a method at the other end and returns its result, or raises the error that it raised. Raises
        StoreUnavailableError if there is no answer within `timeout` seconds, or another call without a time-out is under
        way. The answer is then skipped later. Until it came no other call is sent: where nobody takes calls out of the
        socket, it fills up, and sending would wait for ever."""
        if not self._lock.acquire(blocking=timeout is None):
            raise StoreUnavailableError("the store's process is busy with another call")
        try:
            while self._num_answers < self._num_calls:
                self._answer(timeout)
            self._send((name, arguments))
            self._num_calls += 1
            is_error, result = self._answer(timeout)
        except OSError as error:
            raise EOFError("the channel is closed") from error
        finally:
            self._lock.release()
        if is_error:
            raise result
        return result

    def serve(self, handlers: object) -> None:
        """Answers calls with methods of `handlers` until the other end is closed."""
        with suppress(EOFError, OSError):
            while True:
                name, arguments = self._receive()
                try:
                    answer = (False, getattr(handlers, name)(*arguments))
                except AgentspecError as error:
                    answer = (True, error)
                except Exception as error:
                    # Other errors may not be picklable.
                    logger.exception("agentspec: a call between a server and its store's process failed")
                    answer = (True, StoreError(f"{type(error).__name__}: {error}"))
                self._send(answer)

    def close(self) -> None:
        """Ends calls at both ends, also those in progress."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _answer(self, timeout: float | None) -> tuple[bool, Any]:
        if timeout is not None:
            poll = select.poll()
            poll.register(self._socket, select.POLLIN)
            if not poll.poll(timeout * 1000):
                raise StoreUnavailableError(f"the store's process did not answer within {timeout} s")
        try:
            is_error, result = self._receive()
        finally:
            self._num_answers += 1
        return is_error, result

    def _send(self, message: object) -> None:
        arrays: list[pickle.PickleBuffer] = []
        pickled = pickle.dumps(message, protocol=5, buffer_callback=arrays.append)
        views = [array.raw() for array in arrays]
        sizes = struct.pack(f"<{len(views)}Q", *map(len, views))
        self._socket.sendall(b"".join((_HEAD.pack(len(pickled), len(views)), sizes, pickled)))
        for view in views:
            self._socket.sendall(view)

    def _receive(self) -> Any:
        num_bytes, num_arrays = _HEAD.unpack(self._exactly(_HEAD.size))
        first = self._exactly(8 * num_arrays + num_bytes)
        sizes = struct.unpack_from(f"<{num_arrays}Q", first)
        return pickle.loads(first[8 * num_arrays :], buffers=[self._exactly(size) for size in sizes])

    def _exactly(self, num_bytes: int) -> memoryview:
        view = np.empty(num_bytes, np.uint8).data
        at = 0
        while at < num_bytes:
            received = self._socket.recv_into(view[at:], 0, socket.MSG_WAITALL)
            if not received:
                raise EOFError("the other end is closed")
            at += received
        return view
