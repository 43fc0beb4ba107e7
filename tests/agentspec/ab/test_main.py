"""The command `agentspec ab`."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path

import pytest
from chat_server import chat_server

from agentspec.cli import main

CLIENT = """
import json, sys, urllib.request
body = {"model": sys.argv[2], "messages": [{"role": "user", "content": sys.argv[3]}], "temperature": 0}
request = urllib.request.Request(sys.argv[1] + "/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"})
urllib.request.urlopen(request).read()
"""
MODELS = b'{"data": [{"id": "model"}]}'
COMMAND = f"{shlex.quote(sys.executable)} -c {shlex.quote(CLIENT)} {{url}} {{model}} {{task}}"


def test_a_command_is_compared_and_everything_is_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tasks = tmp_path / "tasks.txt"
    tasks.write_text("one\ntwo\nthree\n")
    with chat_server(lambda body: "x", models=MODELS) as a, chat_server(lambda body: "y", models=MODELS) as b:
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
    with chat_server(lambda body: "x", models=MODELS) as a, chat_server(lambda body: "x", models=MODELS) as b:
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
