"""Plots: curves in panels beside each other, as an SVG, and the fit of a profile's cost model to its measurements."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.sax.saxutils import escape

import numpy as np

from agentspec.errors import ConfigError
from agentspec.scheduling import Profile

Point = tuple[float, float]

_WIDTH, _HEIGHT, _LEFT, _TOP, _BOTTOM, _GAP = 400, 300, 56, 34, 44, 36


@dataclass(frozen=True)
class Curve:
    """Points joined in their order; `labels` stand beside them, "" for none.

    A curve without a name is drawn faintly and is not in the legend.
    """

    name: str
    color: str
    points: Sequence[Point]
    labels: Sequence[str] = ()
    dashes: str = ""


def svg(panels: Mapping[str, Sequence[Curve]], x_title: str, y_title: str) -> str:
    """The SVG. Each panel has its own axes, which start at the least values."""
    width = _LEFT + len(panels) * (_WIDTH + _GAP + _LEFT) - _LEFT
    height = _TOP + _HEIGHT + _BOTTOM
    size = f'viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="11">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
    ]
    for number, (title, curves) in enumerate(panels.items()):
        parts += _panel(_LEFT + number * (_WIDTH + _GAP + _LEFT), title, curves, x_title, y_title)
    return "\n".join([*parts, "</svg>", ""])


def _panel(left: float, title: str, curves: Sequence[Curve], x_title: str, y_title: str) -> list[str]:
    points = [point for curve in curves for point in curve.points]
    xs, ys = _range([x for x, _ in points]), _range([y for _, y in points])

    def at(point: Point) -> Point:
        x = left + (point[0] - xs[0]) / (xs[-1] - xs[0]) * _WIDTH
        return x, _TOP + _HEIGHT - (point[1] - ys[0]) / (ys[-1] - ys[0]) * _HEIGHT

    middle = _TOP + _HEIGHT // 2
    parts = [
        f'<text x="{left + _WIDTH / 2:.0f}" y="18" text-anchor="middle" font-size="13">{escape(title)}</text>',
        f'<rect x="{left}" y="{_TOP}" width="{_WIDTH}" height="{_HEIGHT}" fill="none" stroke="#888"/>',
        f'<text x="{left + _WIDTH / 2:.0f}" y="{_TOP + _HEIGHT + 34}" text-anchor="middle">{escape(x_title)}</text>',
        f'<text transform="translate({left - 40} {middle}) rotate(-90)" text-anchor="middle">{escape(y_title)}</text>',
    ]
    for value in xs:
        x, y = at((value, ys[0]))
        parts.append(f'<text x="{x:.1f}" y="{y + 14:.1f}" text-anchor="middle">{value:.3g}</text>')
    for value in ys:
        x, y = at((xs[0], value))
        parts.append(f'<text x="{x - 5:.1f}" y="{y + 4:.1f}" text-anchor="end">{value:.3g}</text>')
        parts.append(f'<path d="M{x:.1f} {y:.1f}h{_WIDTH}" stroke="#eee"/>')
    named = 0
    # Draw faint curves first, so that named ones lie over them.
    for curve in sorted(curves, key=lambda curve: bool(curve.name)):
        places = [at(point) for point in curve.points]
        path = "L".join(f"{x:.1f} {y:.1f}" for x, y in places)
        style = f'stroke-dasharray="{curve.dashes}"' if curve.dashes else ""
        strength = "1.8" if curve.name else "0.7"
        parts.append(f'<path d="M{path}" fill="none" stroke="{curve.color}" stroke-width="{strength}" {style}/>')
        if not curve.name:
            continue
        for (x, y), label in zip(places, [*curve.labels, *[""] * len(places)], strict=False):
            parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.4" fill="{curve.color}"/>')
            parts.append(f'<text x="{x + 5:.1f}" y="{y - 5:.1f}" fill="{curve.color}">{escape(label)}</text>')
        y = _TOP + 18 + 16 * named
        parts.append(
            f'<path d="M{left + _WIDTH - 150} {y}h24" stroke="{curve.color}" stroke-width="1.8" {style}/>'
            f'<text x="{left + _WIDTH - 120}" y="{y + 4}">{escape(curve.name)}</text>'
        )
        named += 1
    return parts


def _range(values: Sequence[float]) -> list[float]:
    """Five ticks from the least value to the greatest."""
    low, high = min(values), max(values)
    if high <= low:
        high = low + 1
    return [low + (high - low) * step / 4 for step in range(5)]


def draw_profile(profile: Profile, path: str | Path) -> None:
    """Draws fitted over measured seconds (as SmartSpec, figure 7) and the residuals over them, to a .png or .svg file.

    Points are coloured by their width. Raises ConfigError if the profile has no measured points, the file's ending is
    neither of these, or matplotlib is not installed.
    """
    path = Path(path)
    if path.suffix not in (".png", ".svg"):
        raise ConfigError(f"a picture's file must end in .png or .svg, got {path}")
    if not profile.points:
        raise ConfigError(f"the profile of {profile.key.model!r} has no measured points to draw; measure it here")
    try:
        from matplotlib import rc_context
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ConfigError("drawing needs matplotlib; `pip install 'sglang-agentspec[plots]'`") from error
    measured = np.array([point.seconds for point in profile.points]) * 1e3
    residuals = np.array(profile.residuals) * 1e3
    widths = np.log2([point.width for point in profile.points])
    # Omit the date and random ids, so that the same profile gives the same file.
    with rc_context({"svg.hashsalt": "agentspec"}):
        figure = Figure(figsize=(10, 4.2), layout="constrained")
        left, right = figure.subplots(1, 2)
        dots = left.scatter(measured, measured - residuals, c=widths, s=18)
        low, high = measured.min(), measured.max()
        left.plot([low, high], [low, high], color="tab:red", linewidth=1)
        left.set(xlabel="measured ms", ylabel="fitted ms", xscale="log", yscale="log")
        cost, r2 = profile.target, profile.r2
        left.set_title(
            f"T = {cost.alpha * 1e6:.3g} µs context + {cost.gamma * 1e6:.3g} µs batched + {cost.delta * 1e3:.3g} ms"
            + (f", R² = {r2:.4f}" if r2 is not None else ""),
            fontsize=9,
        )
        right.scatter(measured, 100 * residuals / measured, c=widths, s=18)
        right.axhline(0.0, color="tab:red", linewidth=1)
        right.set(xlabel="measured ms", ylabel="measured less fitted, % of measured", xscale="log")
        right.set_title(f"{profile.key.model}, {profile.key.device}, {len(measured)} points", fontsize=9)
        figure.colorbar(dots, ax=right, label="log2 of the width")
        figure.savefig(path, dpi=120, metadata={"Date": None} if path.suffix == ".svg" else None)
