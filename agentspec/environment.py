"""The environment that measured figures depend on: versions, command and hardware."""

from __future__ import annotations

import os
import platform
import re
import shlex
import sys
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path
from typing import Any

from agentspec.installation import DISTRIBUTION

_FOLDERS = re.compile(r"(?<![\w:/])~?(?:/[^\s/'\",:]+)+/")


def describe(packages: Iterable[str]) -> dict[str, Any]:
    """Returns the command of this process, the hardware, and the versions of Python and of the packages. Paths in the
    command are cut to file names. The version of a package that is not installed is None."""
    versions: dict[str, str | None] = {"python": platform.python_version()}
    for package in packages:
        try:
            versions[package] = metadata.version(DISTRIBUTION if package == "agentspec" else package)
        except metadata.PackageNotFoundError:
            versions[package] = None
    return {
        "command": [*_program(), *map(without_folders, sys.argv[1:])],
        "versions": versions,
        "hardware": {"processor": processor(), "cores": os.cpu_count(), "gpu": None},
    }


def command_line() -> str:
    """The command of this process with paths by their names alone, because folders' names may be private."""
    shown = []
    for word in sys.argv[1:]:
        is_path = "/" in word and " " not in word and Path(word).parent.is_dir()
        shown.append(Path(word).name if is_path else without_folders(word))
    return shlex.join(["agentspec", *shown])


def _program() -> list[str]:
    """`python -m MODULE` for one of the project's modules, and else the project's command."""
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    module = spec.name.removesuffix(".__main__") if spec else ""
    return ["python", "-m", module] if module.startswith("agentspec.") else ["agentspec"]


def without_folders(text: str) -> str:
    """Cuts each absolute path in the text to its last component."""
    return _FOLDERS.sub("", text)


def processor() -> str:
    """Name of the processor."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())
