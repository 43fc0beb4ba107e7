"""`agentspec store genkey`."""

from __future__ import annotations

import argparse
from pathlib import Path

from agentspec.store.cli.output import show
from agentspec.store.secrets import write_key


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", type=Path, metavar="FILE", help="a new file, which its owner alone may read")
    parser.add_argument("--json", action="store_true", help="print what was done as JSON")


def run(args: argparse.Namespace) -> int:
    write_key(args.file)
    show({"key": str(args.file)}, args.json)
    return 0
