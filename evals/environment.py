"""What figures depend on: versions, command and hardware."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path
from typing import Any


def describe(packages: Iterable[str]) -> dict[str, Any]:
    """The command of this process, the hardware, and the versions of Python and of the packages; None: not there."""
    versions: dict[str, str | None] = {"python": platform.python_version()}
    for package in packages:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            versions[package] = None
    return {
        "command": ["agentspec", *sys.argv[1:]],
        "versions": versions,
        "hardware": {"processor": processor(), "cores": os.cpu_count(), "gpu": None},
    }


def processor() -> str:
    """The processor's name."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())
