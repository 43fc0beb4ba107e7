"""The client of the parity bench, against a server that answers what it is told."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from agentspec.evals.parity.client import Answer, ParityClient
from agentspec.evals.parity.requests import Ask

REFUSED = {"type": "abort", "message": "too long", "status_code": 400}
ABORTED = {"type": "abort", "message": "aborted", "status_code": None}


@contextmanager
def streaming(events: list[dict[str, Any]]) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(200)
            self.end_headers()
            self.wfile.write("".join(f"data: {json.dumps(event)}\n\n" for event in events).encode())

        def log_message(self, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def event(tokens: list[int], finish_reason: dict[str, Any] | None) -> dict[str, Any]:
    meta = {"finish_reason": finish_reason, "completion_tokens": len(tokens)}
    return {"text": "", "output_ids": tokens, "meta_info": meta}


async def answer_of(url: str) -> Answer:
    async with ParityClient(url) as client:
        return await client.ask(Ask("whole answer", {"input_ids": [1]}, is_streamed=True))


@pytest.mark.parametrize("junk", [0, 2])
def test_a_refusal_in_a_stream_is_no_answer(junk: int) -> None:
    with streaming([event([junk], REFUSED)]) as url:
        assert asyncio.run(answer_of(url)) == Answer(400)


def test_the_tokens_of_an_aborted_stream_are_an_answer() -> None:
    with streaming([event([5], None), event([5, 6], ABORTED)]) as url:
        answer = asyncio.run(answer_of(url))
    assert answer.status == 200
    assert [choice.tokens for choice in answer.choices] == [(5, 6)]
