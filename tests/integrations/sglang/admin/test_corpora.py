"""Corpora that are added and removed while an engine drafts: who drafts from them, and that removal leaves nothing."""

from __future__ import annotations

import sys
import tempfile
import threading
from pathlib import Path

import numpy as np
import pytest
from byte_tokenizer import write_byte_tokenizer
from engine_texts import ids
from managed_engine import A, B, ManagedEngine

from agentspec.analysis.corpus import build_corpus
from agentspec.drafts import Source
from agentspec.fingerprint import fingerprint

pytest.importorskip("tiktoken", reason="`make setup` installs tiktoken")
pytest.importorskip("starlette", reason="`make setup` installs it")


@pytest.fixture(autouse=True)
def _own_temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))


def test_a_corpus_is_drafted_from_by_those_it_was_given_to_until_it_is_removed(tmp_path: Path) -> None:
    managed = ManagedEngine(tmp_path)
    for name, documents, to in (
        ("of-a", ["abcdefghijkl mno"], {"tenants": ["acme"]}),
        ("of-b", [list(b"ABCDEFGHIJKL MNO")], {"namespaces": [B]}),
        ("of-all", ["12345 67890 12"], {"all": True}),
    ):
        job = managed.add(name, documents, **to)
        assert (job["state"], job["error"], job["result"]["documents"]) == ("done", None, 1)
    assert managed.drafts("abc", A) == "defghijk" and managed.drafts("ABC", A) == ""
    assert managed.drafts("ABC", B) == "DEFGHIJK" and managed.drafts("abc", B) == ""
    assert managed.drafts("345", A) == managed.drafts("345", B) == managed.drafts("345", "") == " 67890 1"
    assert managed.drafts("abc", "private:r") == managed.drafts("ABC", "private:r") == ""

    listed = {corpus["name"]: corpus for corpus in managed.client.get("/agentspec/corpora").json()["corpora"]}
    assert listed["of-a"]["namespaces"] == [A] and not listed["of-a"]["all"] and listed["of-all"]["all"]
    assert listed["of-a"]["tokens"] == 16 and listed["of-a"]["bytes"] > 0
    # The file is unlinked once it is mapped, so that it is not left behind even if the server is killed.
    assert list((tmp_path / "tmp").iterdir()) == []

    assert managed.client.delete("/agentspec/corpora/of-a").status_code == 200
    assert managed.drafts("abc", A) == "" and managed.drafts("345", A) == " 67890 1"
    assert managed.client.delete("/agentspec/corpora/of-a").status_code == 404
    assert managed.add("of-a", ["abcxyz"], tenants=["bolt"])["state"] == "done"
    assert managed.drafts("abc", A) == "" and managed.drafts("abc", B) == "xyz"


def test_once_a_corpus_is_removed_no_thread_drafts_from_it(tmp_path: Path) -> None:
    managed = ManagedEngine(tmp_path)
    rng = np.random.default_rng(5)
    text = rng.integers(97, 123, 4000).tolist()
    path = tmp_path / "long.corpus"
    build_corpus(path, [ids(*text)], tokenizer=fingerprint(write_byte_tokenizer(tmp_path)), vocab_size=257)
    engine, stop = managed.engine, threading.Event()
    # Odd while the corpus is there.
    changes = 0
    wrong: list[str] = []

    def draft(name: str) -> None:
        engine.open(name, ids(*text[:40]), A)
        while not stop.is_set():
            before = changes
            sources = engine.draft([name]).sources
            # The corpus was removed before the draft began, and was not added again before it ended.
            if before % 2 == 0 and changes == before and int(Source.CORPUS) in sources:
                wrong.append(name)

    threads = [threading.Thread(target=draft, args=(f"r{i}",)) for i in range(2)]
    for thread in threads:
        thread.start()
    for _ in range(60):
        changes += 1
        engine.attach_corpus(path, [A])
        engine.draft(["r0"]) if engine.is_open("r0") else None
        assert engine.detach_corpus(path)
        changes += 1
    stop.set()
    for thread in threads:
        thread.join()
    assert not wrong and engine.stats().corpora == 0


def test_what_cannot_be_built_is_told(tmp_path: Path) -> None:
    managed = ManagedEngine(tmp_path, corpora_bytes=20_000)
    job = managed.add("bad", [[1, 999]], all=True)
    assert job["state"] == "failed" and "line 1: token ids must be in [0, 257)" in job["error"]
    assert str(tmp_path) not in job["error"]
    job = managed.add("large", ["x" * 6000], all=True)
    assert job["state"] == "failed" and "AGENTSPEC_ADMIN_CORPORA_MB" in job["error"]
    job = managed.add("half", ["select name", [999]], all=True)
    assert job["state"] == "done" and job["result"]["skipped"] == 1 and job["result"]["documents"] == 1
    assert managed.post("/corpora", {"name": "half", "documents": ["x"], "all": True}).status_code == 409
    assert [corpus.name for corpus in managed.desk.corpora.all()] == ["half"]
    stats = managed.client.get("/agentspec/stats").json()
    assert stats["corpora"]["number"] == 1 and stats["jobs"]["failed"] == 2
    assert stats["corpora"]["room_bytes"] == 20_000 - stats["corpora"]["bytes"]
    assert list((tmp_path / "tmp").iterdir()) == []


