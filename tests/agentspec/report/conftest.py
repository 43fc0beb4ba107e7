"""One Chromium for the tests of the report's page."""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def executable() -> str | None:
    return next((found for name in NAMES if (found := shutil.which(name))), None)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    driven = importlib.util.find_spec("playwright") and importlib.util.find_spec("axe_playwright_python")
    there = executable() is not None and driven
    for item in items:
        if item.get_closest_marker("browser") and not there:
            if os.environ.get("CI"):
                pytest.fail(
                    "there is no Chromium or no playwright, and CI must not skip what needs it: run `make test`"
                )
            item.add_marker(pytest.mark.skip(reason="needs Chromium and playwright: run `make test`"))


# While playwright is at work an event loop runs in this thread, which other tests want for theirs.
@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        # Chromium's own sandbox does not start for root, which CI is.
        started = driver.chromium.launch(executable_path=executable(), chromium_sandbox=False)
        yield started
        started.close()
