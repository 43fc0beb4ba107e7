"""What the engine guarantees besides its drafts: isolation, budget, bounds, errors."""

from __future__ import annotations

import ast
import sys
import threading
from array import array
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from engine_texts import as_bytes, ids, keep, random_output
from every import every
from programs import output_of

import agentspec
from agentspec import (
    ConfigError,
    DuplicateRequestError,
    Engine,
    EngineConfig,
    Source,
    TokenError,
    UnknownRequestError,
    _core,
)

# Namespaces and budget --------------------------------------------------------------------------------------------


def test_the_oldest_go_first_over_all_namespaces() -> None:
    engine = Engine(EngineConfig(budget_bytes=40_000))
    rng = np.random.default_rng(3)
    keep(engine, random_output(rng, 40), "old")
    keep(engine, random_output(rng, 40), "new")
    while engine.stats().evicted_outputs == 0:
        keep(engine, random_output(rng, 40), "newer")
    assert engine.stats().namespaces == 2
    engine.open("a", random_output(rng, 40), "old")
    assert Source.GLOBAL not in engine.draft(["a"]).sources


def test_an_output_beyond_the_whole_budget_pushes_nothing_out() -> None:
    engine = Engine(EngineConfig(budget_bytes=20_000))
    keep(engine, ids(1, 2, 3))
    before = engine.stats()
    for length in (1_200, 100_000):
        keep(engine, np.arange(length, dtype=np.int32))
    after = engine.stats()
    assert (after.outputs, after.global_bytes) == (before.outputs, before.global_bytes)
    assert after.evicted_outputs == 2


def test_one_token_costs_no_more_than_its_id_may() -> None:
    engine = Engine(EngineConfig(max_growing_tokens=64))
    keep(engine, ids(2**24 - 1, *range(70)))
    assert engine.stats().segments == 1
    assert engine.stats().global_bytes < 5 << 20
    with pytest.raises(TokenError, match=r"in \[0, 16777216\), got 16777216"):
        engine.open("a", ids(2**24))


# Bounds -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("period", [1, 3])
def test_long_repeats_are_counted_right(period: int) -> None:
    length = 1 << 16
    engine = Engine(EngineConfig(vocab_size=period, rule="suffixdecoding"))
    engine.open("a", np.arange(length, dtype=np.int32) % period)
    row = engine.draft(["a"]).row(0)
    assert row.tokens.tolist() == [(length - 1 + i) % period for i in range(32)]
    assert row.score == 31.0
    engine.extend("a", np.arange(length, length + 10, dtype=np.int32) % period)
    engine.check_integrity()
    engine.close("a", keep=False)
    keep(engine, np.arange(length, dtype=np.int32) % period)
    engine.check_integrity()


def test_other_threads_run_while_an_index_is_built() -> None:
    """This thread opens requests while the other waits for its turn. The other could not run if open() held the GIL."""
    engine = Engine()
    prompt = np.random.default_rng(0).integers(0, 1000, 200_000, dtype=np.int32)
    progress = 0
    stop = threading.Event()

    def count() -> None:
        nonlocal progress
        while not stop.wait(0.0005):
            progress += 1

    thread = threading.Thread(target=count)
    interval = sys.getswitchinterval()
    thread.start()
    try:
        # With this interval Python never makes a thread release the GIL. Others run only if a call releases it.
        sys.setswitchinterval(1000.0)
        before = progress
        for i in range(5):
            engine.open(f"{i}", prompt)
        assert progress > before
    finally:
        sys.setswitchinterval(interval)
        stop.set()
        thread.join()


# What is refused --------------------------------------------------------------------------------------------------

