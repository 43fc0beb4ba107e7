"""`agentspec serve`: an SGLang server with agentspec, on a GPU or on any CPU."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence

from agentspec.integrations.servers.launch import launch_command
from agentspec.integrations.sglang.arguments import ALGORITHM


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", required=True, metavar="PATH", help="folder or name of the model to serve")
    parser.add_argument(
        "--speculative-algorithm",
        default=ALGORITHM,
        metavar="NAME",
        help=f"none for plain decoding, or any algorithm of SGLang (default {ALGORITHM})",
    )
    parser.add_argument(
        "--emulate",
        metavar="NAME|FILE",
        help="serve with an emulated GPU on this CPU: h200-8b, h200-32b or a file of step times. Requests bring their "
        "answers (custom_params.agentspec.replay.ids), and the model computes nothing. With EMULATED_DEVICE_TRACE=FILE the "
        "scheduler writes a Chrome trace. EMULATED_DEVICE_CLOCK=thread leaves out the time of other processes",
    )
    parser.epilog = "All other arguments go to SGLang unchanged, --agentspec-* included."


def run(args: argparse.Namespace, rest: Sequence[str]) -> int:
    """Replaces this process by the server, so it never returns. Raises ConfigError if there is no such model."""
    command, variables = launch_command(args.model, args.speculative_algorithm, rest, emulate=args.emulate)
    os.execve(command[0], command, {**os.environ, **variables})
