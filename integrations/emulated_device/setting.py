"""The environment variables that make a server's processes emulate a device, and the arguments of such a server."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from agentspec.errors import ConfigError
from agentspec.integrations.emulated_device.device.clock import Clock, undisturbed
from agentspec.integrations.emulated_device.models.step_times import StepTimes
from agentspec.integrations.sglang.replay.setting import REQUESTS
from agentspec.integrations.sglang.replay.setting import VARIABLE as REPLAY_VARIABLE

VARIABLE = "EMULATED_DEVICE"
"""The name of a device, or the path of a file of step times."""
TRACE_VARIABLE = "EMULATED_DEVICE_TRACE"
"""The file that the scheduler writes a Chrome trace to; unset: none is written."""

CLOCK_VARIABLE = "EMULATED_DEVICE_CLOCK"
"""The clock that measures the host's time. `wall`, the default, is real time. `thread` leaves out the time in which the
scheduler's thread was ready to run but another process had its core, so that other load affects the figures less."""

_SITE = Path(__file__).resolve().parent / "site"
_DEFAULTS: dict[str, str] = {
    "--chunked-prefill-size": "8192",
    "--grammar-backend": "none",
}
_TOKENS, _HOLLOW_TOKENS = 262_144, 2_000_000


def environment(name_or_path: str, variables: Mapping[str, str]) -> dict[str, str]:
    """Variables to add to a server's environment, so that SGLang finds the plugin in each of its processes.
    `name_or_path`: A device or a file of step times. `variables`: other variables to add. Their PYTHONPATH is extended.
    Raises ConfigError if there is no such device and no such file."""
    known = StepTimes.load(name_or_path)
    path = Path(name_or_path)
    paths = [path for path in variables.get("PYTHONPATH", "").split(os.pathsep) if path and path != str(_SITE)]
    return {
        VARIABLE: str(path.resolve()) if path.is_file() else known.name,
        "PYTHONPATH": os.pathsep.join([str(_SITE), *paths]),
        # Requests carry their forced answers, unless the caller's environment says otherwise.
        REPLAY_VARIABLE: os.environ.get(REPLAY_VARIABLE, REQUESTS),
        "SGLANG_CPU_OVERLAP": "on",
    }


def arguments(model: str, rest: Sequence[str]) -> list[str]:
    """Arguments of SGLang that an emulated server needs and `rest` does not have. `model`: the folder of the model.
    Where it holds no weights, none are loaded."""
    given = {argument.partition("=")[0] for argument in rest}
    folder = Path(model)
    hollow = folder.is_dir() and not any(folder.glob("*.safetensors")) and not any(folder.glob("*.bin"))
    wanted = {**_DEFAULTS, "--max-total-tokens": str(_HOLLOW_TOKENS if hollow else _TOKENS)}
    if hollow:
        wanted["--load-format"] = "dummy"
    return [word for flag, value in wanted.items() if flag not in given for word in (flag, value)]


def chosen() -> StepTimes | None:
    """The step times that the environment requests; None if it requests no emulation. Raises ConfigError if the step
    times cannot be read."""
    name = os.environ.get(VARIABLE)
    return StepTimes.load(name) if name else None


def made_clock() -> Clock:
    """The clock that the environment requests, for this thread. Raises ConfigError if there is no clock of that name,
    or the system does not support it."""
    name = os.environ.get(CLOCK_VARIABLE) or "wall"
    if name not in ("wall", "thread"):
        raise ConfigError(f"{CLOCK_VARIABLE} must be wall or thread, got {name!r}")
    return Clock() if name == "wall" else Clock(undisturbed())


def trace_path() -> Path | None:
    """The file that the environment requests for the Chrome trace; None if it requests none. Raises ConfigError if the
    file's folder does not exist."""
    name = os.environ.get(TRACE_VARIABLE)
    if not name:
        return None
    path = Path(name)
    if not path.parent.is_dir():
        raise ConfigError(f"{TRACE_VARIABLE} must be a file in a folder that is there, got {name!r}")
    return path
