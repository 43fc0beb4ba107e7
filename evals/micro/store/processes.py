"""Processes that open a store, for the benches of it."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any

from agentspec.errors import StoreError

START_SECONDS = 120.0
_END_SECONDS = 20.0


@contextmanager
def processes(*calls: tuple[Callable[..., None], tuple[Any, ...]]) -> Iterator[list[Connection]]:
    """Makes each call in a process of its own, and yields the connections to them. A call gets two further arguments: a
    barrier for all of them, and its connection to this process. Raises StoreError if one ended without an answer."""
    context = multiprocessing.get_context("spawn")
    together = context.Barrier(len(calls))
    ours = []
    started = []
    for target, args in calls:
        connection, theirs = context.Pipe()
        ours.append(connection)
        started.append(context.Process(target=target, args=(*args, together, theirs)))
        started[-1].start()
        # Closed here, so that the end of a process without an answer is noticed.
        theirs.close()
    try:
        yield ours
    except EOFError:
        raise StoreError("a process that opened the store ended; its error is above") from None
    finally:
        together.abort()
        for process in started:
            process.join(_END_SECONDS)
            process.kill()
            process.join()