def test_a_cancelled_job_leaves_its_name_free(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    managed = ManagedEngine(tmp_path)
    # A builder that ends only if it is killed: on a busy machine, the first job would end before it is cancelled.
    endless = tmp_path / "endless"
    endless.write_text("#!/bin/sh\nexec sleep 600\n")
    endless.chmod(0o755)
    with monkeypatch.context() as patched:
        patched.setattr(sys, "executable", str(endless))
        answers = [
            managed.post("/corpora", {"name": name, "documents": ["select name from singer"], "all": True})
            for name in ("first", "second")
        ]
        assert managed.post("/corpora", {"name": "second", "documents": ["x"], "all": True}).status_code == 409
        assert managed.client.delete("/agentspec/corpora/second").status_code == 409
        ids_of_jobs = [answer.json()["job"]["id"] for answer in answers]
        for job_id in reversed(ids_of_jobs):
            assert managed.client.delete(f"/agentspec/jobs/{job_id}").status_code == 200
        states = [managed.ended_job(job_id)["state"] for job_id in ids_of_jobs]
    assert states == ["cancelled"] * 2
    assert managed.desk.corpora.all() == [] and managed.drafts("lect n", A) == ""
    assert list((tmp_path / "tmp").iterdir()) == []
    assert managed.add("second", ["select name"], all=True)["state"] == "done"


def test_files_of_the_server_are_read_where_a_folder_allows_it(tmp_path: Path) -> None:
    files = tmp_path / "files"
    files.mkdir()
    (files / "docs.txt").write_text("select name from singer")
    (files / "docs.jsonl").write_text('{"text": "insert into table"}\n')
    tokenizer = fingerprint(write_byte_tokenizer(tmp_path))
    build_corpus(files / "built.corpus", [ids(*b"delete where")], tokenizer=tokenizer)
    build_corpus(files / "foreign.corpus", [ids(*b"delete where")], tokenizer="another")
    managed = ManagedEngine(tmp_path, files=str(files))
    for file in ("docs.txt", "docs.jsonl", "built.corpus", "foreign.corpus"):
        job = managed.ended(managed.post("/corpora", {"name": file, "file": file, "all": True}))
        assert job["state"] == ("failed" if file == "foreign.corpus" else "done"), job
    assert managed.drafts("select", A) == " name fr" and managed.drafts("insert", A) == " into ta"
    assert managed.drafts("delete", A) == " where" and len(list(files.iterdir())) == 4
    assert managed.post("/corpora", {"name": "x", "file": "../files/x", "all": True}).status_code == 404


def test_one_file_is_a_corpus_of_its_own_under_each_name(tmp_path: Path) -> None:
    tokenizer = fingerprint(write_byte_tokenizer(tmp_path))
    build_corpus(tmp_path / "built.corpus", [ids(*b"abcdefgh")], tokenizer=tokenizer)
    managed = ManagedEngine(tmp_path, files=str(tmp_path))
    for name, tenant in (("of-a", "acme"), ("of-b", "bolt")):
        order = {"name": name, "file": "built.corpus", "tenants": [tenant]}
        assert managed.ended(managed.post("/corpora", order))["state"] == "done"
    assert managed.drafts("abcdef", A) == managed.drafts("abcdef", B) == "gh"
    assert managed.client.delete("/agentspec/corpora/of-a").status_code == 200
    assert managed.drafts("abcdef", A) == "" and managed.drafts("abcdef", B) == "gh"
    assert list((tmp_path / "tmp").iterdir()) == [] and (tmp_path / "built.corpus").is_file()


def test_files_of_the_same_name_are_corpora_of_their_own(tmp_path: Path) -> None:
    tokenizer, paths = fingerprint(write_byte_tokenizer(tmp_path)), []
    for folder, text in (("first", b"abcdefgh"), ("second", b"ABCDEFGH")):
        (tmp_path / folder).mkdir()
        paths.append(str(tmp_path / folder / "docs.corpus"))
        build_corpus(Path(paths[-1]), [ids(*text)], tokenizer=tokenizer)
    managed = ManagedEngine(tmp_path, at_start=paths)
    names = [corpus["name"] for corpus in managed.client.get("/agentspec/corpora").json()["corpora"]]
    assert managed.client.get(f"/agentspec/corpora/{names[1]}").json()["name"] == names[1]
    assert managed.client.delete(f"/agentspec/corpora/{names[1]}").status_code == 200
    assert managed.drafts("ABCDEF", A) == "" and managed.drafts("abcdef", A) == "gh"


def test_commands_do_not_wait_for_a_file_that_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands are answered between two steps of the server, so waiting would delay steps."""
    managed = ManagedEngine(tmp_path)
    attach, begun, goes_on = managed.engine.attach_corpus, threading.Event(), threading.Event()

    def slowly(*args: object) -> None:
        begun.set()
        assert goes_on.wait(60.0)
        attach(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(managed.engine, "attach_corpus", slowly)
    answer = managed.post("/corpora", {"name": "slow", "documents": ["abcdef"], "all": True})
    assert begun.wait(60.0)
    try:
        assert managed.client.get("/agentspec/corpora").json() == {"corpora": []}
        assert managed.client.get("/agentspec/stats").json()["jobs"]["running"] == 1
        assert managed.client.delete("/agentspec/corpora/slow").status_code == 409
    finally:
        goes_on.set()
    assert managed.ended(answer)["state"] == "done" and managed.drafts("abc", B) == "def"