BAD_TOKENS: list[Any] = [
    pytest.param(np.array([1.0, 2.0]), r"must be integers, got float64", id="float"),
    pytest.param(np.array([True, False]), r"must be integers, got bool", id="bool"),
    pytest.param([1, 2.5], r"must be integers, got float64", id="list of floats"),
    pytest.param(["a"], r"must be integers", id="list of strings"),
    pytest.param([1, 2**70], r"must be integers, got object", id="no machine integer"),
    pytest.param("12", r"list of ints, got str", id="string"),
    pytest.param(None, r"list of ints, got NoneType", id="None"),
    pytest.param(np.zeros((2, 2), dtype=np.int32), r"one dimension, got the shape \(2, 2\)", id="two dimensions"),
    pytest.param(np.array(3, dtype=np.int32), r"one dimension, got the shape \(\)", id="no dimension"),
    pytest.param(ids(1, -1, -2), r"in \[0, 10\), got -1 at index 1; .*vocab_size", id="negative id"),
    pytest.param(ids(1, 2, 10), r"in \[0, 10\), got 10 at index 2", id="id beyond the vocabulary"),
    pytest.param([3, 2**40], r"got 1099511627776 at index 1", id="id beyond int32"),
]


@pytest.fixture
def engine() -> Engine:
    """An engine with two open requests and a kept output."""
    engine = Engine(EngineConfig(vocab_size=10, rule="suffixdecoding"))
    keep(engine, ids(1, 2, 3, 4))
    engine.open("a", ids(5, 1, 2, 5, 1))
    engine.open("b", ids(7, 3))
    return engine


@pytest.fixture
def unchanged(engine: Engine) -> Any:
    """Checks that the test left the engine as it was."""
    before, stats = as_bytes(engine.draft(["a", "b"])), engine.stats()
    yield
    assert as_bytes(engine.draft(["a", "b"])) == before
    assert engine.stats() == stats
    engine.check_integrity()


@pytest.mark.usefixtures("unchanged")
@pytest.mark.parametrize(("tokens", "message"), BAD_TOKENS)
def test_bad_tokens_are_refused(engine: Engine, tokens: Any, message: str) -> None:
    with pytest.raises(TokenError, match=message):
        engine.extend("a", tokens)
    with pytest.raises(TokenError, match=message):
        engine.open("new", tokens)
    assert not engine.is_open("new")


@pytest.mark.parametrize(
    "tokens",
    [
        pytest.param(ids(2, 3), id="int32"),
        pytest.param(ids(2, 9, 3, 9)[::2], id="every second of int32"),
        pytest.param(np.array([2, 3]), id="int64"),
        pytest.param(np.array([2, 3], dtype=np.uint16), id="uint16"),
        pytest.param(array("i", [2, 3]), id="array i"),
        pytest.param(array("q", [2, 3]), id="array q"),
        pytest.param([2, 3], id="list"),
    ],
)
def test_integers_of_all_kinds_are_accepted(engine: Engine, tokens: Any) -> None:
    engine.extend("b", tokens)
    assert engine.num_tokens("b") == 4
    assert engine.draft(["b"]).tokens.tolist() == [3, 2, 3]


@pytest.mark.usefixtures("unchanged")
@pytest.mark.parametrize("nothing", [[], ids(), array("i")])
def test_no_tokens_extend_nothing_and_open_nothing(engine: Engine, nothing: Any) -> None:
    engine.extend("a", nothing)
    with pytest.raises(TokenError, match=r"prompt of request 'new' must have at least one token"):
        engine.open("new", nothing)
    assert not engine.is_open("new")


@pytest.mark.usefixtures("unchanged")
def test_a_second_open_is_refused(engine: Engine) -> None:
    with pytest.raises(DuplicateRequestError, match=r"request 'a' is open already; close\(\) it first"):
        engine.open("a", ids(1))


@pytest.mark.usefixtures("unchanged")
def test_unknown_requests_are_refused(engine: Engine) -> None:
    message = r"request 'gone' is not open; open\(\) it with its prompt first"
    with pytest.raises(UnknownRequestError, match=message):
        engine.extend("gone", ids(1))
    with pytest.raises(UnknownRequestError, match=message):
        engine.draft(["a", "gone"])
    with pytest.raises(UnknownRequestError, match=message):
        engine.close("gone")
    with pytest.raises(UnknownRequestError, match=message):
        engine.num_tokens("gone")


