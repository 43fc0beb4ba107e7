"""`agentspec store export`."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from agentspec.analysis.replay import Tokenizer, load_tokenizer
from agentspec.errors import ConfigError
from agentspec.store.cli.logs import read_outputs
from agentspec.store.cli.options import (
    add_namespace_options,
    add_scope_options,
    add_store_options,
    chosen_namespace,
    opened,
    tokenizer_path,
)
from agentspec.store.cli.output import show
from agentspec.store.records import OutputRecord


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Writes the outputs in the logs as JSONL, not encrypted: {request_id, time, num_prompt_tail, tokens, "
        "output_id, namespace}. The file is readable by its owner only."
    )
    parser.add_argument("--out", required=True, metavar="FILE", help="the file to write; -: standard output")
    parser.add_argument(
        "--text", action="store_true", help="add the outputs' text; needs --tokenizer with the tokenizer's file"
    )
    add_store_options(parser)
    add_scope_options(parser)
    add_namespace_options(parser)


def run(args: argparse.Namespace) -> int:
    namespace = chosen_namespace(args)
    path = tokenizer_path(args)
    if args.text and path is None:
        raise ConfigError("--text needs the tokenizer's file; pass it with --tokenizer")
    tokenizer = load_tokenizer(path) if args.text else None
    outputs = num_tokens = 0
    with opened(args) as opening, _output(args.out) as file:
        for entry, record in read_outputs(opening.store, opening.codec, opening.infos(namespace), "exporting"):
            file.write(_line(entry.namespace, record, tokenizer) + "\n")
            outputs += 1
            num_tokens += len(record.tokens) - record.num_prompt_tail
    if args.out != "-":
        show({"out": args.out, "outputs": outputs, "tokens": num_tokens}, args.json)
    return 0


def _line(namespace: str, record: OutputRecord, tokenizer: Tokenizer | None) -> str:
    line = {
        "request_id": record.request_id,
        "time": record.time,
        "num_prompt_tail": record.num_prompt_tail,
        "tokens": record.tokens.tolist(),
        # Written as text, because many JSON readers keep only 53 bits of a number.
        "output_id": f"{record.output_id:016x}",
        "namespace": namespace,
    }
    if tokenizer:
        line["text"] = tokenizer.decode(record.tokens[record.num_prompt_tail :])
    return json.dumps(line)


@contextmanager
def _output(name: str) -> Iterator[TextIO]:
    """Replaces a file once all is written, so that a failed export leaves the old file in place.

    Anything else, such as a pipe or a link, is written to and never replaced.
    """
    if name == "-":
        yield sys.stdout
        return
    path = Path(name)
    in_place = path.is_symlink() or (path.exists() and not path.is_file())
    part = path if in_place else path.with_name(f"{path.name}.{os.getpid()}.part")
    flags = os.O_WRONLY | os.O_TRUNC if in_place else os.O_WRONLY | os.O_CREAT | os.O_EXCL
    try:
        handle = os.open(part, flags, 0o600)
    except OSError as error:
        raise ConfigError(
            f"--out {path} cannot be written: {error.strerror}; name a file in a folder there is"
        ) from error
    try:
        with os.fdopen(handle, "w") as file:
            yield file
        if not in_place:
            part.replace(path)
    except BrokenPipeError:
        raise
    except OSError as error:
        raise ConfigError(
            f"--out {path} cannot be written: {error.strerror}; make room or name another file"
        ) from error
    finally:
        if not in_place:
            part.unlink(missing_ok=True)
