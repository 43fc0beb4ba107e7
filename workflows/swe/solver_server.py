"""The reference solver as an OpenAI-compatible server."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

from agentspec.errors import ConfigError
from agentspec.workflows.swe.reference_solver import NAME, ReferenceSolver, text_of
from agentspec.workflows.swe.tasks import Task

_WORD = re.compile(r"\w+|[^\w\s]")
_MAX_BODY = 64 << 20


class SolverServer:
    """Serves `/v1/models` and `/v1/chat/completions` on this machine while it is entered as a context.

    Its usage counts words and punctuation marks instead of tokens, because it has no tokenizer. Raises ConfigError if a
    task has no fix, or the port is taken.
    """

    def __init__(self, tasks: Sequence[Task], port: int = 0) -> None:
        solver = ReferenceSolver(tasks)

        class Handler(_Handler):
            def reply_to(self, messages: list[Any]) -> str | None:
                return solver.answer(messages)

        try:
            self._server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        except (OSError, OverflowError) as error:
            raise ConfigError(f"cannot listen on port {port}: {error}; choose another --port") from error
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}/v1"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def wait(self) -> None:
        """Returns when the server has stopped."""
        self._thread.join()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    # Headers and body are sent in two writes. The second must not wait until the first is acknowledged.
    disable_nagle_algorithm = True

    def reply_to(self, messages: list[Any]) -> str | None:
        raise NotImplementedError

    def log_message(self, format: str, *args: object) -> None:
        """Prints nothing, so that requests are not logged."""

    def do_GET(self) -> None:
        if self.path.rstrip("/") == "/v1/models":
            self._send(200, {"object": "list", "data": [{"id": NAME, "object": "model", "owned_by": "agentspec"}]})
        else:
            self._refuse(404, f"no such path: {self.path}")

    def do_POST(self) -> None:
        length = self.headers.get("Content-Length", "")
        if not length.isdigit() or int(length) > _MAX_BODY:
            self.close_connection = True
            return self._refuse(400, f"a Content-Length of at most {_MAX_BODY} is required")
        body = self.rfile.read(int(length))
        if self.path.rstrip("/") != "/v1/chat/completions":
            return self._refuse(404, f"no such path: {self.path}")
        try:
            request = json.loads(body)
            messages = request["messages"]
            if not isinstance(messages, list) or not all(isinstance(message, dict) for message in messages):
                raise TypeError
        except (ValueError, KeyError, TypeError):
            return self._refuse(400, "the body must be JSON with a list of `messages`")
        if request.get("stream"):
            return self._refuse(400, "the reference solver does not stream")
        answer = self.reply_to(messages)
        if answer is None:
            return self._refuse(400, "the first user message quotes the issue of no task that the solver was given")
        answer = _cut(answer, request.get("stop"))
        read, written = sum(_words(text_of(message)) for message in messages), _words(answer)
        usage = {"prompt_tokens": read, "completion_tokens": written, "total_tokens": read + written}
        choice = {"index": 0, "message": {"role": "assistant", "content": answer}, "finish_reason": "stop"}
        self._send(
            200,
            {
                "id": "chatcmpl-0",
                "object": "chat.completion",
                "created": 0,
                "model": NAME,
                "choices": [choice],
                "usage": usage,
            },
        )

    def _refuse(self, status: int, message: str) -> None:
        self._send(status, {"error": {"message": message, "type": "BadRequestError", "code": status}})

    def _send(self, status: int, answer: dict[str, Any]) -> None:
        body = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def _cut(answer: str, stops: Any) -> str:
    """The answer up to the first of the request's stop strings."""
    wanted = [stops] if isinstance(stops, str) else stops or []
    ends = [answer.find(stop) for stop in wanted if isinstance(stop, str) and stop in answer]
    return answer[: min(ends)] if ends else answer


def _words(text: str) -> int:
    return len(_WORD.findall(text))
