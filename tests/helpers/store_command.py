"""The command `agentspec store`, run in this process on a store that a test fills."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from store_case import SCOPE, StoreCase

from agentspec.cli import main
from agentspec.store import CONTROL, Scope
from agentspec.store.codec import Codec
from agentspec.store.log_files import request_hash
from agentspec.store.namespaces import namespace_id
from agentspec.store.records import Deletion, Manifest, OutputRecord, SegmentRef

ACME, OTHER = namespace_id("acme", None), namespace_id("other", None)


def output(request_id: str, *, number: int = 0, time: float = 1.5e9, tail: int = 0) -> OutputRecord:
    """Makes an output whose tokens are letters."""
    tokens = np.arange(5, dtype=np.int32) + ord("a")
    return OutputRecord(request_hash(request_id) << 32 | number, request_id, time, tail, tokens)


class StoreCommand:
    """Runs actions on a store. Tests read and write the store's contents with `codec`."""

    def __init__(self, case: StoreCase, capsys: pytest.CaptureFixture[str], scope: Scope = SCOPE) -> None:
        self.case = case
        self.codec = Codec(scope)
        self.error = ""
        """Text that the last run wrote to stderr."""
        self._capsys = capsys
        self._scope = scope

    def run(self, *words: str, status: int = 0) -> str:
        """Runs the command, checks its exit status, and returns what it prints."""
        self._capsys.readouterr()
        got = main(["store", *words, "--store", self.case.url])
        shown = self._capsys.readouterr()
        self.error = shown.err
        assert got == status, shown
        return shown.out

    def json(self, *words: str, status: int = 0) -> Any:
        """Runs the command and parses what it prints as JSON."""
        return json.loads(self.run(*words, "--json", status=status))

    def fail(self, *words: str) -> str:
        """Runs a command that must fail, and returns its one line of error."""
        assert self.run(*words, status=2) == ""
        (line,) = self.error.splitlines()
        return line.removeprefix("agentspec store: ")

    def put(self, namespace: str, *records: OutputRecord) -> None:
        entries = [(namespace, self.codec.encode(namespace, record)) for record in records]
        self.case.open(self._scope).append(entries)

    def put_bytes(self, namespace: str, data: bytes) -> None:
        self.case.open(self._scope).append([(namespace, data)])

    def put_snapshot(self, namespace: str, blob: bytes = b"segment") -> None:
        store, name = self.case.open(self._scope), "5e"
        store.write_segment(namespace, name, self.codec.encode_segment(namespace, name, blob))
        manifest = Manifest("1", (SegmentRef(name, len(blob), 1, 5),), 1.5e9)
        store.write_manifest(namespace, self.codec.encode_manifest(namespace, manifest), [name])

    def outputs(self, namespace: str) -> list[OutputRecord]:
        """All readable outputs of the namespace's log."""
        entries = self.case.open(self._scope).scan(namespace)
        records = [self.codec.decode(namespace, entry.data) for entry in entries]
        return [record for record in records if isinstance(record, OutputRecord)]

    def request_ids(self, namespace: str) -> list[str]:
        return [record.request_id for record in self.outputs(namespace)]

    def deletions(self) -> list[Deletion]:
        """The deletions that replicas are told to make."""
        entries = self.case.open(self._scope).scan(CONTROL)
        records = [self.codec.decode(CONTROL, entry.data) for entry in entries]
        return [record for record in records if isinstance(record, Deletion)]

    def num_segments(self, namespace: str) -> int | None:
        """Number of segments in the namespace's manifest; None if it has no manifest."""
        data = self.case.open(self._scope).manifest(namespace)
        return None if data is None else len(self.codec.decode_manifest(namespace, data).segments)
