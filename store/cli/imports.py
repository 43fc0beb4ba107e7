"""`agentspec store import`."""

from __future__ import annotations

import argparse
import hashlib
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from agentspec.analysis.replay import load_tokenizer
from agentspec.errors import ConfigError, RecordError
from agentspec.progress import Progress
from agentspec.record_file import READ_ERRORS
from agentspec.store.base import scan_all
from agentspec.store.cli.logs import readable
from agentspec.store.cli.options import (
    OpenStore,
    add_namespace_options,
    add_scope_options,
    add_store_options,
    chosen_namespace,
    is_namespace,
    opened,
    tokenizer_path,
)
from agentspec.store.cli.output import show
from agentspec.store.log_files import LogFiles
from agentspec.store.namespaces import namespace_id
from agentspec.store.records import OutputRecord
from agentspec.store.secrets import NAMESPACE_KEY_VARIABLE, read_key

_ENDINGS = (".jsonl", ".jsonl.xz", ".jsonl.gz")
_BATCH_BYTES = 4 << 20
_BATCH_ENTRIES = 1000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Adds outputs to a store, those apart that are there already. Lines may be chats ({messages}), staged traces "
        "({calls}) or what `agentspec store export` wrote; bad ones are named and skipped. A new model needs --model "
        "and --tokenizer, chats and traces the tokenizer's file. Without --tenant and --namespace, lines go to the "
        "namespace that they were exported from, others to the one of servers that tell no tenants apart."
    )
    parser.add_argument(
        "files",
        nargs="+",
        type=Path,
        metavar="PATH",
        help="a JSONL file, plain, .xz or .gz; or a folder with such files",
    )
    add_store_options(parser)
    add_scope_options(parser)
    add_namespace_options(parser)


def run(args: argparse.Namespace) -> int:
    started = time.perf_counter()
    chosen = chosen_namespace(args)
    default = chosen or namespace_id("", read_key(args.namespace_key_file, NAMESPACE_KEY_VARIABLE))
    files = list(_files(args.files))
    path = tokenizer_path(args)
    log_files = LogFiles(load_tokenizer(path) if path else None, time=time.time())
    try:
        with opened(args, create=True) as opening:
            opening.check_key()
            importing = _Importing(opening)
            _read(files, log_files, importing, chosen, default)
    finally:
        _show_bad(log_files)
    result = {
        "store": opening.store.url,
        "model": opening.store.scope.model,
        "outputs": importing.num_added,
        "tokens": importing.num_tokens,
        "there_already": log_files.reading.outputs - importing.num_added,
        "namespaces": len(importing.known),
        "skipped_lines": log_files.reading.num_bad,
        "seconds": round(time.perf_counter() - started, 2),
    }
    show(result, args.json)
    return 0


def _files(paths: list[Path]) -> Iterator[Path]:
    for path in paths:
        if path.is_dir():
            found = sorted(file for file in path.rglob("*") if file.name.endswith(_ENDINGS) and file.is_file())
            if not found:
                raise ConfigError(f"no file in {path} ends with {', '.join(_ENDINGS)}; pass the files themselves")
            yield from found
        elif path.is_file():
            yield path
        else:
            raise ConfigError(f"there is no {path}; pass files or folders that exist")


class _Importing:
    """Appends the records that the store does not hold yet, in batches."""

    def __init__(self, opening: OpenStore) -> None:
        self.num_added = 0
        self.num_tokens = 0
        # The ids of the outputs that the store holds, for each namespace met so far.
        self.known: dict[str, set[int]] = {}
        self._opening = opening
        self._batch: list[tuple[str, bytes]] = []
        self._batch_bytes = 0

    def add(self, namespace: str, record: OutputRecord) -> None:
        """Adds one output. Raises RecordError if it is too long for a record."""
        known = self.known.get(namespace)
        if known is None:
            known = self.known[namespace] = self._stored(namespace)
        if record.output_id in known:
            return
        data = self._opening.codec.encode(namespace, record)
        known.add(record.output_id)
        self._batch.append((namespace, data))
        self._batch_bytes += len(data)
        self.num_added += 1
        self.num_tokens += len(record.tokens) - record.num_prompt_tail
        if self._batch_bytes >= _BATCH_BYTES or len(self._batch) >= _BATCH_ENTRIES:
            self.flush()

    def flush(self) -> None:
        if self._batch:
            self._opening.store.append(self._batch)
        self._batch, self._batch_bytes = [], 0

    def _stored(self, namespace: str) -> set[int]:
        entries = scan_all(self._opening.store, namespace)
        records = (readable(self._opening.codec, entry) for entry in entries)
        return {record.output_id for record in records if isinstance(record, OutputRecord)}


def _read(files: list[Path], log_files: LogFiles, importing: _Importing, chosen: str | None, default: str) -> None:
    done = 0
    with Progress("importing", sum(path.stat().st_size for path in files)) as progress:
        for path in files:
            try:
                with path.open("rb") as file:
                    for output in log_files.read(file, path):
                        namespace = chosen or (output.namespace if is_namespace(output.namespace) else None) or default
                        record = output.record
                        if namespace != output.namespace:
                            record = replace(record, output_id=_id_in(namespace, record.output_id))
                        importing.add(namespace, record)
                        progress.update(done + file.tell(), f"bytes, {log_files.reading.outputs} outputs")
                    done += file.tell()
            except RecordError as error:
                raise ConfigError(f"an output in {path} cannot be stored: {error}") from error
            except READ_ERRORS as error:
                raise ConfigError(f"{path} cannot be read: {error}; what came before is in the store") from error
            finally:
                importing.flush()


def _id_in(namespace: str, output_id: int) -> int:
    """The id of an output whose text may be imported into other namespaces too. Readers know an output by its id alone, so
    they would take only the first."""
    digest = hashlib.sha256(f"{namespace}:{output_id}".encode()).digest()
    return output_id >> 32 << 32 | int.from_bytes(digest[:4], "little")


def _show_bad(log_files: LogFiles) -> None:
    reading = log_files.reading
    for reason in reading.bad:
        print(f"skipped {reason}", file=sys.stderr)
    if reading.num_bad > len(reading.bad):
        print(f"skipped {reading.num_bad - len(reading.bad)} more", file=sys.stderr)
    if reading.account.unknown:
        print(f"not known and not read: {reading.account.not_understood()}", file=sys.stderr)
