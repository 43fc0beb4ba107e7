"""The SGLang releases whose sources tests read: the installed one, and others that `make test-all` unpacks."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
from _pytest.mark import ParameterSet

UNPACKED = ("0.5.17", "0.5.18", "0.5.19", "0.5.20", "0.5.21", "0.5.22")
_ROOT = Path(__file__).parents[2]


def releases() -> list[ParameterSet]:
    """The folders that contain the package `sglang`, as parameters of a test."""
    found = importlib.util.find_spec("sglang")
    installed = Path(found.origin).parent.parent if found and found.origin else Path("sglang is not installed")
    others = [
        pytest.param(_ROOT / ".cache" / f"sglang-{name}", id=name, marks=pytest.mark.other_release) for name in UNPACKED
    ]
    return [pytest.param(installed, id="installed"), *others]
