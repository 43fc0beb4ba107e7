"""Builds a corpus from documents in a process of its own, so that no step of the server waits for the GIL.

corpora.py starts it. It writes lines of JSON with its progress, and a last one with `result` or `error`. It ends when
its standard input ends, because the process that started it has ended then.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from agentspec.analysis.corpus import Reading, build_corpus, read_documents
from agentspec.analysis.replay.tokenizer import Tokenizer, load_tokenizer
from agentspec.errors import AgentspecError, ConfigError
from agentspec.fingerprint import tokenizer_file
from agentspec.integrations.sglang.admin.wire import JsonObject

_SECONDS = 0.5
_SHOWN_BAD = 5
_NICE = 10
_BYTES_PER_TOKEN = 4
"""A corpus takes more than this for each token, so too many tokens are refused before they are indexed."""


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("source", type=Path, help="a text, .jsonl or .npy file")
    parser.add_argument("out", type=Path, help="the corpus")
    parser.add_argument("--tokenizer", required=True, help="the tokenizer's file, or the model's folder or name")
    parser.add_argument("--identity", required=True, help="EngineConfig.tokenizer of the engine")
    parser.add_argument("--vocab-size", type=int, required=True, help="vocabulary size of the engine")
    parser.add_argument("--most-bytes", type=int, required=True, help="the most bytes that the corpus may take")
    args = parser.parse_args(argv)
    os.nice(_NICE)
    threading.Thread(target=_watch_owner, daemon=True).start()
    try:
        _say(result=_build(args))
    except (AgentspecError, OSError) as error:
        _say(error=str(error))
        return 1
    return 0


def _build(args: argparse.Namespace) -> JsonObject:
    reading = Reading()
    tokenizer = _tokenizer(args.tokenizer, args.vocab_size)
    documents = _watched(read_documents([args.source], tokenizer, reading), reading, args.most_bytes)
    try:
        build_corpus(args.out, documents, tokenizer=args.identity, vocab_size=args.vocab_size)
    except ConfigError as error:
        raise ConfigError(f"{error}{_first_bad(reading, args.source)}") from None
    num_bytes = args.out.stat().st_size
    if num_bytes > args.most_bytes:
        args.out.unlink()
        raise _too_large(f"it takes {num_bytes} bytes", args.most_bytes)
    return {
        "documents": reading.documents,
        "tokens": reading.tokens,
        "bytes": num_bytes,
        "skipped": len(reading.bad),
        "skipped_why": [_without_path(reason, args.source) for reason in reading.bad[:_SHOWN_BAD]],
    }


def _watched(documents: Iterator[NDArray[np.int32]], reading: Reading, most_bytes: int) -> Iterator[NDArray[np.int32]]:
    told = time.monotonic()
    for document in documents:
        if reading.tokens * _BYTES_PER_TOKEN > most_bytes:
            raise _too_large(f"{reading.tokens} tokens were read, and there are more", most_bytes)
        if time.monotonic() - told > _SECONDS:
            told = time.monotonic()
            _say(progress={"stage": "reading", "documents": reading.documents, "tokens": reading.tokens})
        yield document
    _say(progress={"stage": "indexing", "documents": reading.documents, "tokens": reading.tokens})


def _too_large(found: str, most_bytes: int) -> ConfigError:
    return ConfigError(
        f"all corpora that are added may take AGENTSPEC_ADMIN_CORPORA_MB, of which {most_bytes} bytes are left, but "
        f"{found}; remove others, or start the server with more"
    )


def _tokenizer(name: str, vocab_size: int) -> Tokenizer:
    """The served tokenizer, read from its file or, if its format is not supported here, loaded by transformers."""
    file = tokenizer_file(name)
    try:
        if file is not None:
            # Token ids are limited by the model's vocabulary, which may be larger than the tokenizer's.
            return replace(load_tokenizer(file), vocab_size=vocab_size)
    except ConfigError:
        # transformers may know the format.
        pass
    try:
        transformers = importlib.import_module("transformers")
        other = transformers.AutoTokenizer.from_pretrained(name)
    except Exception as error:
        raise ConfigError(f"the tokenizer {name} cannot be loaded to read documents: {error}") from error

    def encode(text: str) -> list[int]:
        ids: list[int] = other.encode(text, add_special_tokens=False)
        return ids

    return Tokenizer(name, vocab_size, 0, encode)


def _first_bad(reading: Reading, source: Path) -> str:
    if not reading.bad:
        return ""
    return f" ({len(reading.bad)}, the first: {_without_path(reading.bad[0], source)})"


def _without_path(reason: str, source: Path) -> str:
    """The reason without the path of the upload, which clients must not see."""
    rest = reason.removeprefix(str(source))
    return f"line {rest[1:]}" if rest != reason and rest[1:2].isdigit() else rest.lstrip(": ")


def _say(**line: object) -> None:
    print(json.dumps(line), flush=True)


def _watch_owner() -> None:
    # Reads the file descriptor itself. The interpreter needs the lock of the buffered stdin when it ends.
    while os.read(0, 4096):
        pass
    os._exit(1)


if __name__ == "__main__":
    sys.exit(main())
