"""Entropy and accept length of sets and stages, each by itself."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from agentspec.analysis.logs.log import Log, read_log
from agentspec.analysis.logs.sample import SampleLimits
from agentspec.analysis.measures.entropy import output_entropy
from agentspec.analysis.measures.replays import cold_passes, engine_config, serve, warm_passes
from agentspec.analysis.measures.sets import spread
from agentspec.analysis.replay import Tokenizer
from agentspec.analysis.report.facts import WIDTH
from agentspec.errors import ConfigError
from agentspec.progress import Progress
from agentspec.record_file import filled_lines

LEAST_OUTPUTS = 100
"""Of a stage."""
FEW_OUTPUTS = 100
"""The number that the paper uses."""
_BUDGET = 1 << 30
_REPLAYED = 1000
"""The number of outputs of each set and stage that are replayed."""


def ranking_rows(traces: Sequence[Path], tokenizer: Tokenizer, folder: Path) -> list[dict[str, Any]]:
    """A row for each trace, and for each stage of a staged trace with enough outputs; all are read as the report reads.

    Args:
        traces: Files.
        tokenizer: Of all.
        folder: Gets the files of the stages.
    """
    rows = []
    for path in traces:
        stages = _stage_logs(path, folder)
        name = path.name.split(".jsonl")[0]
        for label, file in {name: path, **{f"{name}, {stage}": file for stage, file in stages.items()}}.items():
            with Progress(f"ranking {label}", 1):
                figures = _figures(read_log([file], tokenizer, SampleLimits(), 0))
                rows.append({"set": label, "kind": _kind(label, stages), **figures})
    return rows


def ranking(rows: Sequence[dict[str, Any]], controls: Sequence[str]) -> dict[str, Any]:
    """Rank correlations of low entropy with long accept lengths over sets and stages, where a staged set counts by its
    stages; and whether controls have the shortest accept lengths of all sets."""
    from scipy.stats import spearmanr

    ranked = [row for row in rows if row["kind"] != "staged"]
    found: dict[str, Any] = {"ranked": len(ranked)}
    for kind in ("cold", "warm"):
        lengths = [row[kind] for row in ranked]
        for key in ("entropy", f"entropy_{FEW_OUTPUTS}"):
            found[f"spearman_{key}_{kind}"] = round(
                float(spearmanr([-row[key] for row in ranked], lengths).statistic), 3
            )
        sets = sorted((row[kind], row["set"]) for row in rows if row["kind"] != "stage")
        lowest = [name for _, name in sets[: len(controls)]]
        found[f"sets_by_{kind}"] = [name for _, name in sets]
        found[f"controls_lowest_{kind}"] = all(any(name.startswith(c) for c in controls) for name in lowest)
    return found


def _stage_logs(path: Path, folder: Path) -> dict[str, Path]:
    """A log of each stage that has enough outputs; each of its calls is a session."""
    records: dict[str, list[dict[str, Any]]] = {}
    for line in (json.loads(text) for _, text in filled_lines(path)):
        for call in line.get("calls", ()):
            session = "/".join(str(line.get(key, "")) for key in ("session", "task", "run"))
            records.setdefault(call["stage"], []).append({"session": session, "calls": [call]})
    found: dict[str, Path] = {}
    for stage, sessions in records.items():
        if len(sessions) >= LEAST_OUTPUTS:
            found[stage] = folder / f"{path.name.split('.')[0]}-{len(found)}.jsonl"
            found[stage].write_text("".join(json.dumps(session) + "\n" for session in sessions), encoding="utf-8")
    return found


def _kind(label: str, stages: dict[str, Path]) -> str:
    return "stage" if ", " in label else "staged" if stages else "set"


def _figures(log: Log) -> dict[str, Any]:
    config = engine_config(WIDTH, _BUDGET)
    sampled = log.sampled.chosen(log.drawn(_REPLAYED))
    outputs = [output.tokens for output in spread(log.kept)]
    few = [output.tokens for output in spread(log.kept, FEW_OUTPUTS)]
    return {
        "outputs": log.sample.num_outputs,
        "measured": len(sampled.measured),
        "entropy": _rounded(output_entropy(outputs).value),
        f"entropy_{FEW_OUTPUTS}": _rounded(output_entropy(few).value),
        "cold": _rounded(serve(sampled, cold_passes(sampled, 3, 0), config).accept_length()),
        "warm": _rounded(serve(sampled, warm_passes(sampled, 0), config).accept_length()),
    }


def _rounded(value: float | None) -> float:
    if value is None:
        raise ConfigError("each set must have outputs that can be drafted, got one without; leave it out")
    return round(value, 4)
