"""An OpenAI-compatible server in this process whose answers a test scripts."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from http_server import Handler, listening


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

    class Chat(Handler):
        def do_GET(self) -> None:
            self.reply(200 if models else 501, models)

        def do_POST(self) -> None:
            request = self.content()
            said = script(request) if not key or self.headers["Authorization"] == f"Bearer {key}" else 401
            if isinstance(said, str):
                said = Reply(body=completion_body(said, request["model"]))
            elif isinstance(said, int):
                said = Reply(status=said)
            time.sleep(said.seconds)
            self.reply(said.status, said.body, said.headers)

    with listening(Chat) as url:
        yield f"{url}/v1"
