"""`agentspec store ls`."""

from __future__ import annotations

import argparse
import json

from agentspec.errors import RecordError
from agentspec.observe.view import size
from agentspec.store.base import NamespaceInfo
from agentspec.store.cli.logs import read_outputs
from agentspec.store.cli.options import (
    OpenStore,
    add_namespace_options,
    add_scope_options,
    add_store_options,
    chosen_namespace,
    opened,
)
from agentspec.store.cli.output import as_time, show_table


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_store_options(parser)
    add_scope_options(parser)
    add_namespace_options(parser)
    parser.add_argument(
        "--requests", action="store_true", help="list the requests in the logs: id, time and tokens, never text"
    )


def run(args: argparse.Namespace) -> int:
    namespace = chosen_namespace(args)
    with opened(args) as opening:
        infos = opening.infos(namespace)
        return (_requests if args.requests else _namespaces)(opening, infos, args.json)


def _namespaces(opening: OpenStore, infos: list[NamespaceInfo], as_json: bool) -> int:
    listed: list[dict[str, object]] = []
    rows: list[tuple[object, ...]] = []
    for info in infos:
        segments = _num_segments(opening, info.namespace)
        listed.append(
            {
                "namespace": info.namespace,
                "entries": info.num_entries,
                "log_bytes": info.log_bytes,
                "snapshot_bytes": info.snapshot_bytes,
                "segments": segments,
                "newest": info.last_time,
            }
        )
        sizes = size(info.log_bytes), size(info.snapshot_bytes)
        shown = "?" if segments is None else segments
        rows.append((info.namespace, info.num_entries, *sizes, shown, as_time(info.last_time)))
    if as_json:
        print(json.dumps({"model": opening.store.scope.model, "namespaces": listed}))
    else:
        show_table(("namespace", "entries", "log", "snapshot", "segments", "newest"), rows)
    return 0


def _num_segments(opening: OpenStore, namespace: str) -> int | None:
    """The number of segments in the manifest; None if the manifest cannot be read."""
    data = opening.store.manifest(namespace)
    if data is None:
        return 0
    try:
        return len(opening.codec.decode_manifest(namespace, data).segments)
    except RecordError:
        return None


def _requests(opening: OpenStore, infos: list[NamespaceInfo], as_json: bool) -> int:
    listed: list[dict[str, object]] = []
    rows: list[tuple[object, ...]] = []
    for entry, record in read_outputs(opening.store, opening.codec, infos, "reading"):
        num_tokens = len(record.tokens) - record.num_prompt_tail
        listed.append(
            {
                "namespace": entry.namespace,
                "request_id": record.request_id,
                "time": record.time,
                "num_tokens": num_tokens,
            }
        )
        rows.append((record.request_id, entry.namespace, num_tokens, as_time(record.time)))
    if as_json:
        print(json.dumps({"model": opening.store.scope.model, "requests": listed}))
    else:
        show_table(("request", "namespace", "tokens", "finished"), rows)
    return 0
