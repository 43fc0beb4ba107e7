"""`agentspec bench`: the suites of benches, each with its own arguments."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from agentspec.errors import ConfigError
from agentspec.evals.emulated import bench as bench_emulation
from agentspec.evals.micro import engine as bench_engine
from agentspec.evals.micro import step_cost as bench_step_cost
from agentspec.evals.micro.store import bench as bench_store
from agentspec.evals.parity import bench as bench_parity
from agentspec.evals.report import bench as bench_report
from agentspec.evals.tool_calls import bench as bench_tool_calls

SUITES = {
    "emulation": (
        bench_emulation,
        "whether an emulated device serves as fast as the real model whose step times it has",
    ),
    "engine": (bench_engine, "the engine's time and memory beside those of its peers"),
    "parity": (bench_parity, "whether servers answer as plain SGLang does, token by token"),
    "report": (bench_report, "whether the report's figures hold on recorded sets"),
    "step-cost": (bench_step_cost, "what a decode step costs the host of a GPU, counted on an emulated one"),
    "tool-calls": (bench_tool_calls, "whether streamed tool calls and reasoning are the same whatever a step accepted"),
    "store": (bench_store, "how fast replicas share, and how long a starting server takes"),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    suites = parser.add_subparsers(dest="suite", required=True, metavar="SUITE")
    for name, (suite, help_line) in SUITES.items():
        suite.add_arguments(suites.add_parser(name, help=help_line, description=help_line))


def run(args: argparse.Namespace, rest: Sequence[str]) -> int:
    """Runs the suite.

    Raises:
        ConfigError: The suite takes no further arguments, and there are some.
    """
    if rest and args.suite != "parity":
        raise ConfigError(f"unknown arguments {' '.join(rest)}; see agentspec bench {args.suite} --help")
    args.rest = tuple(rest)
    return int(SUITES[args.suite][0].run(args))
