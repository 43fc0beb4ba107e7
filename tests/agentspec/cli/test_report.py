"""The command `agentspec report`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from byte_tokenizer import write_byte_tokenizer
from logs import request, sql_sessions, write_lines

from agentspec.cli import main

pytest.importorskip("tiktoken", reason="`make setup` installs tiktoken")


def report(tmp_path: Path, *words: str) -> int:
    return main(["report", *words, "--tokenizer", str(write_byte_tokenizer(tmp_path)), "--concurrency", "1"])


def test_facts_are_written_and_the_verdict_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = write_lines(tmp_path / "log.jsonl", sql_sessions(25, seed=0))
    written = ["--json", str(tmp_path / "facts.json"), "--out", str(tmp_path / "report.html")]
    assert report(tmp_path, str(log), *written) == 0
    facts = json.loads((tmp_path / "facts.json").read_text())
    page = (tmp_path / "report.html").read_text()
    assert "</html>" in page and "--speculative-algorithm" in page
    shown = capsys.readouterr().out
    assert shown.startswith(facts["verdict"]["headline"] + "\n  python -m sglang.launch_server")
    assert "speed-up" in shown and "Limits of this report" in shown
    assert str(tmp_path) not in json.dumps(facts)


def test_the_command_names_the_models_folder_and_the_page_does_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "my models"
    folder.mkdir()
    write_byte_tokenizer(folder)
    log, page = write_lines(tmp_path / "log.jsonl", sql_sessions(25, seed=0)), tmp_path / "report.html"
    words = ["report", str(log), "--concurrency", "1", "--out", str(page)]
    assert main([*words, "--tokenizer", str(folder)]) == 0
    assert f"--model-path '{folder}' " in capsys.readouterr().out
    assert "my models" not in page.read_text() and "--model-path MODEL" in page.read_text()
    assert main([*words, "--tokenizer", str(folder), "--model", "a b"]) == 0
    assert "--model-path 'a b' " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty"),
        (b"\x89PNG\0\0", "is binary"),
        (b'{"messages": [{"role": "user", "content": "hi"}]}\n', "has no outputs"),
        (b'{"messages": [{"role": "us', "is not JSON"),
        (b'{"a": 1}\n{"b": 2}\n', "no known format"),
        (b'{"request_id": "r", "tokens": [5, 999]}\n', "token id 999"),
    ],
)
def test_nothing_readable_ends_with_2_and_says_why(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes, message: str
) -> None:
    log = tmp_path / "log.jsonl"
    log.write_bytes(content)
    assert report(tmp_path, str(log)) == 2
    error = capsys.readouterr().err
    assert "there is no output to report on" in error and message in error


@pytest.mark.parametrize(
    "words",
    [
        ["none.jsonl"],
        ["log.jsonl", "--memory-mb", "3"],
        ["log.jsonl", "--profile", "none"],
        ["log.jsonl", "--json", "no/such/folder.json"],
        ["log.jsonl", "--out", "."],
        ["log.jsonl", "--json", "./log.jsonl"],
    ],
)
def test_usage_errors_end_with_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, words: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    write_lines(tmp_path / "log.jsonl", [request("q", "a")])
    assert report(tmp_path, *words) == 2
    assert capsys.readouterr().err.startswith("agentspec report: ")


def test_a_wrong_tokenizer_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import base64

    # Text for which the tokenizer has no tokens is lost.
    path = tmp_path / "letters.tiktoken"
    path.write_bytes(b"".join(base64.b64encode(bytes([i])) + b" %d\n" % i for i in range(256)))
    records = [request("q", f"ok {i}\ud800", session=str(i)) for i in range(30)]
    log = write_lines(tmp_path / "log.jsonl", records)
    assert main(["report", str(log), "--tokenizer", str(path), "--concurrency", "1"]) == 0
    assert "change when tokenized and decoded" in capsys.readouterr().out
