"""The ACL rules for a Redis user allow exactly the commands that agentspec uses."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from store_case import SCOPE, A, B, data, drain

from agentspec.errors import ConfigError, StoreError, StoreUnavailableError
from agentspec.evals.micro.store.redis_server import RedisServer
from agentspec.store import CONTROL, Scope, acl_rules, open_store, place
from agentspec.store.redis import place as redis_place
from agentspec.store.redis.acl import COMMANDS

pytestmark = pytest.mark.redis

PASSWORD = "of-a-test"


@pytest.fixture
def user(redis_server: RedisServer) -> Iterator[RedisServer]:
    """A server with the user that the rules define."""
    allow(redis_server, acl_rules("drafter"))
    yield redis_server
    redis_server.command("ACL", "DELUSER", "drafter")


def allow(server: RedisServer, rules: str) -> None:
    assert rules.startswith("ACL SETUSER drafter ")
    server.command(*rules.split(), f">{PASSWORD}")


def without(command: str) -> str:
    """The rules without one command."""
    return " ".join(word for word in acl_rules("drafter").split() if word != f"+{command}")


def url(server: RedisServer) -> str:
    return f"redis://drafter:{PASSWORD}@127.0.0.1:{server.port}"


def use_everything(server: RedisServer) -> None:
    """Calls every method in ways that make it use all of its commands."""
    store = open_store(url(server), SCOPE)
    reader = store.reader()
    try:
        store.append([(A, b"1"), (A, b"2"), (B, b"x"), (CONTROL, b"c")])
        entries = drain(reader)
        assert sorted(data(entries)) == [b"1", b"2", b"c", b"x"]
        assert reader.read(0.01) == []
        assert len(list(store.namespaces())) == 2
        store.write_segment(A, "s", [b"x"])
        store.write_segment(A, "t", [b"x"])
        store.write_manifest(A, b"m", ["t"])
        assert list(store.segment(A, "t")) == [b"x"]
        assert store.manifest(A) == b"m"
        with pytest.raises(StoreError, match="no whole segment"):
            store.segment(A, "s")
        with pytest.raises(ZeroDivisionError):
            store.write_segment(A, "u", (bytes(1 // number) for number in (1, 0)))
        assert len(store.scan(A)) == 2
        assert store.remove(A, [entries[0].position]) in (0, 1)
        assert store.trim(B, max_bytes=0) == 1
        assert store.trim(A, before=1.0) == 0
        assert store.lease("me", 60)
        assert store.lease("me", 60)
        assert not store.lease("you", 60)
        assert not store.lease("me", 0)
        store.compact()
        assert store.info().server.startswith(("Redis", "Valkey"))
        assert store.remove_namespace(A)
        assert place(url(server)).scopes() == [SCOPE]
    finally:
        reader.close()
        store.close()
    assert place(url(server)).delete_scope(SCOPE)


def test_the_rules_allow_everything_that_a_store_does(user: RedisServer) -> None:
    use_everything(user)
    assert user.command("DBSIZE") == 0


@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_is_needed_and_named_when_it_is_missing(
    user: RedisServer, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Opening a store tries all commands. This test is about the commands that a store uses later.
    monkeypatch.setattr(redis_place, "_probe", lambda session, keys: None)
    allow(user, without(command))
    with pytest.raises(StoreError, match="agentspec store acl") as caught:
        use_everything(user)
    assert f"'{command.partition('|')[0]}'" in str(caught.value)
    assert "'drafter'" in str(caught.value)
    assert PASSWORD not in str(caught.value)
    assert not isinstance(caught.value, StoreUnavailableError)


@pytest.mark.parametrize("command", COMMANDS)
def test_a_missing_command_is_found_when_opening(user: RedisServer, command: str) -> None:
    allow(user, without(command))
    with pytest.raises(StoreError, match="agentspec store acl"):
        open_store(url(user), SCOPE)


def test_the_rules_may_be_of_one_scope(user: RedisServer) -> None:
    allow(user, acl_rules("drafter", SCOPE))
    open_store(url(user), SCOPE).close()
    with pytest.raises(StoreError, match=r"keys.*agentspec store acl"):
        open_store(url(user), Scope("other", "t"))


def test_a_database_needs_one_more(user: RedisServer) -> None:
    with pytest.raises(StoreError, match="select"):
        open_store(url(user) + "/2", SCOPE)
    allow(user, acl_rules("drafter", database=True))
    open_store(url(user) + "/2", SCOPE).close()


@pytest.mark.parametrize("name", ["", "two words", "line\nbreak"])
def test_a_name_that_would_end_the_rules_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="user's name"):
        acl_rules(name)
