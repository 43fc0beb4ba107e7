"""`agentspec corpus add`, `ls` and `rm`: the corpora of a running server."""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import IO
from urllib.parse import quote

from agentspec.analysis.corpus import document_files
from agentspec.cli.options import option, read_key_file, switch
from agentspec.errors import ConfigError, ManagementError
from agentspec.observe.admin_client import AdminClient

ACTIONS = ("add", "ls", "rm")
_MOST_SECONDS = 3600.0
"""For which `add` waits for the server to build a corpus."""


def add_actions(actions: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    add = actions.add_parser("add", help="send documents to a running server, which drafts from them until it ends")
    add.add_argument("name", help="name to list and remove the corpus by")
    add.add_argument("files", nargs="+", type=Path, metavar="PATH", help="a text or JSONL file, or a folder of them")
    switch(add, "--all", "allow all tenants to draft from it")
    option(add, "--tenant NAME", "allow this tenant; may be repeated", action="append", default=[])
    _add_server(add)
    _add_server(actions.add_parser("ls", help="list a running server's corpora"))
    remove = actions.add_parser("rm", help="remove a corpus from a running server")
    remove.add_argument("name")
    _add_server(remove)


def run(args: argparse.Namespace) -> int:
    """Adds, lists or removes corpora. ConfigError, ManagementError and ServerError say what the command line or the
    server lacks."""
    if not args.timeout > 0:
        raise ConfigError(f"--timeout must be > 0 seconds, got {args.timeout}")
    client = AdminClient(
        args.server, api_key=read_key_file("--admin-key-file", args.admin_key_file), timeout=args.timeout
    )
    if args.action == "add":
        return _add(args, client)
    if args.action == "rm":
        removed = client.delete(f"/corpora/{quote(args.name)}")
        print(json.dumps(removed) if args.json else f"removed {args.name}")
        return 0
    listed = client.get("/corpora")
    if args.json:
        print(json.dumps(listed))
        return 0
    for rank in listed.get("ranks", [listed]):
        for corpus in rank["corpora"]:
            to = "all" if corpus["all"] else f"{len(corpus['namespaces'])} namespaces"
            tokens = "?" if corpus["tokens"] is None else corpus["tokens"]
            print(f"{corpus['name']:<24} {tokens:>12} tokens {corpus['bytes']:>14} bytes  {to}, {corpus['origin']}")
    return 0


def _add(args: argparse.Namespace, client: AdminClient) -> int:
    head = {"name": args.name, "all": args.all, "tenants": args.tenant}
    with tempfile.TemporaryFile() as stream:
        stream.write(json.dumps(head).encode() + b"\n")
        _write_documents(document_files(args.files), stream)
        size = stream.tell()
        stream.seek(0)
        answer = client.upload("/corpora", stream, size)
    # The job has the same id on all ranks.
    job = client.ended(answer.get("ranks", [answer])[0]["job"]["id"], _MOST_SECONDS)
    if job["state"] != "done":
        raise ManagementError(f"the corpus was not added: its job is {job['state']}: {job['error']}")
    result = job["result"]
    skipped = f", {result['skipped']} documents skipped" if result["skipped"] else ""
    told = f"added {result['name']}: {result['documents']} documents, {result['tokens']} tokens{skipped}"
    print(json.dumps(job) if args.json else told)
    return 0


def _write_documents(files: Iterable[Path], stream: IO[bytes]) -> None:
    for file in files:
        if file.suffix == ".jsonl":
            with file.open("rb") as lines:
                for line in lines:
                    stream.write(line.rstrip(b"\r\n") + b"\n")
            continue
        try:
            text = file.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            raise ConfigError(
                f"{file} is no UTF-8 text; send text and JSONL files, or build a corpus with `agentspec corpus build`"
            ) from None
        stream.write(json.dumps({"text": text}).encode() + b"\n")


def _add_server(parser: argparse.ArgumentParser) -> None:
    option(parser, "--server URL", "http://HOST:PORT of the server", required=True)
    option(parser, "--admin-key-file FILE", "file with the key of the server's --admin-api-key", type=Path)
    option(parser, "--timeout S", "seconds to wait for an answer (default 60)", type=float, default=60.0)
    switch(parser, "--json", "print the answer as JSON")
