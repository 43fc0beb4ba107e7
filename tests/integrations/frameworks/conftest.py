"""The environment that has the frameworks."""

from __future__ import annotations

import pytest
from needs import FRAMEWORKS


@pytest.fixture(scope="session")
def framework_python() -> str:
    """The interpreter that has the frameworks, for tests that are marked `frameworks`."""
    return str(FRAMEWORKS)
