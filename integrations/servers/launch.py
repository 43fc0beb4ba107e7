"""The command line that starts an SGLang server with agentspec, on a GPU, on any CPU or on an emulated device."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from agentspec.errors import ConfigError
from agentspec.integrations.emulated_device import setting as emulated_device
from agentspec.integrations.sglang_cpu import activate, environment

# Flags that SGLang's CPU path needs. float32, because a CPU without AMX is no faster in bfloat16.
_CPU_DEFAULTS: dict[str, str | None] = {
    "--device": "cpu",
    "--dtype": "float32",
    "--mem-fraction-static": "0.5",
    "--max-total-tokens": "32768",
    "--max-running-requests": "16",
    # An idle scheduler would otherwise poll on a whole core.
    "--sleep-on-idle": None,
}


def launch_command(
    model: str, algorithm: str, rest: Sequence[str], python: str = sys.executable, emulate: str | None = None
) -> tuple[list[str], dict[str, str]]:
    """The command line of the server, and the variables to add to its environment. Raises ConfigError if `model` is a
    path and nothing is there, or it holds no model; there is no such device.

    Args:
        model: a folder with a Hugging Face model, or a name for SGLang to find.
        algorithm: as for --speculative-algorithm; "none" for plain decoding.
        rest: arguments for SGLang; what is given here wins over the defaults for a CPU.
        python: the interpreter of the environment that holds SGLang and agentspec.
        emulate: the device to emulate, or a file of step times; None: the server computes.
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
