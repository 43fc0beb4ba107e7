"""The process of a `sandbox.Sandbox`. It runs statements from stdin, one after another, until stdin ends.

It is started by its path and imports only the standard library, so that it starts quickly. Messages are marshalled
values preceded by their length in 4 bytes:

    in   (path, sql, timeout_s, max_rows, max_bytes)
    out  (columns, rows, truncated, error)
"""

from __future__ import annotations

import contextlib
import importlib.util
import marshal
import resource
import struct
import sys
from pathlib import Path
from typing import IO, Any

# CPU seconds beyond its time limit after which a hanging statement ends if nobody kills the process.
_GRACE_S = 5
# Limit for the temporary files in which SQLite sorts rows that do not fit into memory.
_FILE_BYTES = 1 << 30


def read_message(stream: IO[bytes]) -> Any:
    """Read the next message; None at the end of the stream, even within a message."""
    head = stream.read(4)
    if len(head) < 4:
        return None
    (size,) = struct.unpack("<I", head)
    body = stream.read(size)
    return marshal.loads(body) if len(body) == size else None


def write_message(stream: IO[bytes], message: Any) -> None:
    """Send one message."""
    body = marshal.dumps(message)
    stream.write(struct.pack("<I", len(body)) + body)
    stream.flush()


def main() -> None:
    """Serve statements. The only command-line argument is the memory that the process may map, in bytes."""
    memory = int(sys.argv[1])
    # Some systems lack some of these limits.
    for kind, limit in ((resource.RLIMIT_AS, memory), (resource.RLIMIT_FSIZE, _FILE_BYTES), (resource.RLIMIT_CORE, 0)):
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(kind, (limit, limit))
    execute = _execute_module().execute
    while (request := read_message(sys.stdin.buffer)) is not None:
        path, sql, timeout_s, max_rows, max_bytes = request
        used = resource.getrusage(resource.RUSAGE_SELF)
        seconds = int(used.ru_utime + used.ru_stime + timeout_s) + _GRACE_S
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_CPU, (seconds, resource.getrlimit(resource.RLIMIT_CPU)[1]))
        done = execute(Path(path), sql, timeout_s=timeout_s, max_rows=max_rows, max_bytes=max_bytes)
        write_message(sys.stdout.buffer, (done.columns, done.rows, done.truncated, done.error))


def _execute_module() -> Any:
    # The module is loaded by path, because the package would import numpy and more.
    spec = importlib.util.spec_from_file_location("execute", Path(__file__).with_name("execute.py"))
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


if __name__ == "__main__":
    main()
