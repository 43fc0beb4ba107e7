"""The command `agentspec`. Each subcommand is a module, imported when it is called."""

from __future__ import annotations

import argparse
import importlib
import os
import signal
import sys
from collections.abc import Sequence
from importlib.metadata import version
from types import FrameType

from agentspec.errors import AgentspecError, ConfigError
from agentspec.installation import DISTRIBUTION

# name -> (module that holds `add_arguments(parser)` and `run(args) -> exit status`, help line)
COMMANDS = {
    "serve": ("agentspec.cli.serve", "start an SGLang server with agentspec on a GPU or a CPU"),
    "settings": ("agentspec.cli.settings", "list the settings of the SGLang plugin"),
    "demo": ("agentspec.evals.run.demo", "compare plain SGLang, NGRAM and agentspec on the same text-to-SQL requests"),
    "bench": ("agentspec.evals.bench", "measure time and memory of the engine, of its peers and of the store"),
    "eval": ("agentspec.evals.run.eval", "compare systems on real servers with whole tasks"),
    "eval-page": ("agentspec.evals.page.page", "write the page of results from the result files"),
    "top": ("agentspec.cli.top", "watch what a running server drafts, verifies and keeps"),
    "doctor": (
        "agentspec.cli.doctor",
        "find out why a running server drafts little, or how much recorded requests promise",
    ),
    "corpus": ("agentspec.cli.corpus", "build a datastore that servers draft from besides their own outputs"),
    "store": ("agentspec.store.cli.main", "show, fill, empty and check the store of learnt outputs"),
    "tune": ("agentspec.cli.tune", "fit the estimates of acceptance to recorded outputs"),
    "profile": ("agentspec.cli.profile", "measure how long decode steps take, for controllers and simulations"),
    "report": ("agentspec.cli.report", "tell from a service's logs whether suffix drafts suit its outputs"),
    "ab": ("agentspec.ab.main", "run the same work on two servers in turns and tell how they differ"),
    "simulate": (
        "agentspec.cli.simulate",
        "compare controllers on recorded or synthetic requests, on an event clock without a model",
    ),
    "replay": ("agentspec.cli.replay", "measure the accepted tokens of drafters on recorded outputs, without a model"),
}

# Commands whose run() takes the arguments that it does not know too, because SGLang may know them.
_FOR_SGLANG = ("serve", "profile", "tune", "bench")


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit status. None: the arguments of the process. An AgentspecError is printed as
    one line."""
    if argv is None:
        exit_on_sigterm()
    argv = list(sys.argv[1:] if argv is None else argv)
    parser = argparse.ArgumentParser(prog="agentspec", description="Suffix speculative decoding for agents on SGLang.")
    parser.add_argument("--version", action="version", version=f"agentspec {version(DISTRIBUTION)}")
    chosen = next((word for word in argv if not word.startswith("-")), None)
    try:
        status = _run(parser, argv, chosen)
        sys.stdout.flush()
        return status
    except KeyboardInterrupt:
        print(f"agentspec {chosen}: stopped", file=sys.stderr)
        return 128 + signal.SIGINT
    except BrokenPipeError:
        # Whoever read the output has closed it, as `head` does. What is left in the buffer goes nowhere.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing in ("", "agentspec"):
            raise
        print(f"agentspec {chosen}: the Python package {missing} must be installed, and it is not", file=sys.stderr)
        return 2


def _run(parser: argparse.ArgumentParser, argv: list[str], chosen: str | None) -> int:
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, (module, help_line) in COMMANDS.items():
        subparser = commands.add_parser(name, help=help_line, description=help_line)
        if name == chosen:
            importlib.import_module(module).add_arguments(subparser)
    args, rest = parser.parse_known_args(argv)
    command = importlib.import_module(COMMANDS[args.command][0])
    try:
        if args.command in _FOR_SGLANG:
            return int(command.run(args, rest))
        if rest:
            raise ConfigError(f"unknown arguments {' '.join(rest)}; see {parser.prog} {args.command} --help")
        return int(command.run(args))
    except AgentspecError as error:
        print(f"agentspec {args.command}: {error}", file=sys.stderr)
        return 2


def exit_on_sigterm() -> None:
    """Makes SIGTERM raise SystemExit in the main thread, with the status that shells give. Open servers are then
    stopped, and files are complete. Only commands may call it, once, in the main thread."""
    signal.signal(signal.SIGTERM, _exit)


def _exit(number: int, frame: FrameType | None) -> None:
    del frame
    raise SystemExit(128 + number)
