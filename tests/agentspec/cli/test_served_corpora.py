"""`agentspec corpus add`, `ls` and `rm`, as far as they can be tested without a real server."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from server_blocks import served

from agentspec.cli import main

CORPORA = {
    "corpora": [
        {"name": "docs", "tokens": 12, "bytes": 900, "all": False, "namespaces": ["a" * 32], "origin": "added"},
        {"name": "old", "tokens": None, "bytes": 7, "all": True, "namespaces": [], "origin": "start"},
    ]
}


@pytest.mark.parametrize("answer", [CORPORA, {"ranks": [CORPORA]}])
def test_corpora_are_listed(answer: object, capsys: pytest.CaptureFixture[str]) -> None:
    with served({"/agentspec/corpora": answer}) as url:
        assert main(["corpus", "ls", "--server", url]) == 0
        first, second = capsys.readouterr().out.splitlines()
        assert first.split()[:2] == ["docs", "12"] and first.endswith("1 namespaces, added")
        assert second.split()[:2] == ["old", "?"] and second.endswith("all, start")
        assert main(["corpus", "ls", "--server", url, "--json"]) == 0
        assert json.loads(capsys.readouterr().out) == answer


def test_what_keeps_from_managing_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with served({"/agentspec/corpora": 404}) as url:
        cases = [
            (["ls", "--server", url], "status 404"),
            (["ls", "--server", "http://127.0.0.1:1"], "no server answers"),
            (["ls", "--server", url, "--admin-key-file", str(tmp_path / "none")], "--admin-key-file must be a file"),
            (["ls", "--server", url, "--timeout", "0"], "--timeout must be > 0"),
            (["add", "x", "--server", url, "--all"], "--server-file"),
            (["add", "x", str(tmp_path / "none"), "--server", url, "--all"], "there is no"),
            (["add", "x", str(tmp_path / "binary"), "--server", url, "--all"], "is no UTF-8 text"),
        ]
        for words, told in cases:
            assert main(["corpus", *words]) == 2
            assert told in capsys.readouterr().err