@pytest.mark.usefixtures("unchanged")
@pytest.mark.parametrize(
    ("max_tokens", "message"),
    [
        (-1, r"must be >= 0, got -1; pass 0"),
        (ids(3, -2), r"must be >= 0, got -2 at index 1; pass 0"),
        (ids(3), r"int32\[2\], one limit for each request, got int32\[1\]"),
        (np.array([3, 3]), r"got int64\[2\]"),
        (True, r"got bool"),
        (1.5, r"got float"),
    ],
)
def test_bad_limits_are_refused(engine: Engine, max_tokens: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        engine.draft(["a", "b"], max_tokens=max_tokens)


@pytest.mark.usefixtures("unchanged")
def test_a_negative_cut_is_refused(engine: Engine) -> None:
    with pytest.raises(ConfigError, match=r"num_output_tokens must be >= 0, got -1"):
        engine.close("a", num_output_tokens=-1)


@every(
    ("field", "value"),
    [
        ("vocab_size", 0),
        ("vocab_size", 2**24 + 1),
        ("max_pattern", 0),
        ("max_pattern", 2.0),
        ("alpha", 0.0),
        ("alpha", -1.0),
        ("alpha", float("inf")),
        ("alpha", float("nan")),
        ("alpha", "4"),
        ("min_token_prob", -0.1),
        ("min_token_prob", 1.1),
        ("min_token_prob", True),
        ("mode", "linear"),
        ("max_draft_tokens", 0),
        ("max_draft_tokens", True),
        ("rule", "paper"),
        ("budget_bytes", -1),
        ("conversation_bytes", -1),
        ("conversation_bytes", 1.5),
        ("prompt_tail", -1),
        ("prompt_tail", 1025),
        ("max_growing_tokens", 63),
        ("max_growing_tokens", 2**24 + 1),
        ("num_threads", 0),
        ("num_threads", 65),
        ("num_threads", True),
        ("background", 1),
        ("tokenizer", None),
        ("tokenizer", b"hash"),
        ("learning_rate", -0.1),
        ("learning_rate", 1.1),
        ("learning_rate", float("nan")),
        ("estimates", "default"),
    ],
)
def test_settings_out_of_range_are_refused(field: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=rf"^{field} must be .*got {value!r}; \w+"):
        EngineConfig(**{field: value})


def test_the_native_boundary_converts_nothing(engine: Engine) -> None:
    for tokens in (np.array([1, 2]), ids(1, 9, 2)[::2], np.zeros((1, 1), dtype=np.int32), [1, 2]):
        with pytest.raises(TypeError, match="incompatible function arguments"):
            engine._core.extend("a", tokens)  # type: ignore[arg-type]


def test_more_tokens_than_there_are_places_for_are_not_taken() -> None:
    code = """
import numpy, agentspec
engine = agentspec.Engine()
engine.open("a", [1, 2, 3])
engine.follow(engine.rows(["a"]), numpy.array([[1]]), numpy.array([3]))
print(engine.num_tokens("a"), *engine.draft(["a"], max_tokens=0).tokens)
"""
    assert output_of(sys.executable, "-P", "-c", code).split() == ["3", "3"]


# The package ------------------------------------------------------------------------------------------------------


def test_public_names_are_there_and_listed_in_order() -> None:
    assert agentspec.__all__ == sorted(agentspec.__all__)
    assert all(getattr(agentspec, name).__module__.startswith("agentspec") for name in agentspec.__all__)


def test_the_stub_names_what_the_native_module_has() -> None:
    stub = ast.parse(Path(agentspec.__file__).with_name("_core.pyi").read_text(encoding="utf-8"))
    classes = {node.name: node for node in stub.body if isinstance(node, ast.ClassDef)}
    functions = {node.name for node in stub.body if isinstance(node, ast.FunctionDef)}
    values = {
        node.target.id for node in stub.body if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    }
    assert functions | values | set(classes) == {name for name in dir(_core) if not name.startswith("_")}
    for name, stub_class in classes.items():
        native = getattr(_core, name)
        defined = {node.name for node in stub_class.body if isinstance(node, ast.FunctionDef)}
        special = {method for method in defined if method.startswith("_")}
        assert special <= set(vars(native)) | {"__init__"}
        methods = defined - special
        # An enumeration also defines its members.
        methods |= {
            target.id
            for node in stub_class.body
            if isinstance(node, ast.Assign)
            for target in node.targets
            if isinstance(target, ast.Name)
        }
        assert methods == {method for method in dir(native) if not method.startswith("_")}
