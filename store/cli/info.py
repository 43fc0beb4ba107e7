"""`agentspec store info`."""

from __future__ import annotations

import argparse
import json
from contextlib import closing
from dataclasses import asdict

from agentspec.observe.view import size
from agentspec.store.base import StoreInfo
from agentspec.store.cli.options import add_store_options, chosen_place
from agentspec.store.cli.output import as_time, show, show_table


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_store_options(parser)


def run(args: argparse.Namespace) -> int:
    place = chosen_place(args)
    url = place.url
    about: StoreInfo | None = None
    models: list[dict[str, object]] = []
    rows: list[tuple[object, ...]] = []
    for scope in sorted(place.scopes(), key=lambda scope: scope.model):
        with closing(place.open(scope, create=False)) as store:
            about = store.info()
            infos = list(store.namespaces())
        entries = sum(info.num_entries for info in infos)
        log_bytes = sum(info.log_bytes for info in infos)
        snapshot_bytes = sum(info.snapshot_bytes for info in infos)
        newest = max((info.last_time for info in infos), default=0.0)
        models.append(
            {
                "model": scope.model,
                "tokenizer": scope.tokenizer,
                "scope": scope.id,
                "namespaces": len(infos),
                "entries": entries,
                "log_bytes": log_bytes,
                "snapshot_bytes": snapshot_bytes,
                "newest": newest,
            }
        )
        sizes = size(log_bytes), size(snapshot_bytes)
        rows.append((scope.model, scope.tokenizer[:12], len(infos), entries, *sizes, as_time(newest)))
    if args.json:
        print(json.dumps({"url": url, **(asdict(about) if about else {}), "models": models}))
        return 0
    if about is None:
        print(f"nothing is stored in {url} yet")
        return 0
    limit = size(about.limit_bytes) if about.limit_bytes else "none"
    show(
        {"url": url, "store": f"{about.kind}, {about.server}", "size": size(about.used_bytes), "limit": limit},
        False,
    )
    print()
    show_table(("model", "tokenizer", "namespaces", "entries", "log", "snapshots", "newest"), rows)
    return 0
