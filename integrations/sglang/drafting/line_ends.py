"""Which tokens hold a carriage return.

Files with CRLF lines make other tokens than the same lines with LF. A model that is shown such a file commonly writes LF,
and then what it copies matches nothing; so it is counted who uses carriage returns, and never what they say.
"""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

# How byte-level tokenizers write the byte 13, and how SentencePiece's do.
_BYTE_LEVEL, _BYTE_FALLBACK = chr(256 + 13), "<0x0D>"


class LineEnds:
    """Looks for carriage returns in token ids."""

    def __init__(self, tokens: NDArray[np.int32], vocab_size: int) -> None:
        """`tokens`: those that hold a carriage return."""
        self._is_return = np.zeros(vocab_size, bool)
        self._is_return[tokens[tokens < vocab_size]] = True

    def has_returns(self, tokens: NDArray[np.int32]) -> bool:
        """Whether one of them, int32[n] within the vocabulary, holds a carriage return."""
        return bool(self._is_return[tokens].any())


def carriage_returns(path: Path) -> NDArray[np.int32]:
    """The ids of tokens that hold a carriage return, by the tokenizer's own file: a tokenizer.json, a tekken .json or a
    .tiktoken file.

    Raises:
        ValueError, KeyError, TypeError, OSError: It is none of them.
    """
    data = path.read_bytes()
    if path.suffix == ".tiktoken":
        lines = (line.split() for line in data.splitlines() if line.strip())
        return _ids(int(rank) for token, rank in lines if b"\r" in base64.b64decode(token))
    content = json.loads(data)
    if "config" in content:
        special = int(content["config"]["default_num_special_tokens"])
        return _ids(
            special + int(entry["rank"])
            for entry in content["vocab"]
            if b"\r" in base64.b64decode(entry["token_bytes"])
        )
    marks = ["\r", _BYTE_FALLBACK]
    if _names_byte_level(content.get("pre_tokenizer")) or _names_byte_level(content.get("decoder")):
        marks.append(_BYTE_LEVEL)
    vocab = content["model"]["vocab"]
    pairs = vocab.items() if isinstance(vocab, dict) else ((entry[0], i) for i, entry in enumerate(vocab))
    return _ids(int(rank) for token, rank in pairs if any(mark in token for mark in marks))


def _names_byte_level(part: Any) -> bool:
    return part is not None and '"ByteLevel"' in json.dumps(part)


def _ids(numbers: Any) -> NDArray[np.int32]:
    return np.fromiter(numbers, np.int32)
