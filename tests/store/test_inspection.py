"""Offline checks of a store's contents, on stores of each kind."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from byte_tokenizer import write_byte_tokenizer
from store_case import A, B, StoreCase

from agentspec.analysis.replay import load_tokenizer
from agentspec.cli import main
from agentspec.fingerprint import fingerprint
from agentspec.observe.findings import Finding, Severity
from agentspec.store import Scope, place
from agentspec.store.codec import Codec
from agentspec.store.inspection import check_store
from agentspec.store.records import OutputRecord


def put(case: StoreCase, scope: Scope, namespace: str, *texts: str, key: bytes | None = None) -> None:
    codec = Codec(scope, key)
    records = [
        OutputRecord(number + 1, "r", 1.5e9, 2, np.frombuffer(b"<>" + text.encode(), np.uint8).astype(np.int32))
        for number, text in enumerate(texts)
    ]
    case.open(scope).append([(namespace, codec.encode(namespace, record)) for record in records])


def checked(case: StoreCase, tokenizer: Path | None = None) -> dict[str, Finding]:
    loaded = load_tokenizer(tokenizer) if tokenizer else None
    found = check_store(place(case.url), None, loaded, fingerprint(tokenizer) if tokenizer else "")
    return {of.name: of for of in found}


def test_repeats_of_each_namespace(case: StoreCase, tmp_path: Path) -> None:
    tokenizer = write_byte_tokenizer(tmp_path)
    scope = Scope("m", fingerprint(tokenizer))
    put(case, scope, A, "SELECT name FROM users", "SELECT name FROM users")
    put(case, scope, B, "SELECT name FROM users\r\n")
    found = checked(case, tokenizer)
    # One of the three texts repeats a text of the same tenant. Another one repeats only a text of the other tenant.
    assert "at 32% of 47 places in 3 outputs" in found["repeats"].seen and "of 2 outputs" in found["repeats"].seen
    assert found["tokenizer"].severity is Severity.OK
    assert "0 of 3 outputs" in found["tokens"].seen and "1 of 3 outputs" in found["line-ends"].seen
    assert "namespace" not in found


def test_tenants_that_say_the_same(case: StoreCase) -> None:
    scope = Scope("m", "ab" * 32)
    for number in range(6):
        put(case, scope, f"{number:032x}", "SELECT name FROM users")
    found = checked(case)
    assert found["repeats"].severity is Severity.WARNING
    assert "6 outputs are in 6 namespaces" in found["namespace"].seen
    assert "--agentspec-namespace-from" in found["namespace"].remedy


def test_another_tokenizer_and_what_cannot_be_read(case: StoreCase, tmp_path: Path) -> None:
    scope = Scope("m", "ab" * 32)
    put(case, scope, A, "SELECT name", key=b"k" * 32)
    found = checked(case, write_byte_tokenizer(tmp_path))
    assert found["tokenizer"].severity is Severity.ERROR and "ab" * 6 in found["tokenizer"].seen
    assert found["records-encrypted"].severity is Severity.ERROR and "--key-file" in found["records-encrypted"].remedy


def test_the_command_knows_a_store_by_its_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "any.name"
    case = StoreCase("sqlite", f"sqlite:///{path}", lambda: None)
    put(case, Scope("m", "ab" * 32), A, "SELECT name FROM users", "SELECT name FROM users")
    case.close()
    for target in (str(path), f"sqlite:///{path}"):
        assert main(["doctor", target]) == 0
        assert "m: at 50% of 30 places" in capsys.readouterr().out
    assert main(["doctor", f"sqlite:///{tmp_path}/none"]) == 2
    assert "nothing is stored" in capsys.readouterr().err
