"""What tests beside ArcticInference need."""

from __future__ import annotations

import importlib.util
import os

import pytest

from agentspec.evals.peers import arctic


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    installed = importlib.util.find_spec("arctic_inference") is not None
    for item in items:
        if item.get_closest_marker("arctic") and not installed:
            if os.environ.get("CI"):
                pytest.fail("ArcticInference is not installed, and CI must not skip what needs it: run `make arctic`")
            item.add_marker(pytest.mark.skip(reason=f"needs ArcticInference: {arctic.INSTALL}"))
