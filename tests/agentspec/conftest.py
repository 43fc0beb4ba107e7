"""One Chromium for the tests of pages."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from needs import chromium

if TYPE_CHECKING:
    from playwright.sync_api import Browser


# While Playwright works, its event loop runs in this thread, and other tests need the thread for their own loops.
@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        # Chromium's own sandbox does not start for root, and CI runs as root.
        started = driver.chromium.launch(executable_path=chromium(), chromium_sandbox=False)
        yield started
        started.close()
