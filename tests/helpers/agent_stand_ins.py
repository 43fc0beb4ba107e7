"""Stand-ins for tests of coding-agent runs: a model server that misbehaves, and the agent's interpreter."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any


class ScriptedEndpoint:
    """Chooses an answer by what the first user message quotes. An answer is a text, or a function of the request's
    number within its task."""

    def __init__(self) -> None:
        self.answers: dict[str, Any] = {}
        self.requests: list[tuple[str, dict[str, Any]]] = []
        self.raw_models: bytes | None = None
        self._closed = threading.Event()
        endpoint = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, format: str, *args: object) -> None: ...

            def do_GET(self) -> None:
                self.reply(endpoint.raw_models or json.dumps({"data": [{"id": "scripted"}]}).encode())

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                endpoint.requests.append((self.headers["Authorization"], body))
                first = next(m["content"] for m in body["messages"] if m["role"] == "user")
                answer = next((answer for quoted, answer in endpoint.answers.items() if quoted in first), b"unknown")
                if callable(answer):
                    answer = answer(sum(m["role"] == "assistant" for m in body["messages"]))
                self.reply(answer if isinstance(answer, bytes) else chat_answer(answer))

            def reply(self, body: bytes) -> None:
                try:
                    self.send_response(200)
                    self.send_header("Content-Type", "application/json")
                    self.send_header("Content-Length", str(len(body)))
                    self.end_headers()
                    self.wfile.write(body)
                except OSError:
                    pass  # The client has disconnected.

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))
        self._thread.start()
        self.base_url = f"http://127.0.0.1:{self._server.server_port}/v1"

    def never(self, _: int) -> str:
        """Returns an answer only after the client has stopped waiting."""
        self._closed.wait()
        return "too late"

    def close(self) -> None:
        self._closed.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


def chat_answer(text: str) -> bytes:
    choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
    usage = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
    answer = {"id": "1", "object": "chat.completion", "created": 0, "model": "m", "choices": [choice], "usage": usage}
    return json.dumps(answer).encode()


def fake_agent(path: Path, body: str) -> str:
    """Writes an executable that replaces the agent's interpreter and everything that it would run."""
    path.write_text(f"#!/usr/bin/env python3\nimport json, sys, time\njob = json.load(sys.stdin)\n{body}\n")
    path.chmod(0o755)
    return str(path)
