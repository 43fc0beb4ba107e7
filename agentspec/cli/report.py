"""`agentspec report`: tells from a service's logs, without a model, whether suffix drafts suit its outputs."""

from __future__ import annotations

import argparse
import shlex
import sys
from pathlib import Path

from agentspec.analysis.replay import load_tokenizer
from agentspec.analysis.report import ReportConfig, report_facts, summary
from agentspec.cli.options import add_tokenizer, numbers, option
from agentspec.environment import command_line
from agentspec.errors import ConfigError
from agentspec.record_file import write_json
from agentspec.simulation import BUILT_IN_PROFILES

_MODEL = "MODEL"
_DESCRIPTION = (
    "Reads logs of model servers and gateways, traces of Langfuse, LangSmith and OpenTelemetry, sessions of coding agents, "
    "data sets of chats, exported tokens and plain text, compressed or not. Tells how much repeats, how many drafted "
    "tokens would be accepted, the speed-up, the flags to serve with, and what of the log was not understood."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = _DESCRIPTION
    add = parser.add_argument
    add("paths", nargs="+", type=Path, metavar="PATH", help="a log, or a folder with logs; formats are recognized")
    add_tokenizer(parser)
    option(parser, "--out FILE", "write the report as one HTML page", type=Path)
    option(parser, "--json FILE", "write the facts as JSON", type=Path)
    text = (
        f"step times: a file of `agentspec profile`, or one of {', '.join(BUILT_IN_PROFILES)}; may be "
        "repeated; the verdict and its flags are for the device of the first one (default smartspec-a100-7b, a GPU)"
    )
    option(parser, "--profile NAME|FILE", text, action="append")
    clients = "clients to predict speed-ups for (default 1,8,64)"
    option(parser, "--concurrency LIST", clients, type=numbers, default=(1, 8, 64))
    option(
        parser, "--memory-mb MB", "memory limit; a larger log is sampled (default %(default)s)", type=int, default=1024
    )
    text = (
        "the most time that the report may take; as many outputs are replayed, in parts if they are long, as it "
        "allows (default %(default)g)"
    )
    option(parser, "--seconds S", text, type=float, default=60.0)
    option(parser, "--replay N", "replay exactly N outputs, to repeat a report, whatever time that takes", type=int)
    option(parser, "--seed S", "seed of all draws (default %(default)s)", type=int, default=0)
    option(parser, "--model PATH", "the served model, for the verdict's command")


def run(args: argparse.Namespace) -> int:
    """Reads the logs and prints the verdict. Raises ConfigError if an argument is out of range, or nothing
    could be read."""
    for name, file in (("--out", args.out), ("--json", args.json)):
        if file is not None and (file.is_dir() or not file.parent.is_dir()):
            raise ConfigError(f"{name} must be a file in a folder that exists, got {file}")
        if file is not None and file.resolve() in {path.resolve() for path in args.paths}:
            raise ConfigError(f"{name} must be another file than the log, got {file}")
    config = ReportConfig(
        profiles=tuple(args.profile or ["smartspec-a100-7b"]),
        concurrency=args.concurrency,
        memory_mb=args.memory_mb,
        seconds=args.seconds,
        replay=args.replay,
        seed=args.seed,
        model=args.model or _MODEL,
        command=command_line(),
    )
    tokenizer = load_tokenizer(args.tokenizer)
    facts = report_facts(args.paths, tokenizer, config)
    write_json(args.json, facts)
    if args.out:
        from agentspec.analysis.report.page import page

        try:
            args.out.write_text(page(facts), encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"--out must be a file that can be written, got {args.out}: {error}") from error
    if not args.model and args.tokenizer and Path(args.tokenizer).is_dir():
        # Only here: the names of folders may be private, and pages are passed on.
        verdict = facts["verdict"]
        verdict["command"] = verdict["command"].replace(f" {_MODEL}", f" {shlex.quote(args.tokenizer)}", 1)
    try:
        print(summary(facts))
    except UnicodeEncodeError:
        encoding = sys.stdout.encoding or "ascii"
        print(summary(facts).encode(encoding, "replace").decode(encoding))
    return 0
