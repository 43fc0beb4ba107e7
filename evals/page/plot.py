"""Colours and letters of the pictures that `agentspec eval-page` draws, for a bright and a dark page."""

from __future__ import annotations

from typing import NamedTuple


class Theme(NamedTuple):
    text: str
    lines: str
    colors: tuple[str, ...]


THEMES = {
    "light": Theme("#24292f", "#d0d7de", ("#8c959f", "#b08800", "#8250df", "#54aeff", "#0969da")),
    "dark": Theme("#e6edf3", "#30363d", ("#6e7681", "#d29922", "#a371f7", "#388bfd", "#79c0ff")),
}
FONT = 'font-family="system-ui, -apple-system, Segoe UI, Helvetica, Arial, sans-serif" font-size="12"'


def picture_file(picture: str, theme: str) -> str:
    """The path of a picture in a theme, relative to the project."""
    return f"docs/images/{picture}-{theme}.svg"
