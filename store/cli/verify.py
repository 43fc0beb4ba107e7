"""`agentspec store verify`."""

from __future__ import annotations

import argparse
import json
import os
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from agentspec.analysis.corpus import read_info
from agentspec.errors import RecordError, SegmentError, StoreError, StoreUnavailableError
from agentspec.fingerprint import identity
from agentspec.progress import Progress
from agentspec.store.base import CONTROL, scan_all
from agentspec.store.cli.options import OpenStore, add_scope_options, add_store_options, opened
from agentspec.store.cli.output import show, show_table
from agentspec.store.records import Manifest
from agentspec.store.replication.deletion import drop_snapshot


@dataclass(frozen=True, slots=True)
class Problem:
    """An entry, manifest, segment or log that cannot be used."""

    namespace: str
    """The namespace's id; "" for CONTROL."""
    place: str
    """A position in the log, "manifest" or "segment NAME"."""
    fault: str
    """One of the values of RecordError.fault."""
    reason: str


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Reads every entry, manifest and segment of a model and reports what is damaged, of a newer format, foreign, "
        "or encrypted with another key. Exit status 1 if anything is."
    )
    add_store_options(parser)
    add_scope_options(parser)
    parser.add_argument(
        "--delete-damaged",
        action="store_true",
        help="remove what is damaged: entries from the logs, and snapshots, which servers write again",
    )


def run(args: argparse.Namespace) -> int:
    with opened(args) as opening:
        verifying = _Verifying(opening)
        verifying.logs()
        verifying.snapshots()
        removed = verifying.remove_damaged() if args.delete_damaged else 0
        store = opening.store
    counts = {
        "store": store.url,
        "model": store.scope.model,
        "entries": verifying.num_entries,
        "segments": verifying.num_segments,
        "unencrypted": opening.codec.num_unencrypted,
        "problems": len(verifying.problems),
        "removed": removed,
    }
    if args.json:
        print(json.dumps({**counts, "problems": [asdict(problem) for problem in verifying.problems]}))
    else:
        if verifying.problems:
            rows = [(problem.namespace or "control", problem.place, problem.reason) for problem in verifying.problems]
            show_table(("namespace", "place", "problem"), rows)
            print()
        show(counts, False)
    return 1 if verifying.problems else 0


class _Verifying:
    def __init__(self, opening: OpenStore) -> None:
        self.num_entries = 0
        self.num_segments = 0
        self.problems: list[Problem] = []
        self._store = opening.store
        self._codec = opening.codec
        self._infos = opening.infos(None)

    def logs(self) -> None:
        with Progress("entries", sum(info.num_entries for info in self._infos)) as progress:
            for namespace in [CONTROL, *(info.namespace for info in self._infos)]:
                try:
                    for entry in scan_all(self._store, namespace):
                        self.num_entries += 1
                        progress.update(self.num_entries)
                        try:
                            self._codec.decode(namespace, entry.data)
                        except RecordError as error:
                            self._note(namespace, entry.position, error)
                except StoreUnavailableError:
                    raise
                except StoreError as error:
                    self._note(namespace, "log", error)

    def snapshots(self) -> None:
        with Progress("snapshots", len(self._infos)) as progress:
            for done, info in enumerate(self._infos):
                progress.update(done)
                data = self._store.manifest(info.namespace)
                if data is None:
                    continue
                try:
                    manifest = self._codec.decode_manifest(info.namespace, data)
                except RecordError as error:
                    self._note(info.namespace, "manifest", error)
                else:
                    self._segments(info.namespace, manifest)

    def _segments(self, namespace: str, manifest: Manifest) -> None:
        for ref in manifest.segments:
            self.num_segments += 1
            try:
                chunks = self._store.segment(namespace, ref.name)
                blob = self._codec.decode_segment(namespace, ref.name, chunks, ref.num_bytes)
                _check_segment(blob, self._store.scope.tokenizer)
            except StoreUnavailableError:
                raise
            except StoreError as error:
                self._note(namespace, f"segment {ref.name}", error)

    def _note(self, namespace: str, place: str, error: StoreError) -> None:
        fault = error.fault if isinstance(error, RecordError) else "damaged"
        self.problems.append(Problem(namespace, place, fault, str(error)))

    def remove_damaged(self) -> int:
        """Removes damaged entries and snapshots; returns the number removed."""
        positions: dict[str, list[str]] = {}
        snapshots = set()
        for problem in self.problems:
            if problem.fault != "damaged" or problem.place == "log":
                continue
            if problem.place == "manifest" or problem.place.startswith("segment "):
                snapshots.add(problem.namespace)
            else:
                positions.setdefault(problem.namespace, []).append(problem.place)
        removed = sum(self._store.remove(namespace, places) for namespace, places in positions.items())
        now = time.time()
        return removed + sum(drop_snapshot(self._store, self._codec, namespace, now) for namespace in snapshots)


def _check_segment(blob: NDArray[np.uint8], tokenizer: str) -> None:
    """Raises RecordError unless the engine can use the segment."""
    # The segment is written to memory only, because its text may be encrypted in the store.
    handle = os.memfd_create("segment")
    try:
        with os.fdopen(handle, "wb", closefd=False) as file:
            file.write(blob.data)
        info = read_info(Path(f"/proc/self/fd/{handle}"))
    except SegmentError as error:
        raise RecordError(f"damaged: {str(error).partition(': ')[2]}") from error
    finally:
        os.close(handle)
    if info.tokenizer != identity(tokenizer).hex():
        raise RecordError("foreign: a segment of another tokenizer", "foreign")
