"""What figures depend on: versions, command and hardware."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Iterable
from importlib import metadata
from typing import Any

from agentspec.hardware import processor


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
