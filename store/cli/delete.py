"""`agentspec store delete`."""

from __future__ import annotations

import argparse
import re
import sys
import time
from dataclasses import asdict

from agentspec.errors import ConfigError
from agentspec.observe.view import size
from agentspec.store.cli.options import (
    OpenStore,
    add_namespace_options,
    add_scope_options,
    add_store_options,
    chosen_namespace,
    chosen_place,
    opened,
)
from agentspec.store.cli.output import as_time, show
from agentspec.store.records import ANY_NAMESPACE
from agentspec.store.replication.deletion import Deleted, delete_namespaces, delete_older, delete_request

_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
# Running replicas read within this time what to forget. Deleting the scope also deletes the log that tells them.
_FORGET_SECONDS = 1.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Deletes outputs from the log and the snapshots, and tells the servers that share the store to forget them. "
        "--tenant or --namespace alone deletes all outputs of that namespace; with --request or --older-than, only the "
        "outputs that match both."
    )
    add_store_options(parser)
    add_scope_options(parser)
    add_namespace_options(parser)
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--request", metavar="ID", help="the outputs of the request of that id")
    what.add_argument("--older-than", metavar="AGE", help="outputs older than AGE: 90s, 30m, 12h, 30d, 2w")
    what.add_argument(
        "--scope", action="store_true", help="everything of the model, and the model itself; stop its servers first"
    )
    parser.add_argument("--yes", action="store_true", help="do not ask")


def run(args: argparse.Namespace) -> int:
    namespace = chosen_namespace(args)
    if args.scope and namespace is not None:
        raise ConfigError("--scope deletes all tenants; leave out --tenant and --namespace")
    if namespace is None and not args.scope and args.request is None and args.older_than is None:
        raise ConfigError("nothing to delete is named; pass --tenant, --namespace, --request, --older-than or --scope")
    age = None if args.older_than is None else _age(args.older_than)
    with opened(args) as opening:
        # Whole namespaces can be deleted without a key.
        if opening.codec.has_key or args.request is not None or age is not None:
            opening.check_key()
        before = time.time() - (age or 0.0)
        if not args.yes:
            _confirm(args, opening, namespace, before)
        # Servers went on while the question waited for its answer.
        now = time.time()
        deleted = _delete(args, opening, namespace, now, now if age is None else before)
    if args.scope:
        _delete_scope(args, opening, deleted)
    show({"store": opening.store.url, "model": opening.store.scope.model, **asdict(deleted)}, args.json)
    return 0


def _delete(args: argparse.Namespace, opening: OpenStore, namespace: str | None, now: float, before: float) -> Deleted:
    store, codec = opening.store, opening.codec
    if args.request is not None:
        return delete_request(store, codec, ANY_NAMESPACE if namespace is None else namespace, args.request, now)
    namespaces = [info.namespace for info in opening.infos(None)] if namespace is None else [namespace]
    if args.older_than is not None:
        return delete_older(store, codec, namespaces, before, now)
    return delete_namespaces(store, codec, namespaces, now)


def _delete_scope(args: argparse.Namespace, opening: OpenStore, deleted: Deleted) -> None:
    if deleted.namespaces:
        time.sleep(_FORGET_SECONDS)
    chosen_place(args).delete_scope(opening.store.scope)


def _confirm(args: argparse.Namespace, opening: OpenStore, namespace: str | None, before: float) -> None:
    """Raises ConfigError unless the user at the terminal agrees."""
    if not sys.stdin.isatty():
        raise ConfigError("deleting needs a confirmation, and there is no terminal to ask on; pass --yes")
    infos = opening.infos(namespace)
    held = f"{sum(info.num_entries for info in infos)} entries, {size(sum(info.log_bytes for info in infos))}"
    what = f"everything of the model {opening.store.scope.model}"
    if args.request is not None:
        what = f"the outputs of request {args.request!r}"
    elif args.older_than is not None:
        what = f"what was finished before {as_time(before)} UTC"
    elif namespace is not None:
        what = "everything"
    of = f"namespace {namespace}" if namespace else f"{len(infos)} namespaces"
    print(
        f"Delete {what} of {of} ({held}) in {opening.store.url}, here and in live servers? [y/N] ",
        end="",
        file=sys.stderr,
        flush=True,
    )
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise ConfigError("nothing was deleted")


def _age(text: str) -> float:
    match = re.fullmatch(r"(\d{1,9}(?:\.\d{1,9})?)([smhdw])", text)
    if match is None:
        raise ConfigError(f"--older-than must be a number and one of s, m, h, d, w, got {text!r}; for example 30d")
    return float(match[1]) * _SECONDS[match[2]]
