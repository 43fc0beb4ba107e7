"""The command `agentspec ab`."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from agentspec.cli import main

CLIENT = """
import json, sys, urllib.request
body = {"model": sys.argv[2], "messages": [{"role": "user", "content": sys.argv[3]}], "temperature": 0}
request = urllib.request.Request(sys.argv[1] + "/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"})
urllib.request.urlopen(request).read()
"""
COMMAND = f"{shlex.quote(sys.executable)} -c {shlex.quote(CLIENT)} {{url}} {{model}} {{task}}"


@contextmanager
def openai_server(answer: str) -> Iterator[str]:
    """A server of one model that always answers the same."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._send({"data": [{"id": "model"}]}, 200 if self.path == "/v1/models" else 404)

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            choice = {"index": 0, "message": {"role": "assistant", "content": answer}, "finish_reason": "stop"}
            self._send({"choices": [choice], "usage": {"prompt_tokens": 3, "completion_tokens": 2}})

        def _send(self, body: Any, status: int = 200) -> None:
            data = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1"
    finally:
        server.shutdown()
        server.server_close()


def test_a_command_is_compared_and_everything_is_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tasks = tmp_path / "tasks.txt"
    tasks.write_text("one\ntwo\nthree\n")
    with openai_server("x") as a, openai_server("y") as b:
        words = ["ab", "--command", COMMAND, "--task-file", str(tasks), "--a", a, "--b", b, "--turns", "3"]
        assert main([*words, "--concurrency", "1", "--out", str(tmp_path / "out"), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts == json.loads((tmp_path / "out/ab.json").read_text())
    assert (facts["tasks"], facts["pairs"]) == (3, 3)
    assert (facts["answers"]["compared"], facts["answers"]["identical"]) == (3, 0)
    assert facts["success"]["both"] == 3
    assert facts["headline"] in (tmp_path / "out/ab.html").read_text()


def test_a_log_is_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "log.jsonl"
    messages = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]
    log.write_text("".join(json.dumps({"session": f"s{i}", "messages": messages}) + "\n" for i in range(4)))
    with openai_server("x") as a, openai_server("x") as b:
        assert main(["ab", str(log), "--a", a, "--b", b, "--concurrency", "1"]) == 0
    text = capsys.readouterr().out
    assert "identical greedy answers        4 of 4" in text and "The log has no times" in text


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--a", "x", "--b", "y"], "the work must be one of"),
        (["--workload", "sql", "--command", "x {url}"], "the work must be one of"),
        (["--command", "x {url}"], "--a URL and --b URL name the two servers"),
        (["--command", "x {url}", "--start", "m", "--a", "x"], "--start starts both servers"),
        (["--command", "x {url} {task}", "--a", "x", "--b", "y"], "--task-file go together"),
        (["--command", "x {url} {out}", "--a", "x", "--b", "y"], "needs --tasks N"),
        (["--command", "x {url}", "--a", "x", "--b", "y", "--repeat", "-1"], "--repeat at least 1"),
        (["--command", "x {url}", "--a", "ftp://x", "--b", "y"], "must be like http://HOST:30000"),
        (["--command", "x {url}", "--a", "127.0.0.1:9", "--b", "y"], "must answer at http://127.0.0.1:9/v1/models"),
        (["--nonsense", "--command", "x {url}", "--a", "x", "--b", "y"], "unknown arguments --nonsense"),
    ],
)
def test_a_wrong_command_line_is_told_in_one_line(
    words: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["ab", *words]) == 2
    error = capsys.readouterr().err
    assert told in error and len(error.strip().splitlines()) == 1
