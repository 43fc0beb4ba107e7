"""`agentspec bench report`: whether the report's figures hold.

ranking     whether entropy and accept length rank sets, and stages served separately, alike
halves      the intervals of a report on a random half of the sessions contain the replay of the other half

Dataset: recorded traces, see agentspec.analysis.replay.traces; staged ones give a set for each stage with enough calls.
Metric: Spearman's rank correlation; share of intervals that hold.
Pattern: all are read as the report reads.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

from agentspec.analysis.replay import load_tokenizer
from agentspec.environment import describe
from agentspec.errors import ConfigError
from agentspec.evals.files import write_json
from agentspec.evals.options import Options
from agentspec.evals.report.halves import COVERAGE, halves_row
from agentspec.evals.report.halves import shown as shown_halves
from agentspec.evals.report.ranking import ranking, ranking_rows

CASES = ("ranking", "halves")
# The halves take hours, so they run only on request.
_DEFAULT_CASES = CASES[:1]
CONTROLS = ("chat", "math")
_RANK_GOAL = 0.9


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options = Options(parser)
    traces = "recorded sets, .jsonl, .jsonl.xz or .jsonl.gz"
    options.add("traces", nargs="+", type=Path, metavar="TRACE", help=traces)
    options.choices("--case", CASES, f"case to run (default {', '.join(_DEFAULT_CASES)})")
    options.add("--tokenizer", metavar="NAME|PATH", help="default: mistral_common's newest tekken")
    options.number("--draws", 50, "for the halves: random halves of each set")
    options.number("--halves-outputs", 400, "for the halves: outputs of the first half that are reported on")
    most = "for the halves: outputs of the second half that are replayed (default: all)"
    options.add("--halves-replayed", type=int, metavar="N", help=most)
    options.file("--json", "write the figures to FILE")


def run(args: argparse.Namespace) -> int:
    """Runs the cases and prints their rows; raises ConfigError if an argument is out of range or a trace cannot be
    read."""
    if min(args.draws, args.halves_outputs) < 1:
        raise ConfigError(
            f"--draws and --halves-outputs must be at least 1, got {args.draws} and {args.halves_outputs}"
        )
    chosen = args.case or _DEFAULT_CASES
    tokenizer = load_tokenizer(args.tokenizer)
    content: dict[str, Any] = {"head": {**describe(("agentspec", "numpy")), "tokenizer": tokenizer.name}}
    with tempfile.TemporaryDirectory() as folder:
        if "ranking" in chosen:
            rows = ranking_rows(args.traces, tokenizer, Path(folder))
            content["ranking"] = {**ranking(rows, CONTROLS), "goal": _RANK_GOAL, "rows": rows}
            for row in rows:
                print(f"{row['set']:<40} entropy {row['entropy']:.2f}  cold {row['cold']:.2f}  warm {row['warm']:.2f}")
            print({key: value for key, value in content["ranking"].items() if key != "rows"})
            write_json(args.json, content)
        if "halves" in chosen:
            content["halves"] = {"goal": COVERAGE, "rows": []}
            for path in args.traces:
                row = halves_row(path, tokenizer, args.draws, args.halves_outputs, args.halves_replayed)
                content["halves"]["rows"].append(row)
                print(shown_halves(row), flush=True)
                write_json(args.json, content)
    return 0
