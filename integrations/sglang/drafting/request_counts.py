"""Counts properties of requests that explain how well drafts work. Their texts are never recorded.

A file with CRLF line ends has other tokens than the same file with LF. A model that is shown such a file commonly
writes LF, and then what it copies matches nothing. So texts with carriage returns are counted.
"""

from __future__ import annotations

import base64
import json
import logging
from collections.abc import Iterable
from pathlib import Path
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from agentspec.fingerprint import tokenizer_file
from agentspec.integrations.sglang.metrics import LabelledCounts
from agentspec.integrations.sglang.tenants import Handling

logger = logging.getLogger("agentspec")

Kind = Literal["kept", "private", "no_store", "no_draft"]
"""How a request is handled:

kept      its output is learned from
private   its output is not learned from, because the request names no tenant
no_store  its output is not learned from, because the request asks for that, or because it is a health check
no_draft  it gets no drafts, because the request asks for that
"""
_TEXTS = ("prompts", "outputs")
# How byte-level tokenizers and SentencePiece write the byte 13.
_BYTE_LEVEL, _BYTE_FALLBACK = chr(256 + 13), "<0x0D>"


class RequestCounts:
    """Counts requests by how they are handled, and texts with carriage returns. For one thread."""

    def __init__(self, tokenizer: str, vocab_size: int) -> None:
        """`tokenizer`: the model's folder or the tokenizer's file. If it is unreadable, carriage returns are not
        counted."""
        self._requests = LabelledCounts("requests", get_args(Kind))
        self._returns = LabelledCounts("carriage_returns", _TEXTS)
        self._line_ends: LineEnds | None = None
        path = tokenizer_file(tokenizer)
        try:
            if path is not None:
                self._line_ends = LineEnds(carriage_returns(Path(path)), vocab_size)
        except Exception as error:
            logger.warning("agentspec: carriage returns are not counted: %s cannot be read: %s", path, error)

    def opened(self, handling: Handling, prompt: NDArray[np.int32]) -> None:
        """Counts a request that was opened, and its prompt, int32[n]."""
        kind: Kind = "kept"
        if not handling.draft:
            kind = "no_draft"
        elif handling.is_private:
            kind = "private"
        elif not handling.keep:
            kind = "no_store"
        self._requests.add(kind)
        self._look("prompts", prompt)

    def finished(self, output: NDArray[np.int32]) -> None:
        """Counts an output that is learned from, int32[n]."""
        self._look("outputs", output)

    def snapshot(self) -> dict[str, object]:
        """The counts. `carriage_returns` is None if they are not counted."""
        returns = None if self._line_ends is None else {**dict.fromkeys(_TEXTS, 0), **self._returns.snapshot()}
        return {"requests": self._requests.snapshot(), "carriage_returns": returns}

    def export(self, labels: dict[str, str]) -> None:
        self._requests.export(labels)
        self._returns.export(labels)

    def _look(self, text: str, tokens: NDArray[np.int32]) -> None:
        if self._line_ends is not None and self._line_ends.has_returns(tokens):
            self._returns.add(text)


class LineEnds:
    """Looks for carriage returns in token ids."""

    def __init__(self, tokens: NDArray[np.int32], vocab_size: int) -> None:
        """`tokens`: the ids, int32[n], of tokens that hold a carriage return."""
        self._is_return = np.zeros(vocab_size, bool)
        self._is_return[tokens[tokens < vocab_size]] = True

    def has_returns(self, tokens: NDArray[np.int32]) -> bool:
        """Whether one of `tokens`, int32[n] within the vocabulary, holds a carriage return."""
        return bool(self._is_return[tokens].any())


def carriage_returns(path: Path) -> NDArray[np.int32]:
    """The ids, int32[n], of the tokens that hold a carriage return, read from a tokenizer's file: a tokenizer.json, a
    tekken .json or a .tiktoken file. Raises ValueError, KeyError, TypeError, OSError if the file is none of them."""
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


def _names_byte_level(part: object) -> bool:
    return part is not None and '"ByteLevel"' in json.dumps(part)


def _ids(numbers: Iterable[int]) -> NDArray[np.int32]:
    return np.fromiter(numbers, np.int32)
