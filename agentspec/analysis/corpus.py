"""Corpora: read-only datastores of text that every request of a namespace may draft from (SSSD, section 3.1.2).

    files ─> documents ─> token ids ─> one sealed segment, a file that servers map into memory

A document is a whole text file, a line of a JSONL file with `text` or `tokens`, or a .npy file of token ids.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from agentspec import _core
from agentspec.analysis.replay.tokenizer import Tokenizer
from agentspec.errors import ConfigError, TokenError
from agentspec.fingerprint import identity
from agentspec.record_file import filled_lines

_END = np.array([-1], dtype=np.int32)
# Unlike numpy.load() it reads single arrays only.
_read_array: Any = np.lib.format.read_array


@dataclass(slots=True)
class Reading:
    """The result of reading so far."""

    documents: int = 0
    tokens: int = 0
    bad: list[str] = field(default_factory=list)
    """What was skipped, as `file:line: reason` or `file: reason`."""


@dataclass(frozen=True, slots=True)
class SegmentInfo:
    """The header of a segment's file."""

    kind: str
    """"outputs" or "corpus"."""
    documents: int
    tokens: int
    """The number of tokens, without the ends of documents."""
    bytes: int
    vocab_size: int
    """All token ids are less than this."""
    tokenizer: str
    """SHA-256, as hex, of `EngineConfig.tokenizer`."""


def read_documents(paths: Iterable[Path], tokenizer: Tokenizer, reading: Reading) -> Iterator[NDArray[np.int32]]:
    """The documents of files, and of all files below folders, in order. Documents that cannot be read are noted in
    `reading`. Raises ConfigError if one of the paths does not exist."""
    for file in document_files(paths):
        for document in _read_file(file, tokenizer, reading):
            if not len(document):
                continue
            reading.documents += 1
            reading.tokens += len(document)
            yield document


def document_files(paths: Iterable[Path]) -> list[Path]:
    """The files, and all files below the folders, in order. Raises ConfigError if one of the paths does not exist."""
    found: list[Path] = []
    for path in paths:
        if not path.exists():
            raise ConfigError(f"there is no {path}; pass files or folders that exist")
        found += sorted(file for file in path.rglob("*") if file.is_file()) if path.is_dir() else [path]
    return found


def _read_file(file: Path, tokenizer: Tokenizer, reading: Reading) -> Iterator[NDArray[np.int32]]:
    try:
        if file.suffix == ".npy":
            with file.open("rb") as stream:
                yield _as_tokens(_read_array(stream, allow_pickle=False), tokenizer)
        elif file.suffix == ".jsonl":
            for number, line in filled_lines(file):
                try:
                    yield _read_line(json.loads(line), tokenizer)
                except (ValueError, RecursionError) as error:
                    reading.bad.append(f"{file}:{number}: {error}")
        else:
            yield tokenizer.encode(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        reading.bad.append(f"{file}: {error}")


def _read_line(line: object, tokenizer: Tokenizer) -> NDArray[np.int32]:
    if isinstance(line, dict) and isinstance(line.get("text"), str):
        return tokenizer.encode(line["text"])
    if isinstance(line, dict) and isinstance(line.get("tokens"), list):
        return _as_tokens(np.asarray(line["tokens"] or np.empty(0, np.int32)), tokenizer)
    raise TokenError("a line must be an object with `text`, a string, or `tokens`, a list of ids")


def _as_tokens(values: NDArray[np.generic], tokenizer: Tokenizer) -> NDArray[np.int32]:
    if values.ndim != 1 or values.dtype.kind not in "iu":
        raise TokenError(f"token ids must be a 1-D array of integers, got {values.dtype}{list(values.shape)}")
    ids = values.astype(np.int64)
    if len(ids) and not (0 <= ids.min() and ids.max() < tokenizer.vocab_size):
        raise TokenError(f"token ids must be in [0, {tokenizer.vocab_size}), got {ids.min()} to {ids.max()}")
    return ids.astype(np.int32)


def build_corpus(
    out: Path, documents: Iterable[NDArray[np.int32]], *, tokenizer: str, vocab_size: int | None = None
) -> None:
    """Writes a corpus of documents, int32[n] each, replacing the file in one step. `tokenizer`: the
    `EngineConfig.tokenizer` of the engines that may draft from the corpus. `vocab_size`: at most that of these engines.
    None: the largest id plus one, which always fits.

    Raises:
        ConfigError: There are no documents.
        TokenError: An id is out of range.
        SegmentError: The file cannot be written.
    """
    parts: list[NDArray[np.int32]] = []
    for document in documents:
        parts += [document, _END]
    if not parts:
        raise ConfigError("a corpus needs one document at least, got none; see what was skipped")
    text = np.concatenate(parts)
    _core.build_corpus(str(out), text, int(text.max()) + 1 if vocab_size is None else vocab_size, identity(tokenizer))


def read_info(path: Path) -> SegmentInfo:
    """Checks a segment's file from end to end and returns its header. Raises SegmentError if the file is not a valid
    segment."""
    return SegmentInfo(*_core.segment_info(str(path)))
