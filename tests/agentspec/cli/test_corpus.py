"""The command `agentspec corpus`. `add`, `ls` and `rm` as far as they can be tested without a real server."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from byte_tokenizer import write_byte_tokenizer
from engine_texts import by_counts, ids

from agentspec import Engine, EngineConfig
from agentspec.cli import main
from agentspec.fingerprint import fingerprint

pytest.importorskip("tiktoken", reason="`make setup` installs tiktoken")
from http_server import Handler, listening
from server_blocks import served


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    folder = tmp_path / "texts"
    folder.mkdir()
    (folder / "a.txt").write_text("select name from singer")
    (folder / "b.jsonl").write_text('{"text": "select age"}\n{\n')
    return folder


def build(tmp_path: Path, *words: str) -> int:
    return main(["corpus", "build", *words, "--tokenizer", str(write_byte_tokenizer(tmp_path))])


def test_what_is_built_is_drafted_from(texts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "sql.corpus"
    assert build(tmp_path, str(texts), "--out", str(out), "--json") == 0
    shown = capsys.readouterr()
    result = json.loads(shown.out)
    assert (result["documents"], result["tokens"], result["skipped"]) == (2, 33, 1)
    assert result["bytes"] == out.stat().st_size
    assert shown.err.startswith(f"skipped {texts / 'b.jsonl'}:2: ")

    tokenizer = fingerprint(tmp_path / "bytes.tiktoken")
    engine = Engine(EngineConfig(tokenizer=tokenizer, estimates=by_counts(), max_draft_tokens=4))
    engine.attach_corpus(out)
    engine.open("a", ids(*b"a f"))
    assert bytes(engine.draft(["a"]).tokens.tolist()) == b"from "

    assert main(["corpus", "info", str(out), "--json"]) == 0
    info = json.loads(capsys.readouterr().out)
    assert (info["kind"], info["documents"], info["tokens"], info["tokenizer"]) == ("corpus", 2, 33, tokenizer)


def test_many_bad_lines_are_told_in_few(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "a"}\n' + "{\n" * 9)
    assert build(tmp_path, str(tmp_path / "a.jsonl"), "--out", str(tmp_path / "c")) == 0
    lines = capsys.readouterr().err.splitlines()
    assert (len(lines), lines[-1]) == (6, "skipped 4 more")


def test_nothing_to_build_from_is_refused_with_what_was_skipped(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.jsonl").write_text("{\n")
    assert build(tmp_path, str(tmp_path / "a.jsonl"), "--out", str(tmp_path / "c")) == 2
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].startswith(f"skipped {tmp_path / 'a.jsonl'}:1: ")
    assert lines[1].startswith("agentspec corpus: a corpus needs one document at least, got none")
    assert not (tmp_path / "c").exists()


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["{folder}/none.txt", "--out", "{folder}/c"], "there is no {folder}/none.txt"),
        (["{folder}", "--out", "{folder}/no/c"], "--out must lie in a folder that exists, got {folder}/no/c"),
    ],
)
def test_bad_arguments_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], named: str
) -> None:
    assert build(tmp_path, *(word.format(folder=tmp_path) for word in words)) == 2
    assert named.format(folder=tmp_path) in capsys.readouterr().err


def test_a_file_that_is_no_segment_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "a.txt"
    path.write_text("hello")
    assert main(["corpus", "info", str(path)]) == 2
    error = capsys.readouterr().err
    assert str(path) in error and "not a segment" in error


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


def test_a_corpus_is_added_once_the_jobs_of_all_ranks_are_done(texts: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each rank of `--dp-size` builds the corpus on its own."""

    def job(state: str) -> dict[str, object]:
        result = {"name": "x", "documents": 2, "tokens": 5, "skipped": 0} if state == "done" else None
        return {
            "id": "j",
            "state": state,
            "finished": None if state == "running" else 1.0,
            "result": result,
            "error": "why",
        }

    for last, status, told in (("done", 0, "added x: 2 documents"), ("failed", 2, "its job is failed: why")):
        answers = iter([["done", "running"], ["done", last]])

        class Ranks(Handler):
            def do_POST(self) -> None:
                self.rfile.read(int(self.headers["Content-Length"]))
                self.reply(202, {"ranks": [{"job": job("queued")}] * 2})

            def do_GET(self) -> None:
                self.reply(200, {"ranks": [job(state) for state in next(answers)]})  # noqa: B023 - used within the loop

        with listening(Ranks) as url:
            assert main(["corpus", "add", "x", str(texts), "--all", "--server", url]) == status
        assert told in "".join(capsys.readouterr())


def test_a_refusal_of_one_rank_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    class Ranks(Handler):
        def do_DELETE(self) -> None:
            self.reply(404, {"ranks": [{"removed": {}}, {"error": "there is no corpus 'x'"}]})

    with listening(Ranks) as url:
        assert main(["corpus", "rm", "x", "--server", url]) == 2
    assert "there is no corpus 'x'" in capsys.readouterr().err


def test_what_keeps_from_managing_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with served({"/agentspec/corpora": 404}) as url:
        cases = [
            (["ls", "--server", url], "status 404"),
            (["ls", "--server", "http://127.0.0.1:1"], "no server answers"),
            (["ls", "--server", url, "--admin-key-file", str(tmp_path / "none")], "--admin-key-file must be a file"),
            (["ls", "--server", url, "--timeout", "0"], "--timeout must be > 0"),
            (["add", "x", str(tmp_path / "none"), "--server", url, "--all"], "there is no"),
            (["add", "x", str(tmp_path / "binary"), "--server", url, "--all"], "is no UTF-8 text"),
        ]
        for words, told in cases:
            assert main(["corpus", *words]) == 2
            assert told in capsys.readouterr().err
