"""`agentspec store delete`."""

from __future__ import annotations

import io
import time
from types import SimpleNamespace

import pytest
from store_command import ACME, OTHER, StoreCommand, output

from agentspec.integrations.sglang.tenants import Tenants
from agentspec.store import place
from agentspec.store.records import ANY_NAMESPACE


@pytest.fixture
def filled(command: StoreCommand, monkeypatch: pytest.MonkeyPatch) -> StoreCommand:
    monkeypatch.setattr("agentspec.store.cli.delete._FORGET_SECONDS", 0.0)
    command.put(ACME, output("a"), output("b"), output("a", number=1))
    command.put(OTHER, output("a"), output("new", time=time.time()))
    command.put_snapshot(ACME)
    command.put_snapshot(OTHER)
    return command


def announced(command: StoreCommand) -> set[tuple[str, str | None]]:
    return {(deletion.namespace, deletion.request_id) for deletion in command.deletions()}


@pytest.mark.parametrize("words", [["--tenant", "acme"], ["--namespace", ACME]])
def test_a_tenant_is_deleted_here_and_in_replicas(filled: StoreCommand, words: list[str]) -> None:
    started = time.time()
    result = filled.json("delete", *words, "--yes")
    assert (result["namespaces"], result["entries"], result["snapshots"]) == (1, 3, 1)
    assert (filled.outputs(ACME), filled.num_segments(ACME)) == ([], None)
    assert (filled.request_ids(OTHER), filled.num_segments(OTHER)) == (["a", "new"], 1)
    (deletion,) = filled.deletions()
    assert (deletion.namespace, deletion.request_id) == (ACME, None)
    assert started <= deletion.time <= time.time()
    again = filled.json("delete", *words, "--yes")
    assert (again["namespaces"], again["entries"], again["snapshots"]) == (0, 0, 0)


def test_a_tenant_by_auto_may_be_a_cache_salt(command: StoreCommand) -> None:
    request = SimpleNamespace(rid="r", cache_salt="acme")
    of_server = Tenants("auto", None).handling(request).namespace  # type: ignore[arg-type]
    command.put(of_server, output("a"))
    assert command.json("delete", "--tenant", "acme", "--yes")["entries"] == 0
    assert command.json("delete", "--cache-salt", "acme", "--yes")["entries"] == 1
    assert "leave out --cache-salt" in command.fail("delete", "--cache-salt", "acme", "--namespace", ACME, "--yes")


def test_a_request_is_deleted_wherever_it_is(filled: StoreCommand) -> None:
    result = filled.json("delete", "--request", "a", "--yes")
    assert (result["namespaces"], result["entries"], result["snapshots"]) == (2, 3, 2)
    assert (filled.request_ids(ACME), filled.request_ids(OTHER)) == (["b"], ["new"])
    assert (filled.num_segments(ACME), filled.num_segments(OTHER)) == (0, 0)
    assert announced(filled) == {(ANY_NAMESPACE, "a")}
    assert filled.json("delete", "--request", "a", "--yes")["namespaces"] == 0


def test_a_request_is_deleted_of_one_tenant(filled: StoreCommand) -> None:
    assert filled.json("delete", "--request", "a", "--tenant", "acme", "--yes")["entries"] == 2
    assert (filled.request_ids(ACME), filled.request_ids(OTHER)) == (["b"], ["a", "new"])
    assert filled.num_segments(OTHER) == 1
    assert announced(filled) == {(ACME, "a")}


def test_what_is_old_is_deleted_by_when_it_was_finished(filled: StoreCommand) -> None:
    started = time.time()
    assert filled.json("delete", "--older-than", "30d", "--yes")["entries"] == 4
    assert (filled.request_ids(ACME), filled.request_ids(OTHER)) == ([], ["new"])
    deletions = filled.deletions()
    assert {deletion.namespace for deletion in deletions} == {ACME, OTHER}
    assert all(0 <= deletion.time + 30 * 86400 - started < 60 for deletion in deletions)


def test_entries_that_cannot_be_read_stay_unless_all_goes(filled: StoreCommand) -> None:
    filled.put_bytes(ACME, b"garbage")
    filled.run("delete", "--request", "a", "--yes")
    filled.run("delete", "--older-than", "1s", "--yes")
    assert len(filled.case.open().scan(ACME)) == 1
    assert filled.json("delete", "--tenant", "acme", "--yes")["entries"] == 1


def test_a_whole_model_is_deleted(filled: StoreCommand) -> None:
    assert filled.json("delete", "--scope", "--yes")["namespaces"] == 2
    assert place(filled.case.url).scopes() == []


def test_replicas_forget_before_entries_are_removed(filled: StoreCommand, monkeypatch: pytest.MonkeyPatch) -> None:
    store = filled.case.open()

    def fail(*_: object) -> bool:
        raise OSError("the store is gone")

    monkeypatch.setattr(type(store), "remove_namespace", fail)
    with pytest.raises(OSError, match="gone"):
        filled.run("delete", "--tenant", "acme", "--yes")
    monkeypatch.undo()
    assert announced(filled) == {(ACME, None)}


def test_deleting_asks_on_a_terminal_and_nowhere_else(filled: StoreCommand, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["delete", "--tenant", "acme"]
    monkeypatch.setattr("sys.stdin", io.StringIO())
    assert filled.fail(*words).endswith("there is no terminal to ask on; pass --yes")

    answer = io.StringIO("n\n")
    monkeypatch.setattr(answer, "isatty", lambda: True, raising=False)
    monkeypatch.setattr("sys.stdin", answer)
    filled.run(*words, status=2)
    assert f"Delete everything of namespace {ACME} (3 entries" in filled.error
    assert filled.error.endswith("nothing was deleted\n")
    assert len(filled.outputs(ACME)) == 3 and filled.deletions() == []

    answer.seek(0)
    answer.write("y\n")
    answer.seek(0)
    filled.run(*words)
    assert filled.outputs(ACME) == []


def test_what_was_finished_while_the_question_waited_is_deleted_too(
    filled: StoreCommand, monkeypatch: pytest.MonkeyPatch
) -> None:
    answered = []

    def answer() -> str:
        time.sleep(0.01)
        answered.append(time.time())
        return "y\n"

    monkeypatch.setattr("sys.stdin", SimpleNamespace(isatty=lambda: True, readline=answer))
    filled.run("delete", "--tenant", "acme")
    (deletion,) = filled.deletions()
    assert deletion.time >= answered[0]


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ([], "nothing to delete is named"),
        (["--scope", "--tenant", "acme"], "leave out --tenant"),
        (["--older-than", "30"], "for example 30d"),
        (["--older-than", "-1d"], "for example 30d"),
    ],
)
def test_what_to_delete_must_be_clear(filled: StoreCommand, words: list[str], named: str) -> None:
    if words[-1:] == ["-1d"]:
        words = ["--older-than=-1d"]
    assert named in filled.fail("delete", *words, "--yes")
    assert len(filled.outputs(ACME)) == 3 and filled.deletions() == []
