"""What figures depend on: versions, command and hardware."""

from __future__ import annotations

import os
import platform
import re
import sys
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path
from typing import Any

from agentspec.installation import DISTRIBUTION

_FOLDERS = re.compile(r"(?<![\w:/])~?(?:/[^\s/'\",:]+)+/")


def describe(packages: Iterable[str]) -> dict[str, Any]:
    """The command of this process with files by their names alone, the hardware, and the versions of Python and of the
    packages; None: not there."""
    versions: dict[str, str | None] = {"python": platform.python_version()}
    for package in packages:
        try:
            versions[package] = metadata.version(DISTRIBUTION if package == "agentspec" else package)
        except metadata.PackageNotFoundError:
            versions[package] = None
    return {
        "command": ["agentspec", *map(without_folders, sys.argv[1:])],
        "versions": versions,
        "hardware": {"processor": processor(), "cores": os.cpu_count(), "gpu": None},
    }


def without_folders(text: str) -> str:
    """The text with absolute paths cut down to their last names."""
    return _FOLDERS.sub("", text)


def processor() -> str:
    """The processor's name."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())
