"""`agentspec store info` and `ls`, and the parts that all actions share: URL, scope and error lines."""

from __future__ import annotations

from pathlib import Path

import pytest
from store_case import SCOPE
from store_command import ACME, OTHER, StoreCommand, output

from agentspec.cli import main
from agentspec.store import Scope
from agentspec.store.namespaces import namespace_id
from agentspec.store.secrets import read_key, write_key


def test_a_store_and_its_models_are_shown(command: StoreCommand) -> None:
    command.put(ACME, output("a"), output("b"))
    command.put(OTHER, output("c"))
    command.put_snapshot(ACME)
    command.case.open(Scope("second", "cd" * 32))
    shown = command.json("info")
    assert shown["kind"] == command.case.kind
    first, second = shown["models"]
    assert (first["model"], first["tokenizer"], first["scope"]) == (SCOPE.model, SCOPE.tokenizer, SCOPE.id)
    assert (first["namespaces"], first["entries"]) == (2, 3)
    assert first["log_bytes"] > 0 and first["snapshot_bytes"] > 0 and first["newest"] > 1.5e9
    assert (second["model"], second["namespaces"], second["entries"], second["newest"]) == ("second", 0, 0, 0.0)
    text = command.run("info")
    assert "model   abababababab           2        3" in text


def test_an_empty_store_is_no_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    url = f"sqlite:///{tmp_path}/none.sqlite3"
    assert main(["store", "info", "--store", url]) == 0
    assert capsys.readouterr().out == f"nothing is stored in {url} yet\n"
    assert main(["store", "ls", "--store", url]) == 2
    assert capsys.readouterr().err == f"agentspec store: nothing is stored in {url} yet\n"
    assert not list(tmp_path.iterdir())


def test_the_url_comes_from_the_environment_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("AGENTSPEC_STORE", f"sqlite:///{tmp_path}/none.sqlite3")
    assert main(["store", "info"]) == 0
    assert "none.sqlite3" in capsys.readouterr().out


def test_one_of_several_models_must_be_chosen(command: StoreCommand) -> None:
    command.put(ACME, output("a"))
    command.case.open(Scope("second", "cd" * 32))
    assert command.fail("ls") == "the store has several models: model, second; choose one with --model"
    assert command.fail("ls", "--model", "third") == "the store has no model 'third'; it has: model, second"
    assert command.json("ls", "--model", "model")["namespaces"][0]["entries"] == 1
    assert command.json("ls", "--tokenizer", "AB" * 32)["namespaces"][0]["entries"] == 1
    assert "no model of that tokenizer" in command.fail("ls", "--tokenizer", "ef" * 32)


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["ls", "--namespace", "acme"], "--namespace must be 32 hexadecimal digits, got 'acme'"),
        (["ls", "--tokenizer", "no/tokenizer.json"], "there is no no/tokenizer.json"),
        (["ls", "--key-file", "no-key"], "no-key cannot be read"),
        (["import", "no.jsonl"], "there is no no.jsonl"),
    ],
)
def test_wrong_arguments_are_named(command: StoreCommand, words: list[str], named: str) -> None:
    command.put(ACME, output("a"))
    assert named in command.fail(*words)


def test_an_unknown_scheme_is_named_without_its_password(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["store", "info", "--store", "http://user:hunter2@host"]) == 2
    shown = capsys.readouterr().err
    assert "sqlite://" in shown and "hunter2" not in shown


def test_a_key_is_written_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["store", "genkey", str(tmp_path / "key")]) == 0
    assert capsys.readouterr().out == f"key: {tmp_path / 'key'}\n"
    assert main(["store", "genkey", str(tmp_path / "key")]) == 2
    assert "exists already" in capsys.readouterr().err


def test_the_rights_of_a_redis_user_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["store", "acl", "agentspec"]) == 0
    words = capsys.readouterr().out.split()
    assert words[:3] == ["ACL", "SETUSER", "agentspec"]
    assert "~agentspec:1:*" in words
    assert "+xread" in words
    assert not {"+keys", "+eval", "+flushall", "+config", "+@all"} & set(words)
    assert main(["store", "acl", "two words"]) == 2


def test_namespaces_are_listed_and_one_is_found_by_its_tenant(command: StoreCommand) -> None:
    command.put(ACME, output("a"), output("b"))
    command.put(OTHER, output("c"))
    command.put_snapshot(OTHER)
    listed = {row["namespace"]: row for row in command.json("ls")["namespaces"]}
    assert {name: (row["entries"], row["segments"]) for name, row in listed.items()} == {ACME: (2, 0), OTHER: (1, 1)}
    assert listed[ACME]["log_bytes"] > 0 and listed[OTHER]["snapshot_bytes"] > 0 and listed[ACME]["newest"] > 1.5e9
    for words in (["--tenant", "acme"], ["--namespace", ACME]):
        (row,) = command.json("ls", *words)["namespaces"]
        assert row == listed[ACME]
    assert command.json("ls", "--tenant", "nobody")["namespaces"] == []


def test_a_tenants_namespace_depends_on_the_key(command: StoreCommand, tmp_path: Path) -> None:
    write_key(tmp_path / "key")
    namespace = namespace_id("acme", read_key(tmp_path / "key"))
    command.put(namespace, output("a"))
    command.put(ACME, output("b"))
    words = ["ls", "--tenant", "acme", "--namespace-key-file", str(tmp_path / "key")]
    assert [row["namespace"] for row in command.json(*words)["namespaces"]] == [namespace]


def test_a_manifest_that_cannot_be_read_hides_nothing_else(command: StoreCommand) -> None:
    command.put(ACME, output("a"))
    command.case.open().write_manifest(ACME, b"garbage", [])
    assert command.json("ls")["namespaces"][0]["segments"] is None
    assert "?" in command.run("ls")


def test_requests_are_listed_without_their_text(command: StoreCommand) -> None:
    command.put(ACME, output("one", tail=2), output("\x1b[2Jtwo"))
    command.put_bytes(ACME, b"garbage")
    listed = command.json("ls", "--requests")["requests"]
    assert [(row["request_id"], row["num_tokens"], row["time"]) for row in listed] == [
        ("one", 3, 1.5e9),
        ("\x1b[2Jtwo", 5, 1.5e9),
    ]
    text = command.run("ls", "--requests")
    assert "2017-07-14 02:40:00" in text
    assert "\x1b" not in text and "abcde" not in text and "97" not in text.replace(ACME, "")
