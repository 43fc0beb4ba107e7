"""HTTP servers in this process whose answers a test scripts."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Handler(BaseHTTPRequestHandler):
    """Reads and writes JSON, and logs nothing."""

    def content(self) -> Any:
        return json.loads(self.rfile.read(int(self.headers["Content-Length"])))

    def reply(self, status: int, content: Any, headers: Mapping[str, str] | None = None) -> None:
        """Sends bytes as they are and all else as JSON, to a client that may have disconnected."""
        body = content if isinstance(content, bytes) else json.dumps(content).encode()
        every = {"Content-Type": "application/json", "Content-Length": str(len(body)), **(headers or {})}
        with suppress(BrokenPipeError, ConnectionResetError):
            self.send_response(status)
            for name, value in every.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


class _Server(ThreadingHTTPServer):
    # Takes all connections of a burst, also where it comes late to accept them.
    request_queue_size = 128


@contextmanager
def listening(handler: type[BaseHTTPRequestHandler]) -> Iterator[str]:
    """Yields the URL of a server with this handler."""
    server = _Server(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
