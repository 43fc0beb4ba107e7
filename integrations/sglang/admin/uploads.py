"""Reads the bodies of requests up to a limit, and writes documents to a file as they arrive.

application/json        one object with `documents`, a list of texts or of lists of token ids
application/x-ndjson    the same object without `documents` in the first line, then one document in each line, an object
                        with `text` or `tokens`. This is for large uploads, because the body is never held in memory.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from agentspec.errors import ManagementError
from agentspec.integrations.sglang.admin.wire import JsonObject

if TYPE_CHECKING:
    from starlette.requests import Request

MOST_JSON_BYTES = 4 << 20
"""The limit for bodies that are parsed as a whole. Parsing blocks the server's HTTP process."""
_MOST_HEAD_BYTES = 1 << 20
_MOST_DROPPED_BYTES = 64 << 20
"""This much more of a body that is too large is read and dropped, because many clients read the answer only after they
have sent everything."""
MOST_BYTES = 64 << 20
"""The limit for bodies of lines."""


async def read_json(request: Request, most_bytes: int = MOST_JSON_BYTES) -> Any:
    """Reads the body and parses it. Raises ManagementError if the body is too large or is not JSON."""
    parts = [part async for part in _limited(request, most_bytes, "as one JSON object; send application/x-ndjson")]
    try:
        return json.loads(b"".join(parts))
    except (ValueError, RecursionError) as error:
        raise ManagementError(f"the body must be JSON: {_told(error)}") from None


async def read_lines(request: Request, stream: IO[bytes], most_bytes: int) -> Any:
    """Parses the first line of the body, and writes the rest to `stream`. Raises ManagementError if the body is too
    large, or its first line is not JSON."""
    head, has_head = bytearray(), False
    async for part in _limited(
        request, most_bytes, "at a time; send less, or put a file below the server's AGENTSPEC_ADMIN_FOLDER and name it"
    ):
        if not has_head:
            before, newline, part = part.partition(b"\n")
            head += before
            has_head = bool(newline)
            if len(head) > _MOST_HEAD_BYTES:
                raise ManagementError(
                    f"the first line must have at most {_MOST_HEAD_BYTES} bytes; put documents into the next lines", 413
                )
        if part:
            await asyncio.to_thread(stream.write, part)
    try:
        return json.loads(head)
    except (ValueError, RecursionError) as error:
        raise ManagementError(f"the first line must be a JSON object with the corpus's name: {_told(error)}") from None


def write_documents(documents: object, stream: IO[bytes]) -> None:
    """Writes the documents that read_json() returned, one in each line. Raises ManagementError if `documents` is empty,
    or not a list of texts and lists of token ids."""
    if not isinstance(documents, list) or not documents:
        raise ManagementError("`documents` must be a list of texts or of lists of token ids, and not empty")
    for position, document in enumerate(documents):
        if isinstance(document, str):
            line: JsonObject = {"text": document}
        elif isinstance(document, list) and all(type(token) is int for token in document):
            line = {"tokens": document}
        else:
            raise ManagementError(f"document {position} must be a text or a list of token ids")
        stream.write(json.dumps(line).encode() + b"\n")


@contextmanager
def spool() -> Iterator[IO[bytes]]:
    """A temporary file that only this user may read. A process that needs it longer must make a link. Raises ManagementError
    if it cannot be written."""
    try:
        with tempfile.NamedTemporaryFile(prefix="agentspec-upload-", suffix=".jsonl") as stream:
            yield stream
    except OSError as error:
        if error.errno is None:
            # A time-out of what is done meanwhile.
            raise
        raise ManagementError(
            f"the server cannot keep the upload in {tempfile.gettempdir()}: {error.strerror}; make room there, or name "
            "another folder by its variable TMPDIR",
            507,
        ) from None


def spooled(stream: IO[bytes]) -> Path:
    """Flushes the file and returns its path."""
    stream.flush()
    return Path(stream.name)


async def _limited(request: Request, most_bytes: int, what: str) -> AsyncIterator[bytes]:
    told = request.headers.get("content-length", "")
    is_too_large = told.isdigit() and int(told) > most_bytes
    num_bytes = 0
    async for part in request.stream():
        num_bytes += len(part)
        is_too_large = is_too_large or num_bytes > most_bytes
        if not is_too_large:
            yield part
        elif num_bytes > most_bytes + _MOST_DROPPED_BYTES:
            break
    if is_too_large:
        least = max(num_bytes, int(told) if told.isdigit() else 0)
        raise ManagementError(f"the body has {least} bytes or more, and may have {most_bytes} {what}", 413)


def _told(error: Exception) -> str:
    return str(error)[:200]
