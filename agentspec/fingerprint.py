"""What names a tokenizer, so that token ids of one are never taken for those of another."""

from __future__ import annotations

import hashlib
from pathlib import Path

# In a model's folder the first of these is taken, then any .tiktoken file.
_FILES = ("tokenizer.json", "tekken.json", "tokenizer.model")


def tokenizer_file(path: str | Path) -> Path | None:
    """A tokenizer's file, or the one in a model's folder; None if there is none."""
    path = Path(path)
    if path.is_dir():
        candidates = [path / name for name in _FILES] + sorted(path.glob("*.tiktoken"))
        return next((file for file in candidates if file.is_file()), None)
    return path if path.is_file() else None


def fingerprint(path: str | Path) -> str:
    """The SHA-256, as hex, of a tokenizer's file or of the one in a model's folder; "" if there is none."""
    file = tokenizer_file(path)
    return hashlib.sha256(file.read_bytes()).hexdigest() if file else ""


def identity(name: str) -> bytes:
    """The 32 bytes that stand for a tokenizer's name in segments: the name itself where it is a SHA-256 as hex."""
    try:
        digest = bytes.fromhex(name)
    except ValueError:
        digest = b""
    return digest if len(digest) == 32 else hashlib.sha256(name.encode()).digest()
