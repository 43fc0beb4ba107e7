"""The process of a `sandbox.Sandbox`: runs statements that come on stdin, one after another, until stdin ends.

It is started by its path and knows the standard library alone, so that it starts in no time. Messages are marshalled
values with their length, 4 bytes, before them:

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

# A statement that hangs where nobody kills the process ends after so many seconds of CPU beyond its own.
_GRACE_S = 5
# SQLite sorts what does not fit its memory in temporary files.
_FILE_BYTES = 1 << 30


def read_message(stream: IO[bytes]) -> Any:
    """The next message; None at the end, also at one in the midst of a message."""
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
    """Serve; the one argument is the memory that the process may map, in bytes."""
    memory = int(sys.argv[1])
    # Not every system has every limit.
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
    # By path: the package would bring numpy and more.
    spec = importlib.util.spec_from_file_location("execute", Path(__file__).with_name("execute.py"))
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


if __name__ == "__main__":
    main()
