"""`agentspec store`: inspects, fills, empties and checks a store."""

from __future__ import annotations

import argparse
import importlib
import os
import sys

# action -> (module with `add_arguments(parser)` and `run(args) -> exit status`, help line)
ACTIONS = {
    "info": ("agentspec.store.cli.info", "what the store is, and how much it holds of each model"),
    "ls": ("agentspec.store.cli.ls", "the namespaces of a model, or their requests"),
    "import": ("agentspec.store.cli.imports", "add outputs from chat logs, traces and exported files"),
    "export": ("agentspec.store.cli.export", "write outputs as JSONL"),
    "delete": (
        "agentspec.store.cli.delete",
        "delete a tenant's, a request's, old or all outputs, here and in live servers",
    ),
    "compact": ("agentspec.store.cli.compact", "remove duplicate records and return free space to the system"),
    "verify": ("agentspec.store.cli.verify", "read everything and report what is damaged, newer or foreign"),
    "acl": ("agentspec.store.cli.acl", "print the command that gives a Redis user just the rights it needs"),
    "genkey": ("agentspec.store.cli.genkey", "write a new key file"),
}

_ENVIRONMENT = """\
Variables, where the option is not given, as for servers: AGENTSPEC_STORE (the URL); AGENTSPEC_STORE_PASSWORD_FILE,
AGENTSPEC_STORE_KEY_FILE and AGENTSPEC_NAMESPACE_KEY_FILE, or without _FILE the password and the keys themselves. Exit
status: 0, 1 where `verify` found faults, 2 for an error."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = _ENVIRONMENT
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    for name, (module, help_line) in ACTIONS.items():
        action = actions.add_parser(name, help=help_line, description=help_line, epilog=_ENVIRONMENT)
        importlib.import_module(module).add_arguments(action)


def run(args: argparse.Namespace) -> int:
    """Runs one action; returns its exit status. Raises ConfigError if an argument is wrong or missing;
    StoreError if the store answers with an error, or not at all."""
    try:
        return int(importlib.import_module(ACTIONS[args.action][0]).run(args))
    except BrokenPipeError:
        # The reader closed the pipe. Python must not try to flush the rest of the buffer again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
