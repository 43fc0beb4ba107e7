"""A tokenizer whose tokens are bytes. Token 256 ends a turn."""

from __future__ import annotations

import base64
from pathlib import Path

from agentspec.analysis.replay import Tokenizer

END = 256


def byte_tokenizer() -> Tokenizer:
    return Tokenizer("bytes", 257, END, lambda text: list(text.encode()))


def write_byte_tokenizer(folder: Path) -> Path:
    """Writes the tokenizer as a .tiktoken file."""
    path = folder / "bytes.tiktoken"
    path.write_bytes(b"".join(base64.b64encode(bytes([i])) + b" %d\n" % i for i in range(256)))
    return path


def text_of(tokens: list[int]) -> str:
    """Decodes tokens to readable text; `$` stands for the end of a turn."""
    return "".join("$" if token == END else chr(token) for token in tokens)
