"""The README's plot, drawn by `agentspec eval-page`: tokens a second of five systems relative to plain SGLang, on three
workloads."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

from agentspec.errors import ConfigError
from agentspec.evals.page.plot import THEMES, Theme, drawing, picture_file, shown
from agentspec.evals.page.row import mean
from agentspec.evals.page.served_rows import cells, speed

SYSTEMS = {
    "none": "plain SGLang",
    "ngram": "NGRAM",
    "eagle3": "EAGLE-3",
    "suffix": "agentspec, suffix drafts",
    "hybrid": "agentspec with EAGLE-3",
}

PICTURE = "speedup"
_RIVALS = ("ngram", "eagle3")
_WIDTH, _HEIGHT, _LEFT, _TOP, _BOTTOM = 760, 330, 44, 52, 40
_BAR, _GAP = 36, 6

# Tasks that may be shown. The plot has the first three that every system answered.
_TASKS = {
    "swe_mini_agent": "coding agent (SWE-bench)",
    "sql_intercode_spider": "SQL agent (Spider)",
    "tools_tau_airline": "tool calls (tau-bench)",
    "sql_rsl_bird": "staged text-to-SQL (BIRD)",
    "chat_mt_bench": "open chat (MT-Bench)",
    "math_gsm8k": "mathematics (GSM8K)",
}
_CLIENTS = 16
_QUIET = 0.1
"""Greatest share of the time in which other processes may hold the scheduler's core without a remark in the caption."""
_EVALUATION = "emulated/eval.json"


@dataclass(frozen=True)
class Plot:
    """The plot and the facts for its caption."""

    bars: Mapping[str, Mapping[str, float]]
    """Tokens a second relative to plain SGLang, by workload and system."""
    file: str
    model: str
    machine: str
    asked: str
    note: str

    def caption(self, commits: Mapping[str, str]) -> str:
        """The picture in both themes and the caption, in Markdown."""
        told = "; ".join(
            f"{workload}: {', '.join(f'{SYSTEMS[name]} {ratio:.2f}' for name, ratio in bars.items() if name != 'none')}"
            for workload, bars in self.bars.items()
        )
        commit = commits.get(self.file, "") or "not recorded"
        words = (
            f"*Tokens a second over plain SGLang's. Model: {self.model}. Hardware: {self.machine}. {self.asked}. {self.note} "
            f"[File](evals/results/{self.file}), commit {commit}; drawn by `agentspec eval-page`.*"
        )
        files = {theme: picture_file(PICTURE, theme) for theme in THEMES}
        return "\n".join([*shown(files, f"Tokens a second over plain SGLang. {escape(told)}."), "", words])

    def svg(self, theme: str) -> str:
        """The picture, on the background of the page."""
        colors = THEMES[theme]
        top = max(ratio for bars in self.bars.values() for ratio in bars.values())
        scale = (_HEIGHT - _TOP - _BOTTOM) / (int(top) + 1)
        floor = _HEIGHT - _BOTTOM
        parts = _legend(colors)
        for tick in range(int(top) + 2):
            y = floor - tick * scale
            parts.append(f'<path d="M{_LEFT} {y:.1f}H{_WIDTH}" stroke="{colors.lines}"/>')
            parts.append(f'<text x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{tick}x</text>')
        group = (_WIDTH - _LEFT) / len(self.bars)
        for number, (workload, bars) in enumerate(self.bars.items()):
            left = _LEFT + number * group
            width = len(bars) * (_BAR + _GAP) - _GAP
            parts.append(
                f'<text x="{left + group / 2:.1f}" y="{_HEIGHT - 14}" text-anchor="middle">{escape(workload)}</text>'
            )
            for place, (system, ratio) in enumerate(bars.items()):
                x = left + (group - width) / 2 + place * (_BAR + _GAP)
                color = colors.colors[list(SYSTEMS).index(system)]
                y = floor - ratio * scale
                parts.append(
                    f'<rect x="{x:.1f}" y="{y:.1f}" width="{_BAR}" height="{ratio * scale:.1f}" fill="{color}"/>'
                )
                parts.append(f'<text x="{x + _BAR / 2:.1f}" y="{y - 4:.1f}" text-anchor="middle">{ratio:.2f}</text>')
        return drawing(_WIDTH, _HEIGHT, colors, parts)


def _legend(theme: Theme) -> list[str]:
    parts = []
    x = float(_LEFT)
    for color, name in zip(theme.colors, SYSTEMS.values(), strict=True):
        parts.append(f'<rect x="{x:.1f}" y="10" width="12" height="12" fill="{color}"/>')
        parts.append(f'<text x="{x + 17:.1f}" y="20">{escape(name)}</text>')
        x += 17 + 6.5 * len(name) + 30
    return parts


def read(results: Path) -> Plot:
    """The plot of the evaluation on an emulated GPU.

    Raises:
        ConfigError: The evaluation lacks a system or has fewer than three workloads.
    """
    file = results / _EVALUATION
    records = json.loads(file.read_text(encoding="utf-8"))["records"] if file.exists() else []
    found = {
        task: cell
        for (task, pass_name, number), cell in cells(records).items()
        if (pass_name, number) == ("warm", _CLIENTS)
    }
    bars: dict[str, dict[str, float]] = {}
    for task, title in _TASKS.items():
        ratios = _best({system: speed(some) for system, some in found.get(task, {}).items()})
        if ratios and len(bars) < 3:
            bars[title] = ratios
    if len(bars) < 3:
        raise ConfigError(f"{file} must have {', '.join(SYSTEMS)} on three workloads")
    record = records[0]
    drawn = [one for cell in found.values() for name, repeats in cell.items() if _drawn(name) for one in repeats]
    some = [one["requests"] for one in drawn]
    busiest = max(drawn, key=lambda one: one.get("preempted_share") or 0.0)
    note = "NGRAM is at the best of its measured widths; the EAGLE-3 head is simulated."
    if (share := busiest.get("preempted_share") or 0.0) > _QUIET:
        note += f" The machine was not quiet: other processes held the scheduler's core for up to {share:.0%} of a run."
    return Plot(
        bars,
        _EVALUATION,
        "Llama-3.1-8B, answers forced" if record["emulated"] == "h200-8b" else f"{record['emulated']}, answers forced",
        f"an emulated H200 beside {_machine(record['hardware'])}",
        f"n = {_range(some)} calls a bar, {_CLIENTS} clients, warm",
        note,
    )


def _best(speeds: Mapping[str, float]) -> dict[str, float]:
    """Each system relative to plain decoding; a rival with several widths at its best. {} if a system is missing."""
    best: dict[str, float] = {}
    for system in SYSTEMS:
        some = [value for name, value in speeds.items() if _drawn(name) == system]
        if not some:
            return {}
        best[system] = max(some) if system in _RIVALS else mean(some)
    return {system: value / best["none"] for system, value in best.items()}


def _drawn(name: str) -> str:
    """The bar of SYSTEMS in which a measured system is drawn; "" for none. Rivals were measured at several widths."""
    rival = name.split("-")[0]
    return rival if rival in _RIVALS else name if name in SYSTEMS else ""


def _machine(hardware: Mapping[str, Any]) -> str:
    return f"{hardware['cores']} cores of {hardware['processor'].replace('(R)', '').removesuffix(' Processor')}"


def _range(numbers: Sequence[int]) -> str:
    least, most = min(numbers), max(numbers)
    return str(least) if least == most else f"{least} to {most}"
