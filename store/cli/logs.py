"""Reads whole logs, for the actions of `agentspec store` that read every entry."""

from __future__ import annotations

from collections.abc import Iterator

from agentspec.errors import RecordError
from agentspec.progress import Progress
from agentspec.store.base import Entry, NamespaceInfo, Store, scan_all
from agentspec.store.codec import Codec
from agentspec.store.records import Deletion, OutputRecord


def read_outputs(
    store: Store, codec: Codec, infos: list[NamespaceInfo], label: str
) -> Iterator[tuple[Entry, OutputRecord]]:
    """The outputs in the namespaces' logs. Shows progress on stderr and skips entries that cannot be read."""
    done = 0
    with Progress(label, sum(info.num_entries for info in infos)) as progress:
        for info in infos:
            for entry in scan_all(store, info.namespace):
                done += 1
                progress.update(done, "entries")
                record = readable(codec, entry)
                if isinstance(record, OutputRecord):
                    yield entry, record


def readable(codec: Codec, entry: Entry) -> OutputRecord | Deletion | None:
    """The content of an entry; None if it cannot be read."""
    try:
        return codec.decode(entry.namespace, entry.data)
    except RecordError:
        return None
