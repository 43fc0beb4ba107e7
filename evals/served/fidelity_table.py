"""The table and the plot of `agentspec bench fidelity`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from agentspec.evals.files import drawing


def markdown(content: Mapping[str, Any], bound: float) -> str:
    """The table of the runs."""
    titles = (
        *("server", "at most", "rate", "requests/s", "measured ms", "simulated ms", "error"),
        *("steady runs", "errors of all its runs", "p50 error", "p99 error", "accept length, measured and simulated"),
        *("pace", "error at the profile's pace"),
    )
    lines = [
        f"    {' '.join(content['command'])}",
        "",
        *(f"    {line}" for line in content["profile"]),
        "",
        f"| {' | '.join(titles)} |",
        "|---" * len(titles) + "|",
    ]
    for row in content["rows"]:
        mark = "**" if row["system"] == "plain" and abs(row["error"]) > bound else ""
        cells = (
            *(row["system"], str(row["limit"]), f"{row['share']:g}x", f"{row['requests_per_second']:.2f}"),
            *(f"{row['measured_mean'] * 1e3:.0f}", f"{row['simulated_mean'] * 1e3:.0f}"),
            f"{mark}{row['error']:+.1%}{mark}",
            f"{row['steady_runs']} of {row['runs']}",
            f"{min(row['errors']):+.1%} to {max(row['errors']):+.1%}",
            *(f"{row[f'simulated_{name}'] / row[f'measured_{name}'] - 1:+.1%}" for name in ("p50", "p99")),
            f"{row['measured_accept_length']:.2f}, {row['simulated_accept_length']:.2f}",
            f"{min(map(min, row['pace'])):.2f} to {max(map(max, row['pace'])):.2f}",
            f"{row['error_as_profiled']:+.1%}",
        )
        lines.append(f"| {' | '.join(cells)} |")
    met = sum(goal["met"] for goal in content["goals"])
    lines += ["", f"Plain decoding: {met} of {len(content['goals'])} mean latencies within {bound:.0%}."]
    return "\n".join(lines)


def plot(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Draws simulated over measured mean latencies.

    Raises:
        ConfigError: matplotlib is not installed.
    """
    with drawing(path, (5, 4.5)) as figure:
        axes = figure.subplots()
        for system, limit in dict.fromkeys((row["system"], row["limit"]) for row in rows):
            some = [row for row in rows if (row["system"], row["limit"]) == (system, limit)]
            axes.plot(
                [row["measured_mean"] * 1e3 for row in some],
                [row["simulated_mean"] * 1e3 for row in some],
                marker="o" if system == "plain" else "s",
                linestyle="none",
                label=f"{system}, {limit} at most",
            )
        low, high = axes.get_xlim()
        axes.plot([low, high], [low, high], color="gray", linewidth=1)
        axes.fill_between([low, high], [0.9 * low, 0.9 * high], [1.1 * low, 1.1 * high], color="gray", alpha=0.15)
        axes.set(xlabel="measured mean latency, ms", ylabel="simulated, ms")
        axes.legend()
