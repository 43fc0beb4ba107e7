"""The page as people use it: on a phone and a desktop, light and dark, by keyboard, by screen reader, on paper."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from page_facts import CASES

from agentspec.analysis.report.page import page as page_of

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = pytest.mark.browser

PHONE, DESKTOP = 375, 1440
OPEN_ALL = "document.querySelectorAll('details').forEach(details => { details.open = true })"
FOCUSABLE = "a[href], button:not([hidden]), summary, [tabindex='0']"


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    paths = {}
    for case, facts in CASES.items():
        paths[case] = folder / f"{case}.html"
        paths[case].write_text(page_of(facts()), encoding="utf-8")
    return paths


@pytest.fixture
def shown(browser: Browser, written: dict[str, Path]) -> Iterator[Any]:
    """Opens the page of a case. The test fails at its end if the page made a request or reported an error."""
    wrong: list[str] = []
    contexts = []

    def show(case: str, width: int = DESKTOP, scheme: str = "light") -> Page:
        context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
        contexts.append(context)
        opened = context.new_page()
        opened.on("console", lambda message: wrong.append(f"console: {message.text}"))
        opened.on("pageerror", lambda error: wrong.append(f"error: {error}"))
        opened.on("dialog", lambda dialog: (wrong.append("dialog"), dialog.dismiss()))
        address = written[case].as_uri()
        opened.on("request", lambda request: request.url == address or wrong.append(f"asked for {request.url[:80]}"))
        opened.goto(address)
        return opened

    yield show
    for context in contexts:
        context.close()
    assert wrong == []


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(("width", "scheme"), [(PHONE, "dark"), (DESKTOP, "light")])
def test_a_page_fits_its_window(shown: Any, tmp_path: Path, case: str, width: int, scheme: str) -> None:
    page = shown(case, width, scheme)
    assert page.title().startswith("agentspec report: ")
    picture = tmp_path / "page.png"
    page.screenshot(path=picture)
    assert picture.stat().st_size > 20_000
    page.evaluate(OPEN_ALL)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.evaluate(_TOUCHING_TICKS) == []


# The pages share the parts that can be opened, so only the rich page is checked with everything open.
@pytest.mark.parametrize(
    ("case", "width", "scheme"),
    [
        ("rich", PHONE, "light"),
        ("rich", DESKTOP, "dark"),
        ("tiny", DESKTOP, "dark"),
        ("control", PHONE, "light"),
        ("hostile", PHONE, "dark"),
    ],
)
def test_a_page_can_be_read_by_everybody(shown: Any, case: str, width: int, scheme: str) -> None:
    from axe_playwright_python.sync_playwright import Axe

    page = shown(case, width, scheme)
    if case == "rich":
        page.evaluate(OPEN_ALL)
    found = Axe().run(page, options={"resultTypes": ["violations"]}).response["violations"]
    told = [(entry["id"], [node["html"][:120] for node in entry["nodes"][:3]]) for entry in found if _grave(entry)]
    assert told == []


@pytest.mark.parametrize("width", [PHONE, DESKTOP])
def test_the_keyboard_reaches_everything_in_the_order_of_the_page(shown: Any, width: int) -> None:
    page = shown("rich", width)
    page.evaluate(OPEN_ALL)
    page.evaluate(f"window.order = [...document.querySelectorAll({FOCUSABLE!r})]")
    reached = []
    for _ in range(page.evaluate("order.length")):
        page.keyboard.press("Tab")
        place, outline = page.evaluate(
            "[order.indexOf(document.activeElement), getComputedStyle(document.activeElement).outlineStyle]"
        )
        assert outline == "solid", place
        reached.append(place)
    assert reached == list(range(len(reached)))
    assert len(reached) > 20


def test_a_key_opens_a_table_and_copies_the_flags(shown: Any) -> None:
    page = shown("rich")
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    summary = page.locator("#entropy summary")
    summary.focus()
    page.keyboard.press("Enter")
    assert page.locator("#entropy table").is_visible()
    button = page.locator("button[data-copy=flags]")
    button.focus()
    page.keyboard.press("Enter")
    page.wait_for_function("document.getElementById('said').textContent === 'Copied'")
    copied = page.evaluate("navigator.clipboard.readText()")
    assert copied == " ".join(CASES["rich"]()["verdict"]["flags"])


def test_paper_is_light_without_controls_and_with_every_table(shown: Any, tmp_path: Path) -> None:
    page = shown("rich", DESKTOP, "dark")
    path = tmp_path / "page.pdf"
    page.pdf(path=path, format="A4")
    pages = len(re.findall(rb"/Type\s*/Page\b", path.read_bytes()))
    assert path.read_bytes().startswith(b"%PDF")
    assert 4 <= pages <= 20
    page.emulate_media(media="print")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    for hidden in ("nav", "button", "summary"):
        assert not page.locator(hidden).first.is_visible()
    heights = page.evaluate("[...document.querySelectorAll('details table')].map(table => table.offsetHeight)")
    assert len(heights) >= 5
    assert all(height > 20 for height in heights)


def test_the_page_is_whole_without_its_script(browser: Browser, written: dict[str, Path]) -> None:
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(written["rich"].as_uri())
    assert page.locator("h1").is_visible()
    assert page.locator("#flags").is_visible()
    assert page.locator("button:visible").count() == 0
    page.locator("#speedup summary").click()
    assert page.locator("#speedup table").is_visible()
    context.close()


def _grave(violation: dict[str, Any]) -> bool:
    return violation["impact"] in ("serious", "critical")


# Finds labels of neighbouring ticks that overlap.
_TOUCHING_TICKS = """
[...document.querySelectorAll('.ticks, .curve')].flatMap(axis => {
  const boxes = [...axis.querySelectorAll('.tick:not(.left)')].map(tick => [tick.getBoundingClientRect(), tick.textContent]);
  return boxes.filter(([box, _], place) => place > 0 && box.left < boxes[place - 1][0].right + 2).map(([_, text]) => text);
})
"""
