"""`agentspec doctor`: finds what is wrong with a server, a log or a store, what it means, and what to do."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
import time
from pathlib import Path

from agentspec.analysis.logs.account import Account
from agentspec.analysis.replay import check_session, load_tokenizer
from agentspec.analysis.replay.tokenizer import tokenizer_path
from agentspec.analysis.replay.traces import read_sessions
from agentspec.cli.options import add_server_options, client, option
from agentspec.errors import ConfigError
from agentspec.fingerprint import fingerprint
from agentspec.observe.counts import change
from agentspec.observe.findings import Finding, Severity, as_text, exit_status, worst_first
from agentspec.observe.log_checks import check_sessions
from agentspec.observe.server_checks import check_rank, check_server, of_rank
from agentspec.observe.templates import Render, chat_template
from agentspec.progress import Progress
from agentspec.record_file import write_json

_SQLITE = b"SQLite format 3\0"
_FILES = (".jsonl", ".json", ".xz", ".gz", ".sqlite3")
_STORES = ("sqlite", "redis", "rediss", "valkey", "valkeys", "unix")
_MOST_LINES = 2000

_EPILOG = """\
For a running server it checks whether agentspec is active, whether drafts are found and why not, the controller, the draft
model, the store, namespaces and line ends. For a log (chat logs and traces, as `agentspec replay` reads them) it shows how
much repeats and CRLF lines, and with --tokenizer FOLDER how the chat template changes answers. For a store it shows how much
repeats in each namespace, and records that cannot be read. It never shows texts. Exit status: 0, 1 if a finding is an error, 2 if the target could not be examined."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "target",
        metavar="URL|PATH",
        help="a running server (http://HOST:PORT), a log file (.jsonl, .jsonl.xz, .jsonl.gz), a store's SQLite file, or a "
        "store's URL (redis://...)",
    )
    text = "for a server: examine this number of seconds from now on, instead of all since its start"
    option(parser, "--seconds S", text, type=float, default=0.0)
    text = (
        "the served model's folder, or its tokenizer's file, to compare with the server's or to read logs (default for "
        "logs: mistral_common's newest tekken)"
    )
    option(parser, "--tokenizer PATH", text, type=Path)
    option(parser, "--lines N", "for a log: its last N lines (default %(default)s)", type=int, default=_MOST_LINES)
    option(parser, "--key-file FILE", "for a store: file with the key of encrypted values", type=Path)
    option(parser, "--password-file FILE", "for a store: file with a Redis server's password", type=Path)
    option(parser, "--json FILE", "write the findings to FILE too", type=Path)
    add_server_options(parser)
    parser.epilog = _EPILOG


def run(args: argparse.Namespace) -> int:
    """Prints the findings and returns the exit status.

    Raises:
        ConfigError: An argument is wrong, or the target is neither a server, a log nor a store.
        ServerError: Nothing answers, or it is not an SGLang server.
        StoreError: The store cannot be opened.
    """
    if args.seconds < 0 or args.lines < 1:
        raise ConfigError(f"--seconds must be >= 0 and --lines >= 1, got {args.seconds} and {args.lines}")
    if args.tokenizer is not None:
        tokenizer_path(args.tokenizer)
    findings = worst_first(_look(args))
    print(as_text(findings))
    write_json(args.json, {"findings": [of.as_dict() for of in findings]})
    return exit_status(findings)


def _look(args: argparse.Namespace) -> list[Finding]:
    path = Path(args.target)
    if path.is_file():
        with path.open("rb") as file:
            is_store = file.read(len(_SQLITE)) == _SQLITE
        return _store(args, f"sqlite:///{path.absolute()}") if is_store else _log(args, path)
    scheme, separator, _ = args.target.partition("://")
    if separator and scheme.split("-")[0] in _STORES:
        return _store(args, args.target)
    if not separator and (path.exists() or os.sep in args.target or path.suffix in _FILES):
        raise ConfigError(f"{args.target} is no file; pass a log, a store's SQLite file, or a server's URL")
    return _server(args)


def _server(args: argparse.Namespace) -> list[Finding]:
    asked = client(args.target, args)
    state, earlier = asked.state(), None
    if args.seconds:
        print(f"watching for {args.seconds:g} s", file=sys.stderr)
        time.sleep(args.seconds)
        earlier, state = state, asked.state()
    findings = check_server(state, asked.metrics())
    expected = fingerprint(tokenizer_path(args.tokenizer)) if args.tokenizer is not None else ""
    for rank, block in enumerate(state.ranks):
        if block is None:
            continue
        then = earlier.ranks[rank] if earlier is not None and rank < len(earlier.ranks) else None
        changed = change(block, then, args.seconds)
        found = check_rank(block, changed, expected_tokenizer=expected)
        if changed.restarted:
            found.append(Finding(severity=Severity.INFO, name="restart", seen="the server was started anew meanwhile"))
        findings += of_rank(found, rank) if len(state.ranks) > 1 else found
    return findings


def _store(args: argparse.Namespace, url: str) -> list[Finding]:
    # The command line knows stores by name only, so that their code is loaded only for a store.
    options = importlib.import_module("agentspec.store.cli.options")
    secrets = importlib.import_module("agentspec.store.secrets")
    inspection = importlib.import_module("agentspec.store.inspection")
    place = options.chosen_place(args, url)
    key = secrets.read_key(args.key_file, secrets.STORE_KEY_VARIABLE)
    tokenizer, name = None, ""
    if args.tokenizer is not None:
        tokenizer, name = load_tokenizer(args.tokenizer), fingerprint(tokenizer_path(args.tokenizer))
    with Progress("reading the store", 1) as progress:
        findings: list[Finding] = inspection.check_store(
            place, key, tokenizer, name, lambda done: progress.update(done, "entries")
        )
    return findings


def _log(args: argparse.Namespace, path: Path) -> list[Finding]:
    bad: list[str] = []
    account = Account()
    sessions = [check_session(session, account) for session in read_sessions(path, bad, args.lines)]
    return check_sessions(sessions, bad, account, load_tokenizer(args.tokenizer), _template(args.tokenizer))


def _template(path: Path | None) -> Render | None:
    """The chat template; None unless --tokenizer is a model's folder with one."""
    return chat_template(path) if path is not None and path.is_dir() else None
