"""Runs model-written SQL in separate processes, which are killed if a statement does not end by itself.

`execute` checks the time between two instructions of SQLite. A single call such as instr() on two long texts is one
instruction and can take minutes. Memory that SQLite does not count can grow, and a crash of SQLite would end the
process. The sandbox protects the calling process from all of this.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Self

from agentspec.workflows.text_to_sql.sql.execute import Execution
from agentspec.workflows.text_to_sql.sql.sandbox_worker import read_message, write_message

_ENVIRONMENT = ("PATH", "LD_LIBRARY_PATH", "TMPDIR", "SYSTEMROOT")
_WORKER = Path(__file__).with_name("sandbox_worker.py")


class Sandbox:
    """A thread-safe pool of processes. It starts one for each concurrent statement, when it is needed. `memory_bytes`:
    maximum number of bytes that each process may map. `grace_s`: seconds beyond a statement's time limit after which
    its process is killed."""

    def __init__(self, *, memory_bytes: int = 1 << 30, grace_s: float = 1.0) -> None:
        self._memory_bytes = memory_bytes
        self._grace_s = grace_s
        self._lock = threading.Lock()
        self._idle: list[subprocess.Popen[bytes]] = []
        self._is_closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        # A process that still runs a statement of another thread ends when the statement is done.
        with self._lock:
            self._is_closed = True
            ended, self._idle = self._idle, []
        for process in ended:
            _end(process)

    def execute(
        self, path: Path, sql: str, *, timeout_s: float = 2.0, max_rows: int = 10_000, max_bytes: int = 16_000_000
    ) -> Execution:
        """Like `execute.execute`, and also blocking, but in a process of the pool."""
        process = self._take()
        assert process.stdin is not None and process.stdout is not None
        killed = threading.Event()

        def kill() -> None:
            killed.set()
            process.kill()

        timer = threading.Timer(timeout_s + self._grace_s, kill)
        timer.daemon = True
        timer.start()
        done = None
        try:
            with suppress(OSError):
                write_message(process.stdin, (str(path), sql, timeout_s, max_rows, max_bytes))
                done = read_message(process.stdout)
        finally:
            # After this, the timer cannot kill a process that another statement may use.
            timer.cancel()
            timer.join()
            with self._lock:
                is_kept = done is not None and not killed.is_set() and not self._is_closed
                if is_kept:
                    self._idle.append(process)
            if not is_kept:
                _end(process)
        if done is None:
            return Execution(error=f"stopped after {timeout_s:g} s" if killed.is_set() else "its process ended early")
        columns, rows, truncated, error = done
        return Execution(columns, rows, truncated, error)

    def _take(self) -> subprocess.Popen[bytes]:
        with self._lock:
            if self._idle:
                return self._idle.pop()
        # The process must not see keys or other secrets in the environment.
        environment = {name: os.environ[name] for name in _ENVIRONMENT if name in os.environ}
        command = [sys.executable, "-I", "-S", str(_WORKER), str(self._memory_bytes)]
        return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    # This also closes the pipes. Unwritten data is no longer needed.
    with suppress(OSError):
        process.communicate()
