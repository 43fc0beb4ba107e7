"""How well a profile's cost model fits what was measured, as a picture."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from agentspec.errors import ConfigError
from agentspec.scheduling import Profile


def draw_profile(profile: Profile, path: str | Path) -> None:
    """Draws fitted over measured seconds (as SmartSpec, figure 7) and the residuals over them, to a .png or .svg file.

    Points are coloured by their width.

    Raises:
        ConfigError: The profile has no measured points, the file's ending is another one, or matplotlib is not
            installed.
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
    # No date and no drawn ids: the same profile gives the same file.
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
