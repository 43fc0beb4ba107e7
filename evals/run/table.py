"""The tables of `agentspec eval`: medians over repeats, and the spread of the repeats."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from agentspec.evals.run.records import Records, is_failed
from agentspec.evals.tables import aligned


@dataclass(frozen=True, slots=True)
class Summary:
    """The repeats of one system, in one pass of a task with some number of clients."""

    task: str
    pass_name: str
    concurrency: int
    system: str
    records: tuple[Mapping[str, Any], ...]
    """Those that have figures."""
    error: str
    """Why a repeat is missing."""

    def median(self, name: str) -> float | None:
        """Over the repeats in which the figure was counted."""
        values = [record[name] for record in self.records if record.get(name) is not None]
        return float(statistics.median(values)) if values else None

    @property
    def spread(self) -> float:
        """Range of tokens a second over the repeats, relative to their median."""
        speeds = [record["tokens_per_second"] for record in self.records]
        return (max(speeds) - min(speeds)) / float(statistics.median(speeds)) if speeds else 0.0

    @property
    def identical(self) -> str:
        told = [record["identical"] for record in self.records]
        return "DIFFERENT" if False in told else "identical" if told and None not in told else "not compared"


def summaries(records: Records) -> Iterator[Summary]:
    """In the order of tasks, passes and clients; systems in the order of the records."""
    by_cell: dict[tuple[str, str, int, str], list[Mapping[str, Any]]] = {}
    tasks, systems = ({record[key]: 0 for record in records} for key in ("task", "system"))
    for record in records:
        key = record["task"], record["pass"], record["concurrency"], record["system"]
        by_cell.setdefault(key, []).append(record)
    order = sorted(by_cell, key=lambda key: (list(tasks).index(key[0]), key[1], key[2], list(systems).index(key[3])))
    for key in order:
        some = by_cell[key]
        error = next((record["error"] for record in some if is_failed(record)), "")
        yield Summary(*key, tuple(record for record in some if not is_failed(record)), error)


_COLUMNS = (
    ("tokens/s", "tokens_per_second", ".0f"),
    ("of none", "speedup_over_none", ".2f"),
    ("of ngram", "speedup_over_ngram", ".2f"),
    ("accept length", "accept_length", ".2f"),
    ("acceptance", "acceptance_rate", ".0%"),
    ("TTFT ms", "ttft_ms_p50", ".0f"),
    ("TPOT ms", "tpot_ms_p50", ".2f"),
    ("p50 s", "latency_p50_s", ".2f"),
    ("p99 s", "latency_p99_s", ".2f"),
    ("tokens/CPU s", "tokens_per_cpu_second", ".0f"),
    ("drafting", "draft_share", ".0%"),
    ("drafter steps", "drafter_step_share", ".0%"),
    ("correct", "accuracy", ".0%"),
    ("task s", "task_seconds_mean", ".2f"),
    ("outside", "outside_share", ".1%"),
)
_EMULATED_COLUMNS = (
    *_COLUMNS[:5],
    ("device busy", "device_busy", ".1%"),
    ("no requests", "no_requests_share", ".1%"),
    ("preempted", "preempted_share", ".1%"),
    ("reads/step", "host_reads_a_step", ".1f"),
    ("ops/step", "eager_ops_a_step", ".1f"),
    ("copies/step", "h2d_copies_a_step", ".1f"),
    ("drafter steps", "drafter_step_share", ".0%"),
)


def table(records: Records) -> str:
    """For people, with a block for each task."""
    parts = []
    for task, of_task in groupby(summaries(records), key=lambda row: row.task):
        rows = list(of_task)
        columns = _EMULATED_COLUMNS if _emulated(rows) else _COLUMNS
        shown = [["pass", "at once", "system", *(title for title, _, _ in columns), "spread", "outputs"]]
        shown += [_cells(row, columns) for row in rows]
        parts.append("\n".join([f"{task}{_emulated(rows)}", *aligned(shown, words=3)]))
        parts += _best(rows)
        # One line for each system and error, because a dead server fails in all its cells.
        parts += dict.fromkeys(f"{row.system} failed: {row.error}" for row in rows if row.error)
    return "\n\n".join(parts) or "no records"


def _emulated(rows: Sequence[Summary]) -> str:
    """For titles: the emulated device and its head, if any."""
    records = [record for row in rows for record in row.records if record.get("emulated")]
    names = {record["emulated"]: None for record in records}
    heads = {record["head"]: None for record in records if record.get("head")}
    return (f", emulated {', '.join(names)}" if names else "") + (f", head {', '.join(heads)}" if heads else "")


def _best(rows: Sequence[Summary]) -> list[str]:
    """For an emulated device: in each cell the best width or number of steps of each rival, and agentspec beside
    them."""
    if not _emulated(rows):
        return []
    cells: dict[tuple[str, int], dict[str, float]] = {}
    for row in rows:
        speed = row.median("tokens_per_second")
        if speed is not None:
            cells.setdefault((row.pass_name, row.concurrency), {})[row.system] = speed
    lines = []
    for (pass_name, clients), speeds in cells.items():
        best = {
            family: max(some, key=lambda name: speeds[name])
            for family in ("ngram", "eagle3", "suffix")
            if (some := [name for name in speeds if name.partition("-")[0] == family])
        }
        words = [f"best {family} {name} {speeds[name]:.0f}" for family, name in best.items() if family != "suffix"]
        if "suffix" in speeds and "ngram" in best:
            words.append(f"suffix over it {speeds['suffix'] / speeds[best['ngram']]:.2f}")
        single = [speeds[name] for name in best.values()] + [speeds["none"]] if "none" in speeds else []
        if "hybrid" in speeds and single:
            words.append(f"hybrid over the best single {speeds['hybrid'] / max(single):.2f}")
        if words:
            lines.append(f"{pass_name}, {clients} at once: {'; '.join(words)}")
    return ["\n".join(lines)] if lines else []


def _cells(row: Summary, columns: Sequence[tuple[str, str, str]]) -> list[str]:
    head = [row.pass_name, str(row.concurrency), row.system]
    if not row.records:
        return [*head, "failed", *[""] * (len(columns) - 1), "", ""]
    values = [row.median(name) for _, name, _ in columns]
    shown = ["" if value is None else format(value, form) for value, (_, _, form) in zip(values, columns, strict=True)]
    return [*head, *shown, f"{row.spread:.0%}", row.identical]
