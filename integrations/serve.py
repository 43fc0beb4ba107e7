"""`agentspec serve`: an SGLang server with agentspec, on a GPU or on any CPU."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from agentspec.errors import ConfigError
from agentspec.integrations.emulated_device import setting as emulated_device
from agentspec.integrations.sglang.compat import ALGORITHM
from agentspec.integrations.sglang_cpu import activate, environment

# What SGLang's CPU path needs to be told, and float32 because a CPU without AMX is no faster in bfloat16.
_CPU_DEFAULTS: dict[str, str | None] = {
    "--device": "cpu",
    "--dtype": "float32",
    "--mem-fraction-static": "0.5",
    "--max-total-tokens": "32768",
    "--max-running-requests": "16",
    # An idle scheduler would otherwise poll on a whole core.
    "--sleep-on-idle": None,
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", required=True, metavar="PATH", help="folder or name of the model to serve")
    parser.add_argument(
        "--speculative-algorithm",
        default=ALGORITHM,
        metavar="NAME",
        help=f"default {ALGORITHM}; none for plain decoding, or any other that SGLang knows",
    )
    parser.add_argument(
        "--emulate",
        metavar="NAME|FILE",
        help="serve with an emulated GPU on this CPU: h200-8b, h200-32b or a file of step times. Requests bring their "
        "answers (custom_params.agentspec.replay.ids), and the model computes nothing. With EMULATED_DEVICE_TRACE=FILE the "
        "scheduler writes a Chrome trace; EMULATED_DEVICE_CLOCK=thread leaves out what other processes take",
    )
    parser.epilog = "Every other argument goes to SGLang as it is, --agentspec-* among them."


def run(args: argparse.Namespace, rest: Sequence[str]) -> int:
    """Replaces this process by the server. Returns only by raising: ConfigError for a model that is not there."""
    command, variables = launch_command(args.model, args.speculative_algorithm, rest, emulate=args.emulate)
    os.execve(command[0], command, {**os.environ, **variables})


def launch_command(
    model: str, algorithm: str, rest: Sequence[str], python: str = sys.executable, emulate: str | None = None
) -> tuple[list[str], dict[str, str]]:
    """The command line of the server, and the variables to add to its environment.

    Args:
        model: a folder with a Hugging Face model, or a name for SGLang to find.
        algorithm: as for --speculative-algorithm; "none" for plain decoding.
        rest: arguments for SGLang; what is given here wins over the defaults for a CPU.
        python: the interpreter of the environment that holds SGLang and agentspec.
        emulate: the device to emulate, or a file of step times; None: the server computes.

    Raises:
        ConfigError: `model` is a path and nothing is there, or it holds no model; there is no such device.
    """
    _check_model(model)
    if emulate is not None:
        rest = [*rest, *emulated_device.arguments(model, rest)]
    # -P: the folder this is called from must not shadow installed packages.
    command = [python, "-P", "-m", "sglang.launch_server", "--model-path", model]
    if algorithm.lower() != "none":
        command += ["--speculative-algorithm", algorithm]
    # SGLang builds some kernels at start with the ninja that is installed beside the interpreter.
    folders = dict.fromkeys(str(Path(name).parent) for name in (python, sys.executable))
    variables = {"PATH": os.pathsep.join([*folders, os.environ.get("PATH", "")])}
    if activate():
        variables |= environment()
        given = {argument.partition("=")[0] for argument in rest}
        for flag, value in _CPU_DEFAULTS.items():
            if flag not in given:
                command += [flag] if value is None else [flag, value]
        if emulate is not None:
            variables |= emulated_device.environment(emulate, variables)
    elif emulate is not None:
        raise ConfigError("--emulate needs a machine without a GPU, on which SGLang runs with agentspec's CPU kernels")
    return [*command, *rest], variables


def _check_model(model: str) -> None:
    path = Path(model)
    looks_like_a_path = path.is_absolute() or model.startswith((".", "~")) or path.exists()
    if looks_like_a_path and not path.is_dir():
        raise ConfigError(f"--model must be a folder with a model, got {model!r}: there is no such folder")
    if looks_like_a_path and not (path / "config.json").is_file():
        raise ConfigError(f"--model must be a folder with a model, got {model!r}: it holds no config.json")
