"""`agentspec corpus`: builds datastores that servers draft from besides their own outputs, shows the content of one,
and sends them to running servers."""

from __future__ import annotations

import argparse
import dataclasses
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from agentspec.analysis.corpus import Reading, build_corpus, read_documents, read_info
from agentspec.analysis.replay.tokenizer import load_tokenizer, tokenizer_path
from agentspec.cli import served_corpora
from agentspec.cli.options import add_tokenizer, option, switch
from agentspec.errors import ConfigError
from agentspec.fingerprint import fingerprint
from agentspec.store.cli.output import show

_SHOWN_BAD = 5


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    build = actions.add_parser("build", help="build a corpus from text, JSONL (`text` or `tokens`) or .npy files")
    build.add_argument(
        "files", nargs="+", type=Path, metavar="PATH", help="a file, or a folder with all files below it"
    )
    option(build, "--out FILE", "the corpus to write", type=Path, required=True)
    add_tokenizer(build)
    switch(build, "--json", "print the result as JSON")
    info = actions.add_parser("info", help="check a corpus file and show its header")
    info.add_argument("file", type=Path, metavar="FILE")
    switch(info, "--json", "print the header as JSON")
    served_corpora.add_actions(actions)


def run(args: argparse.Namespace) -> int:
    """Builds or shows a corpus, or manages those of a running server.

    Raises:
        ManagementError, ServerError: As in served_corpora.run().
        ConfigError: Nothing could be read, or there is no tokenizer.
        SegmentError: The file cannot be written, or is not a segment.
    """
    if args.action in served_corpora.ACTIONS:
        return served_corpora.run(args)
    return _build(args) if args.action == "build" else _info(args)


def _build(args: argparse.Namespace) -> int:
    path = tokenizer_path(args.tokenizer)
    tokenizer = load_tokenizer(path)
    if not args.out.parent.is_dir():
        raise ConfigError(f"--out must lie in a folder that exists, got {args.out}; make {args.out.parent} first")
    reading = Reading()
    started = time.perf_counter()
    documents = _with_progress(read_documents(args.files, tokenizer, reading), reading)
    try:
        build_corpus(args.out, documents, tokenizer=fingerprint(path))
    finally:
        _show_bad(reading.bad)
    result = {
        "out": str(args.out),
        "documents": reading.documents,
        "tokens": reading.tokens,
        "bytes": args.out.stat().st_size,
        "seconds": round(time.perf_counter() - started, 2),
        "skipped": len(reading.bad),
        "tokenizer": tokenizer.name,
    }
    show(result, args.json)
    return 0


def _info(args: argparse.Namespace) -> int:
    show(dataclasses.asdict(read_info(args.file)), args.json)
    return 0


def _with_progress(documents: Iterator[NDArray[np.int32]], reading: Reading) -> Iterator[NDArray[np.int32]]:
    shown = time.monotonic()
    for document in documents:
        yield document
        if time.monotonic() - shown > 2.0:
            shown = time.monotonic()
            print(f"{reading.documents} documents, {reading.tokens} tokens", file=sys.stderr)


def _show_bad(bad: list[str]) -> None:
    for reason in bad[:_SHOWN_BAD]:
        print(f"skipped {reason}", file=sys.stderr)
    if len(bad) > _SHOWN_BAD:
        print(f"skipped {len(bad) - _SHOWN_BAD} more", file=sys.stderr)
