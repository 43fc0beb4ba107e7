"""An OpenAI-compatible server in this process whose answers a test scripts."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass(frozen=True)
class Reply:
    """A raw reply that is sent after some seconds."""

    status: int = 200
    body: bytes = b'{"error": {"message": "out of order"}}'
    headers: dict[str, str] = field(default_factory=dict)
    seconds: float = 0.0


# request body -> answer text, an HTTP status to fail with, or a raw reply
Script = Callable[[dict[str, Any]], str | int | Reply]


def completion_body(text: str, model: str) -> bytes:
    """A chat completion with 11 prompt tokens and 7 completion tokens."""
    choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
    usage = {"prompt_tokens": 11, "completion_tokens": 7, "total_tokens": 18}
    head = {"id": "1", "object": "chat.completion", "created": 0, "model": model, "accept_length": 2.5}
    return json.dumps({**head, "choices": [choice], "usage": usage}).encode()


@contextmanager
def chat_server(script: Script, *, models: bytes = b"", key: str = "") -> Iterator[str]:
    """Yields the base URL. `models` is the answer to every GET; with a `key`, requests without it fail."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.reply(Reply(status=200 if models else 501, body=models))

        def do_POST(self) -> None:
            request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            said = script(request) if not key or self.headers["Authorization"] == f"Bearer {key}" else 401
            if isinstance(said, str):
                said = Reply(body=completion_body(said, request["model"]))
            elif isinstance(said, int):
                said = Reply(status=said)
            self.reply(said)

        def reply(self, said: Reply) -> None:
            time.sleep(said.seconds)
            try:
                self.send_response(said.status)
                headers = {"Content-Type": "application/json", "Content-Length": str(len(said.body)), **said.headers}
                for name, value in headers.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(said.body)
            except (BrokenPipeError, ConnectionResetError):
                # The client has disconnected.
                pass

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
