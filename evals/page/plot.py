"""What the pictures that `agentspec eval-page` draws have in common, for a bright and a dark page."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple


class Theme(NamedTuple):
    text: str
    lines: str
    colors: tuple[str, ...]


THEMES = {
    "light": Theme("#24292f", "#d0d7de", ("#8c959f", "#b08800", "#8250df", "#54aeff", "#0969da")),
    "dark": Theme("#e6edf3", "#30363d", ("#6e7681", "#d29922", "#a371f7", "#388bfd", "#79c0ff")),
}
_FONT = 'font-family="system-ui, -apple-system, Segoe UI, Helvetica, Arial, sans-serif" font-size="12"'


def picture_file(picture: str, theme: str) -> str:
    """The path of a picture in a theme, relative to the project."""
    return f"docs/images/{picture}-{theme}.svg"


def drawing(width: int, height: int, theme: Theme, parts: Iterable[str]) -> str:
    """The SVG file with these elements, on the background of the page."""
    size = f'viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} {_FONT} fill="{theme.text}" role="img">'
    return "\n".join([head, *parts, "</svg>", ""])


def shown(files: Mapping[str, str], alternative: str) -> list[str]:
    """Lines of Markdown with a picture, whose files are known by theme, and the text for those who do not see it."""
    return [
        "<picture>",
        f'  <source media="(prefers-color-scheme: dark)" srcset="{files["dark"]}">',
        f'  <img alt="{alternative}" src="{files["light"]}">',
        "</picture>",
    ]
