"""The page of a comparison in a browser: it fits its window, asks for nothing, and can be read by everybody."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from ab_turns import ARMS, turns, with_frame

from agentspec.ab.measures import facts_of
from agentspec.ab.page import page as page_of

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = pytest.mark.browser

NOTES = ["A very long reason why something could not be compared. " * 8, "<b>bold</b>"]
OPEN_ALL = "document.querySelectorAll('details').forEach(details => { details.open = true })"


@pytest.mark.parametrize(("width", "scheme"), [(375, "dark"), (1440, "light")])
@pytest.mark.parametrize("number", [0, 1, 12])
def test_the_page_fits_and_can_be_read(browser: Browser, tmp_path: Path, number: int, width: int, scheme: str) -> None:
    from axe_playwright_python.sync_playwright import Axe

    found = [
        replace(
            turn, results=tuple(replace(result, seconds=result.seconds * (1 + place % 5)) for result in turn.results)
        )
        for place, turn in enumerate(turns(number))
    ]
    arms = {**ARMS, "a": replace(ARMS["a"], name="x" * 200)}
    path = tmp_path / "ab.html"
    path.write_text(page_of(with_frame(facts_of(found, arms, NOTES))), encoding="utf-8")
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)  # type: ignore[arg-type]
    page = context.new_page()
    wrong: list[str] = []
    page.on("request", lambda request: request.url == path.as_uri() or wrong.append(request.url))
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.goto(path.as_uri())
    page.evaluate(OPEN_ALL)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    violations = Axe().run(page, options={"resultTypes": ["violations"]}).response["violations"]
    assert [entry["id"] for entry in violations if entry["impact"] in ("serious", "critical")] == []
    context.close()
    assert wrong == []
