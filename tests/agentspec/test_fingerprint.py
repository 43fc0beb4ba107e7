"""Fingerprints, which name tokenizers."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from agentspec.fingerprint import fingerprint, identity


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def test_a_file_is_named_by_its_content(tmp_path: Path) -> None:
    for name in ("a.json", "b.json"):
        (tmp_path / name).write_bytes(b"{}")
    assert fingerprint(tmp_path / "a.json") == fingerprint(str(tmp_path / "b.json")) == sha256(b"{}")


@pytest.mark.parametrize(
    ("names", "taken"),
    [
        (["tokenizer.json", "tekken.json", "x.tiktoken"], "tokenizer.json"),
        (["tekken.json", "tokenizer.model", "config.json"], "tekken.json"),
        (["tokenizer.model", "a.tiktoken"], "tokenizer.model"),
        (["b.tiktoken", "a.tiktoken", "model.safetensors"], "a.tiktoken"),
    ],
)
def test_a_model_s_folder_is_named_by_its_tokenizer(tmp_path: Path, names: list[str], taken: str) -> None:
    for name in names:
        (tmp_path / name).write_text(name)
    assert fingerprint(tmp_path) == sha256(taken.encode()) == fingerprint(tmp_path / taken)


def test_where_there_is_no_tokenizer_there_is_no_name(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "tokenizer.json").mkdir()
    assert fingerprint(tmp_path) == fingerprint(tmp_path / "none") == ""


def test_an_identity_is_the_hash_itself_or_a_hash_of_the_name() -> None:
    digest = sha256(b"x")
    assert identity(digest) == bytes.fromhex(digest) == hashlib.sha256(b"x").digest()
    # This name is hexadecimal but not a SHA-256 hash.
    assert identity("abcd") == hashlib.sha256(b"abcd").digest()
    assert identity("qwen") == hashlib.sha256(b"qwen").digest()
    assert identity("") == hashlib.sha256(b"").digest()
