"""Pictures: curves in panels beside each other, and the fit of a profile's cost model to its measurements."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from agentspec.errors import ConfigError
from agentspec.scheduling import Profile

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Curves: TypeAlias = Mapping[str, Sequence[tuple[float, float]]]
"""Points by the name of their curve, each curve's in its order."""


@contextmanager
def _picture(path: Path, width: float, height: float) -> Iterator[Figure]:
    """A figure of this size in inches, which is saved at the end. Raises ConfigError if the file's ending is none of a
    picture, or matplotlib is not installed."""
    if path.suffix not in (".png", ".svg"):
        raise ConfigError(f"a picture's file must end in .png or .svg, got {path}")
    try:
        from matplotlib import rc_context
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ConfigError("drawing needs matplotlib; `pip install 'sglang-agentspec[plots]'`") from error
    # Omit the date and random ids, so that equal figures give equal files.
    with rc_context({"svg.hashsalt": "agentspec", "svg.fonttype": "none"}):
        figure = Figure(figsize=(width, height), layout="constrained")
        yield figure
        figure.savefig(path, dpi=120, metadata={"Date": None} if path.suffix == ".svg" else None)


def draw_curves(panels: Mapping[str, Curves], x_title: str, y_title: str, path: Path) -> None:
    """Draws a panel for each title, with its curves, to a .png or .svg file. Raises ConfigError as draw_profile()."""
    with _picture(path, 5 * len(panels), 4.2) as figure:
        for axes, (title, curves) in zip(
            figure.subplots(1, len(panels), squeeze=False)[0], panels.items(), strict=True
        ):
            for name, points in curves.items():
                axes.plot(*zip(*points, strict=True), marker=".", label=name)
            axes.set(title=title, xlabel=x_title, ylabel=y_title)
            axes.legend()


def draw_profile(profile: Profile, path: str | Path) -> None:
    """Draws fitted over measured seconds (as SmartSpec, figure 7) and the residuals over them, to a .png or .svg file.

    Points are coloured by their width. Raises ConfigError if the profile has no measured points, the file's ending is
    neither of these, or matplotlib is not installed.
    """
    if not profile.points:
        raise ConfigError(f"the profile of {profile.key.model!r} has no measured points to draw; measure it here")
    measured = np.array([point.seconds for point in profile.points]) * 1e3
    residuals = np.array(profile.residuals) * 1e3
    widths = np.log2([point.width for point in profile.points])
    with _picture(Path(path), 10, 4.2) as figure:
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
