"""`agentspec report`: tells from a service's logs, without a model, whether suffix drafts suit its outputs."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from agentspec.analysis.replay import load_tokenizer
from agentspec.analysis.report import ReportConfig, report_facts, summary
from agentspec.cli.options import add_tokenizer, option
from agentspec.errors import ConfigError
from agentspec.simulation import BUILT_IN_PROFILES

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
    option(
        parser,
        "--profile NAME|FILE",
        f"step times: a file of `agentspec profile`, or one of {', '.join(BUILT_IN_PROFILES)}; may be "
        "repeated; the verdict and its flags are for the device of the first one (default smartspec-a100-7b, a GPU)",
        action="append",
    )
    option(parser, "--concurrency LIST", "clients to predict speed-ups for (default %(default)s)", default="1,8,64")
    option(
        parser, "--memory-mb MB", "memory limit; a larger log is sampled (default %(default)s)", type=int, default=1024
    )
    option(
        parser,
        "--seconds S",
        "the most time that the report may take; as many outputs are replayed, in parts if they are long, as it "
        "allows (default %(default)g)",
        type=float,
        default=60.0,
    )
    option(parser, "--replay N", "replay exactly N outputs, to repeat a report, whatever time that takes", type=int)
    option(parser, "--seed S", "seed of all draws (default %(default)s)", type=int, default=0)
    option(parser, "--model PATH", "the served model, for the verdict's command")


def run(args: argparse.Namespace) -> int:
    """Reads the logs and prints the verdict. Raises ConfigError if an argument is out of range, or nothing
    could be read."""
    for name, file in (("--out", args.out), ("--json", args.json)):
        if file is not None and not file.parent.is_dir():
            raise ConfigError(f"{name} must lie in a folder that exists, got {file}; make {file.parent} first")
    config = ReportConfig(
        profiles=tuple(args.profile or ["smartspec-a100-7b"]),
        concurrency=_concurrency(args.concurrency),
        memory_mb=args.memory_mb,
        seconds=args.seconds,
        replay=args.replay,
        seed=args.seed,
        model=_model(args),
        command=_command(args),
    )
    tokenizer = load_tokenizer(args.tokenizer)
    facts = report_facts(args.paths, tokenizer, config)
    if args.json:
        args.json.write_text(json.dumps(facts, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    if args.out:
        from agentspec.analysis.report.page import page

        args.out.write_text(page(facts), encoding="utf-8")
    try:
        print(summary(facts))
    except UnicodeEncodeError:
        encoding = sys.stdout.encoding or "ascii"
        print(summary(facts).encode(encoding, "replace").decode(encoding))
    return 0


def _concurrency(text: str) -> tuple[int, ...]:
    try:
        return tuple(sorted({int(word) for word in text.split(",")}))
    except ValueError:
        raise ConfigError(f"--concurrency must be a list of numbers such as 1,8,64, got {text!r}") from None


def _model(args: argparse.Namespace) -> str:
    """The named model, the name of the tokenizer's folder, or a placeholder."""
    if args.model:
        return str(args.model)
    folder = Path(args.tokenizer) if args.tokenizer else None
    return folder.name if folder is not None and folder.is_dir() else "MODEL"


def _command(args: argparse.Namespace) -> str:
    """The command with files by their names alone, because folders' names may be private."""
    words = ["agentspec report", *(path.name for path in args.paths)]
    if args.tokenizer:
        words.append(f"--tokenizer {Path(args.tokenizer).name}")
    words += [f"--profile {Path(name).name}" for name in args.profile or []]
    if args.concurrency != "1,8,64":
        words.append(f"--concurrency {args.concurrency}")
    if args.memory_mb != 1024:
        words.append(f"--memory-mb {args.memory_mb}")
    if args.seconds != 60.0:
        words.append(f"--seconds {args.seconds:g}")
    if args.replay is not None:
        words.append(f"--replay {args.replay}")
    if args.seed:
        words.append(f"--seed {args.seed}")
    return " ".join(words)
