"""`agentspec bench report`: whether the report's figures hold, and what it takes to make them.

ranking     whether entropy and accept length rank sets, and stages served separately, alike
prediction  a report over 100 outputs predicts the accept length of a replay of the rest of the set, on a server that
begins with nothing and learns as it goes
halves      the intervals of a report on a random half of the sessions contain the replay of the other half
scale       seconds and peak memory of the whole command on logs of many tokens, in a separate process
verdict     a report over a plain server's log predicts the gain of agentspec over plain decoding; see verdict.py

Dataset: recorded traces, see agentspec.analysis.replay.traces; staged ones give a set for each stage with enough calls.
For the verdict: the work of `agentspec bench load`.
Metric: Spearman's rank correlation; error of predicted accept lengths; share of intervals that hold; seconds; MB of peak resident memory; whether the
predicted range contains the measured ratio of tokens a second.
Pattern: samples for predictions come from all over a set, with one output or staged session from each of equal parts.
"""

from __future__ import annotations

import argparse
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from agentspec.analysis.report import find_tokenizer
from agentspec.environment import describe
from agentspec.errors import ConfigError
from agentspec.evals.files import write_json
from agentspec.evals.options import Options
from agentspec.evals.report.halves import COVERAGE, halves_row
from agentspec.evals.report.halves import shown as shown_halves
from agentspec.evals.report.prediction import GOAL, prediction_rows
from agentspec.evals.report.ranking import ranking, ranking_rows
from agentspec.evals.report.scale import scale_row
from agentspec.evals.report.verdict import VerdictPlan, shown, verdict
from agentspec.evals.text_to_sql import MODEL_FOLDER
from agentspec.evals.workloads.load import WORKLOADS

CASES = ("ranking", "prediction", "scale", "halves", "verdict")
# The verdict starts servers, and the halves take hours, so they run only on request.
_DEFAULT_CASES = CASES[:3]
CONTROLS = ("chat", "math")
_RANK_GOAL = 0.9


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options = Options(parser)
    traces = "recorded sets, .jsonl, .jsonl.xz or .jsonl.gz; the verdict needs none"
    options.add("traces", nargs="*", type=Path, metavar="TRACE", help=traces)
    options.choices("--case", CASES, f"case to run (default {', '.join(_DEFAULT_CASES)})")
    options.add("--tokenizer", metavar="NAME|PATH", help="default: mistral_common's newest tekken")
    options.number("--seeds", 5, "samples of 100 outputs to draw from each set")
    options.number("--draws", 50, "for the halves: random halves of each set")
    options.number("--halves-outputs", 400, "for the halves: outputs of the first half that are reported on")
    most = "for the halves: outputs of the second half that are replayed (default: all)"
    options.add("--halves-replayed", type=int, metavar="N", help=most)
    scale = "output tokens of a generated log; may be repeated (default 1000000)"
    options.add("--scale-tokens", type=int, action="append", metavar="N", help=scale)
    options.number("--memory-mb", 1024, "memory limit of the reports on generated logs")
    options.file(
        "--profile",
        "for the verdict: the small model's profile, from `agentspec profile --serving` (default: measured)",
    )
    options.choices("--workload", WORKLOADS, f"for the verdict (default {', '.join(WORKLOADS)})")
    options.number("--seed", 0, "for the verdict: seed of the work")
    options.flag("--quick", "for the verdict: few requests and a small profile")
    options.folder("--work", "for the verdict: keep logs and profile in FOLDER")
    options.file("--json", "write the figures to FILE")


def run(args: argparse.Namespace) -> int:
    """Runs the cases and prints their rows; raises ConfigError if an argument is out of range or a trace cannot be
    read."""
    if min(args.seeds, args.draws, args.halves_outputs) < 1:
        raise ConfigError(
            f"--seeds, --draws and --halves-outputs must be at least 1, got {args.seeds}, {args.draws} and "
            f"{args.halves_outputs}"
        )
    chosen = args.case or _DEFAULT_CASES
    if not args.traces and set(chosen) != {"verdict"}:
        raise ConfigError(f"the cases {', '.join(_DEFAULT_CASES)} need recorded sets; pass their files")
    tokenizer = find_tokenizer(str(MODEL_FOLDER) if set(chosen) == {"verdict"} else args.tokenizer)
    content: dict[str, Any] = {
        "head": {**describe(("agentspec", "sglang", "torch", "numpy")), "tokenizer": tokenizer.name}
    }
    with tempfile.TemporaryDirectory() as folder:
        if "verdict" in chosen:
            content["verdict"] = _verdict(args, args.work or Path(folder))
            write_json(args.json, content)
        if "ranking" in chosen:
            rows = ranking_rows(args.traces, tokenizer, Path(folder))
            content["ranking"] = {**ranking(rows, CONTROLS), "goal": _RANK_GOAL, "rows": rows}
            for row in rows:
                print(f"{row['set']:<40} entropy {row['entropy']:.2f}  cold {row['cold']:.2f}  warm {row['warm']:.2f}")
            print({key: value for key, value in content["ranking"].items() if key != "rows"})
            write_json(args.json, content)
        if "prediction" in chosen:
            rows = prediction_rows(args.traces, tokenizer, args.seeds, Path(folder))
            content["prediction"] = {"goal": GOAL, "rows": rows}
            for row in rows:
                print(
                    f"{row['set']:<40} replayed {row['replayed']:.2f}  predicted {row['predicted']}  "
                    f"median error {row['median_error']:+.1%}  within {GOAL:.0%}: {row['within_goal']}  in the interval: "
                    f"{row['in_interval']}  within {GOAL:.0%} if the sample were known: {row['within_goal_if_known']}"
                )
            write_json(args.json, content)
        if "halves" in chosen:
            content["halves"] = {"goal": COVERAGE, "rows": []}
            for path in args.traces:
                row = halves_row(path, tokenizer, args.draws, args.halves_outputs, args.halves_replayed)
                content["halves"]["rows"].append(row)
                print(shown_halves(row), flush=True)
                write_json(args.json, content)
        if "scale" in chosen:
            content["scale"] = []
            for tokens in args.scale_tokens or [1_000_000]:
                row = scale_row(args.traces[0], tokenizer, args.tokenizer, tokens, args.memory_mb, Path(folder))
                content["scale"].append(row)
                print(row)
            write_json(args.json, content)
    return 0


def _verdict(args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    folder.mkdir(parents=True, exist_ok=True)
    plan = VerdictPlan(workloads=tuple(args.workload or WORKLOADS), profile=args.profile, seed=args.seed)
    if args.quick:
        plan = replace(plan, logged=60, warm=24, turns=1, quick=True)
    return verdict(plan, folder, lambda row: print(shown(row), flush=True))
