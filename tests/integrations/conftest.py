"""What tests that run Prometheus need."""

from __future__ import annotations

import os
import shutil

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    missing = [name for name in ("prometheus", "promtool") if shutil.which(name) is None]
    for item in items:
        if item.get_closest_marker("prometheus") and missing:
            if os.environ.get("CI"):
                pytest.fail(
                    f"{' and '.join(missing)} missing, and CI must not skip what needs them: run `make prometheus`"
                )
            reason = "needs prometheus: `apt-get install -y --no-install-recommends prometheus`"
            item.add_marker(pytest.mark.skip(reason=reason))
