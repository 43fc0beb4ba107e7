"""Identifies tokenizers, so that token ids of different tokenizers are never mixed."""

from __future__ import annotations

import hashlib
from pathlib import Path

# Names to look for in a model's folder, in this order; then any .tiktoken file.
_FILES = ("tokenizer.json", "tekken.json", "tokenizer.model")


def tokenizer_file(path: str | Path) -> Path | None:
    """Returns a tokenizer's file, given its path or a model's folder; None if there is none."""
    path = Path(path)
    if path.is_dir():
        candidates = [path / name for name in _FILES] + sorted(path.glob("*.tiktoken"))
        return next((file for file in candidates if file.is_file()), None)
    return path if path.is_file() else None


def fingerprint(path: str | Path) -> str:
    """Returns the SHA-256, in hexadecimal, of the file that tokenizer_file() finds; "" if there is none."""
    file = tokenizer_file(path)
    return hashlib.sha256(file.read_bytes()).hexdigest() if file else ""


def identity(name: str) -> bytes:
    """Returns the 32 bytes that identify a tokenizer in segments: the name itself if it is a SHA-256 in hexadecimal,
    else the SHA-256 of the name."""
    try:
        digest = bytes.fromhex(name)
    except ValueError:
        digest = b""
    return digest if len(digest) == 32 else hashlib.sha256(name.encode()).digest()
