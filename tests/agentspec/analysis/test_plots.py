"""The plot of a fit is written as PNG and SVG with the fit's figures, and refused if there is nothing to draw."""

from __future__ import annotations

from pathlib import Path

import pytest
from draft_states import KEY, POINTS, profile

from agentspec import ConfigError
from agentspec.analysis.plots import draw_profile
from agentspec.scheduling import Profile


def test_a_fit_is_drawn(tmp_path: Path) -> None:
    fitted = Profile.fitted(KEY, POINTS, (1, 8))
    draw_profile(fitted, tmp_path / "fit.png")
    assert (tmp_path / "fit.png").read_bytes().startswith(b"\x89PNG")
    for name in ("fit.svg", "again.svg"):
        draw_profile(fitted, tmp_path / name)
    svg = (tmp_path / "fit.svg").read_text()
    assert svg.startswith("<?xml") and svg == (tmp_path / "again.svg").read_text()
    # Both panels have a mark for each point.
    assert svg.count("<use ") >= 2 * len(POINTS)


def test_what_cannot_be_drawn_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="has no measured points"):
        draw_profile(profile(), tmp_path / "fit.png")
    with pytest.raises(ConfigError, match="must end in .png or .svg, got .*fit.jpg"):
        draw_profile(Profile.fitted(KEY, POINTS, (1, 8)), tmp_path / "fit.jpg")
