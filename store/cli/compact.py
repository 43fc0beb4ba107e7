"""`agentspec store compact`."""

from __future__ import annotations

import argparse

from agentspec.store.base import Entry
from agentspec.store.cli.logs import read_outputs
from agentspec.store.cli.options import add_scope_options, add_store_options, opened
from agentspec.store.cli.output import show


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Removes records that a retried append has written to a log twice, and returns the space of removed records to "
        "the system."
    )
    add_store_options(parser)
    add_scope_options(parser)


def run(args: argparse.Namespace) -> int:
    with opened(args) as opening:
        store = opening.store
        before = store.info().used_bytes
        seen: set[tuple[str, int]] = set()
        twice: dict[str, list[str]] = {}
        entry: Entry
        for entry, record in read_outputs(store, opening.codec, opening.infos(None), "looking for duplicates"):
            key = (entry.namespace, record.output_id)
            if key in seen:
                twice.setdefault(entry.namespace, []).append(entry.position)
            seen.add(key)
        removed = sum(store.remove(namespace, positions) for namespace, positions in twice.items())
        store.compact()
        after = store.info().used_bytes
    show({"store": store.url, "duplicates": removed, "bytes_before": before, "bytes_after": after}, args.json)
    return 0
