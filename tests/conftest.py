"""What all tests share: how the servers that they start start."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

FORKING = Path(__file__).parent / "helpers" / "forking"


def pytest_configure(config: pytest.Config) -> None:
    """Servers fork; see the folder. It is inherited by every process that tests start, also by way of commands."""
    os.environ["PYTHONPATH"] = os.pathsep.join([str(FORKING), os.environ.get("PYTHONPATH", "")]).strip(os.pathsep)
