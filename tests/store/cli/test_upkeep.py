"""`agentspec store verify` and `compact`."""

from __future__ import annotations

import numpy as np
import pytest
from store_case import SCOPE
from store_command import ACME, OTHER, StoreCommand, output

from agentspec import Engine, EngineConfig
from agentspec.store import CONTROL
from agentspec.store.codec import Codec

KEY = bytes(range(32))


def segment(tokenizer: str = SCOPE.tokenizer) -> bytes:
    """The bytes of a segment that an engine seals with one output."""
    engine = Engine(EngineConfig(tokenizer=tokenizer, max_growing_tokens=64))
    engine.open("a", np.array([1], np.int32))
    engine.extend("a", np.arange(70, dtype=np.int32))
    engine.close("a")
    engine.flush()
    return engine.snapshot("").segments[0].blob.tobytes()


def test_a_sound_store_passes(command: StoreCommand) -> None:
    command.put(ACME, output("a"), output("b"))
    command.put_snapshot(ACME, segment())
    command.run("delete", "--request", "b", "--tenant", "other", "--yes")
    result = command.json("verify")
    assert (result["entries"], result["segments"], result["problems"], result["unencrypted"]) == (3, 1, [], 0)
    assert "problems:    0" in command.run("verify")


def test_every_fault_is_found_where_it_is(command: StoreCommand) -> None:
    command.put(ACME, output("a"))
    command.put_bytes(ACME, b"garbage")
    command.put_bytes(ACME, command.codec.encode(OTHER, output("b")))
    command.put_bytes(ACME, Codec(SCOPE, KEY).encode(ACME, output("c")))
    command.put_bytes(CONTROL, b"garbage")
    problems = command.json("verify", status=1)["problems"]
    assert [(problem["namespace"], problem["fault"]) for problem in problems] == [
        (CONTROL, "damaged"),
        (ACME, "damaged"),
        (ACME, "foreign"),
        (ACME, "encrypted"),
    ]
    positions = [entry.position for entry in command.case.open().scan(ACME)]
    assert [problem["place"] for problem in problems[1:]] == positions[1:]
    assert f"{ACME}" in command.run("verify", status=1)


def test_what_is_damaged_and_nothing_else_is_deleted(command: StoreCommand) -> None:
    command.put(ACME, output("a"))
    command.put_bytes(ACME, b"garbage")
    command.put_bytes(CONTROL, b"garbage")
    command.put_bytes(ACME, Codec(SCOPE, KEY).encode(ACME, output("c")))
    command.put_snapshot(ACME)
    assert command.json("verify", "--delete-damaged", status=1)["removed"] == 3
    assert len(command.case.open().scan(ACME)) == 2
    assert command.num_segments(ACME) == 0
    (problem,) = command.json("verify", status=1)["problems"]
    assert problem["fault"] == "encrypted"


def test_segments_are_read_as_the_engine_would(command: StoreCommand) -> None:
    whole = segment()
    for blob, fault in (
        (whole[:-1] + bytes([whole[-1] ^ 1]), "damaged"),
        (segment("another"), "foreign"),
    ):
        command.put_snapshot(ACME, blob)
        (problem,) = command.json("verify", status=1)["problems"]
        assert (problem["namespace"], problem["place"], problem["fault"]) == (ACME, "segment 5e", fault)
    command.case.open().write_manifest(ACME, b"garbage", [])
    (problem,) = command.json("verify", status=1)["problems"]
    assert (problem["place"], problem["fault"]) == ("manifest", "damaged")
    command.run("verify", "--delete-damaged", status=1)
    command.run("verify")


def test_unencrypted_entries_are_counted_with_a_key(command: StoreCommand, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENTSPEC_STORE_KEY", KEY.hex())
    command.put(ACME, output("a"))
    command.put_bytes(ACME, Codec(SCOPE, KEY).encode(ACME, output("c")))
    assert command.json("verify")["unencrypted"] == 1


def test_duplicates_are_removed_and_the_first_stays(command: StoreCommand) -> None:
    command.put(ACME, output("a"), output("b"), output("a"), output("a", number=1))
    command.put(OTHER, output("a"))
    first = command.case.open().scan(ACME)[0].position
    result = command.json("compact")
    assert result["duplicates"] == 1
    assert result["bytes_after"] >= 0 and result["bytes_before"] >= 0
    assert command.request_ids(ACME) == ["a", "b", "a"]
    assert command.case.open().scan(ACME)[0].position == first
    assert command.request_ids(OTHER) == ["a"]
    assert command.json("compact")["duplicates"] == 0
