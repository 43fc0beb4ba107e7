"""Deleted outputs stay deleted, and no other outputs are deleted with them."""

from __future__ import annotations

from agentspec.store.records import ANY_NAMESPACE, Deletion
from agentspec.store.replication.tombstones import Tombstones


def test_a_request_is_deleted_in_its_namespace_only() -> None:
    tombstones = Tombstones()
    tombstones.add(Deletion("a", "r1", 5.0))
    assert tombstones.covers("a", "r1", 4.0)
    # The request is covered whenever it finishes, because its id is not used again.
    assert tombstones.covers("a", "r1", 6.0)
    assert not tombstones.covers("b", "r1", 4.0)
    assert not tombstones.covers("a", "r2", 4.0)


def test_a_request_of_an_unknown_namespace_is_deleted_in_all() -> None:
    tombstones = Tombstones()
    tombstones.add(Deletion(ANY_NAMESPACE, "r1", 5.0))
    assert tombstones.covers("a", "r1", 4.0)
    assert tombstones.covers("b", "r1", 4.0)
    assert not tombstones.covers("b", "r2", 4.0)


def test_a_namespace_is_deleted_up_to_the_latest_time() -> None:
    tombstones = Tombstones()
    tombstones.add(Deletion("a", None, 5.0))
    tombstones.add(Deletion("a", None, 3.0))
    assert tombstones.covers("a", "r1", 5.0)
    assert not tombstones.covers("a", "r1", 5.1)
    assert not tombstones.covers("b", "r1", 1.0)
    assert tombstones.of_namespaces() == {"a": 5.0}
