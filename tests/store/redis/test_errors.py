"""Every error of redis-py, and every server answer that it has no class for, is mapped to a store error."""

from __future__ import annotations

import inspect

import pytest
import redis.exceptions
from every import every

from agentspec.errors import StoreError, StoreUnavailableError
from agentspec.store.redis.errors import MEANINGS, store_error

CLASSES = {
    name: each
    for name, each in inspect.getmembers(redis.exceptions, inspect.isclass)
    if issubclass(each, Exception) and each.__module__ == "redis.exceptions"
}


def test_no_class_is_without_a_meaning() -> None:
    assert CLASSES.keys() - MEANINGS.keys() == set(), "say in MEANINGS what these mean"


@every("name", sorted(CLASSES))
def test_each_class_becomes_the_error_that_it_means(name: str) -> None:
    words = "1 host:1" if name in ("AskError", "MovedError") else "words of the server"
    mapped = store_error(CLASSES[name](words), "redis://host", "user", 5)
    assert mapped is not None
    assert isinstance(mapped, StoreUnavailableError) == (MEANINGS[name] in ("unavailable", "full", "readonly"))
    assert "redis://host" in str(mapped)


@every(
    ("words", "later"),
    [
        ("MISCONF Redis is configured to save RDB snapshots, but it's currently unable to", True),
        ("NOREPLICAS Not enough good replicas to write.", True),
        ("BUSY Redis is busy running a script.", True),
        ("WRONGTYPE Operation against a key holding the wrong kind of value", False),
        ("unknown command 'XADD'", False),
    ],
)
def test_answers_without_a_class_are_told_apart_by_their_code(words: str, later: bool) -> None:
    mapped = store_error(redis.exceptions.ResponseError(words), "redis://host", None, 5)
    assert isinstance(mapped, StoreError)
    assert isinstance(mapped, StoreUnavailableError) == later


@pytest.mark.parametrize("error", [ConnectionResetError(104, "reset"), TimeoutError("timed out"), OSError("any")])
def test_errors_of_the_system_are_for_later(error: OSError) -> None:
    assert isinstance(store_error(error, "redis://host", None, 5), StoreUnavailableError)


@pytest.mark.parametrize("error", [ValueError("ours"), KeyError("ours"), AssertionError()])
def test_other_errors_are_not_the_store_s(error: Exception) -> None:
    assert store_error(error, "redis://host", None, 5) is None
