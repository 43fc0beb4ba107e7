"""`agentspec store ls`."""

from __future__ import annotations

from pathlib import Path

from store_command import ACME, OTHER, StoreCommand, output

from agentspec.store.namespaces import namespace_id
from agentspec.store.secrets import read_key, write_key


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
