"""`agentspec tune`: fits the estimates of acceptance to recorded outputs, and measures the result. With --draft-model it
finds the best `stop_threshold` for a draft model.

Dataset: recorded sessions (see agentspec.analysis.replay.traces); every --holdout-th session is kept out of the fit.
Metric: accepted and drafted tokens per step and the expected calibration error, on the sessions kept out.
Pattern: logistic regression on the continuations that the drafter weighed (agentspec.analysis.replay.tuning), then a
grid of min_token_prob. For a draft model, a server answers the prompts of the traces; each of its chains is then cut by every threshold and priced.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

from agentspec.analysis.replay import Call, load_tokenizer, read_trace
from agentspec.analysis.replay.tuning import check_scipy, collect_trials, fit, measure
from agentspec.cli.options import add_corpora, add_tokenizer, corpora_of, option
from agentspec.config import EngineConfig
from agentspec.environment import describe
from agentspec.errors import ConfigError
from agentspec.estimates import Estimates
from agentspec.progress import Progress
from agentspec.record_file import write_json

_Set: TypeAlias = tuple[str, list[Call], list[Call]]
"""A trace's name, the calls to fit on, and those kept out."""
_THRESHOLD_PACKAGES = ("agentspec", "sglang", "torch", "numpy")
_QUALITY = ("accepted_per_step", "drafted_per_step", "steps", "calibration_error")
# Cost of drafting a token, in accepted tokens, for the choice of min_token_prob.
_TOKEN_COST = 0.05
_GRID = (0.02, 0.03, 0.045, 0.06, 0.08, 0.1, 0.15)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "traces",
        nargs="+",
        metavar="TRACE",
        help="PATH, or PATH@START:STOP for a slice of sessions; with --draft-model a log that has prompts, of any format that "
        "agentspec report reads",
    )
    option(parser, "--out FILE", "the estimates to write", type=Path)
    text = "estimates to begin with (default: agentspec's own); if a fit changes much, fit again from its result"
    option(parser, "--start FILE", text, type=Path)
    option(parser, "--holdout K", "keep every K-th session out to measure on (default 4)", type=int, default=4)
    most = "greatest number of drafted tokens per step in measurements (default %(default)s)"
    option(parser, "--max-draft-tokens N", most, type=int, default=16)
    add_tokenizer(parser)
    add_corpora(parser)
    text = (
        "find the best stop_threshold for this draft model, an EAGLE head or a small model, on servers that this command "
        "starts. All unknown arguments go to SGLang, written as --flag=value"
    )
    option(parser, "--draft-model PATH", text)
    option(parser, "--model PATH", "with --draft-model: the model to serve")
    option(parser, "--steps N", "with --draft-model: the longest draft, in tokens (default 10)", type=int, default=10)
    rows = "with --draft-model: number of requests that usually run at the same time (default %(default)s)"
    option(parser, "--rows N", rows, type=int, default=1)
    text = "with --draft-model: the times of both models, from agentspec profile --draft-model (default: measure them)"
    option(parser, "--profile FILE", text, type=Path)
    option(parser, "--json FILE", "write the figures to FILE", type=Path)


def run(args: argparse.Namespace, rest: Sequence[str]) -> int:
    """Fits, measures, and writes the estimates. Raises ConfigError if an argument is out of range or unknown, a file
    cannot be read, the traces have nothing to fit or measure on, or scipy is not installed."""
    if args.draft_model:
        return _tune_threshold(args, rest)
    if rest:
        raise ConfigError(f"unknown arguments {' '.join(rest)}; see agentspec tune --help")
    if args.holdout < 2:
        raise ConfigError(f"--holdout must be at least 2, got {args.holdout}; 4 keeps a quarter out")
    if not args.out:
        raise ConfigError("--out or --draft-model must be given, got none; name a file for the estimates to write")
    if not args.out.parent.is_dir():
        raise ConfigError(f"--out must lie in a folder that exists, got {args.out}; make {args.out.parent} first")
    config = EngineConfig(max_draft_tokens=args.max_draft_tokens)
    check_scipy()
    tokenizer = load_tokenizer(args.tokenizer)
    start = Estimates.load(args.start) if args.start else Estimates.default()
    if args.corpus:
        # The fit stays near what it begins with, and weights of corpora that are all 0 would say that they never help.
        start = start.with_corpora()
    sets = [
        (trace.name, *_split(trace.calls, args.holdout)) for trace in (read_trace(t, tokenizer) for t in args.traces)
    ]
    rows: list[dict[str, Any]] = []
    head = {**describe(("agentspec", "numpy", "scipy")), "tokenizer": tokenizer.name}
    head["min_token_prob"] = _fit_estimates(sets, config, start, args, rows)
    write_json(args.json, {"head": head, "rows": rows})
    return 0


def _fit_estimates(
    sets: Sequence[_Set], config: EngineConfig, start: Estimates, args: argparse.Namespace, rows: list[dict[str, Any]]
) -> float:
    """Writes estimates, adds their quality to `rows`, and returns the best min_token_prob."""
    trials = []
    for name, kept, _ in sets:
        with Progress(f"{name} weighing", len(kept)) as progress:
            trials.append(collect_trials(kept, start, corpora=corpora_of(args), on_call=partial(_show, progress)))
    print(f"fitting to {sum(len(t.accepted) for t in trials)} continuations", file=sys.stderr)
    fitted = fit(trials, start, _note(sets, args.holdout))
    fitted.save(args.out)

    variants = [("before", replace(config, estimates=start))]
    variants += [(f"{p:g}", replace(config, estimates=fitted, min_token_prob=p)) for p in _GRID]
    for name, kept, held_out in sets:
        for variant, settings in variants:
            figures = measure(held_out, settings, warm=kept, corpora=corpora_of(args)).record()
            quality = {figure: figures[figure] for figure in _QUALITY}
            rows.append({"set": name, "variant": variant, "min_token_prob": settings.min_token_prob, **quality})
            print(
                f"{name:<28} {variant:>8}  accepted {quality['accepted_per_step']:6.3f}  "
                f"drafted {quality['drafted_per_step']:6.2f}  calibration error {quality['calibration_error'] or 0:.3f}",
                flush=True,
            )
    best = max(_GRID, key=lambda p: sum(_worth(row) for row in rows if row["variant"] == f"{p:g}"))
    print(f"wrote {args.out}; serve with --agentspec-estimates {args.out} --agentspec-min-token-prob {best:g}")
    return best


def _tune_threshold(args: argparse.Namespace, rest: Sequence[str]) -> int:
    """Finds the threshold for --draft-model, and prints it beside drafts of fixed lengths."""
    from agentspec.cli.tuned_threshold import threshold_report

    if args.out:
        raise ConfigError("--draft-model fits no estimates, got --out; run agentspec tune twice")
    if not args.model:
        raise ConfigError("--draft-model needs --model, the model to serve")
    if len(args.traces) != 1:
        raise ConfigError(f"--draft-model takes one log or folder of logs, got {len(args.traces)}")
    report = threshold_report(args, rest)
    print(report.shown())
    write_json(args.json, {"head": describe(_THRESHOLD_PACKAGES), **report.figures()})
    return 0


def _note(sets: Sequence[_Set], holdout: int) -> str:
    names = ", ".join(name for name, _, _ in sets)
    return f"fitted on {names}, every {holdout}th session kept out"


def _show(progress: Progress, number: int) -> None:
    progress.update(number, "calls")


def _split(calls: Sequence[Call], every: int) -> tuple[list[Call], list[Call]]:
    """The calls to fit on and those kept out, whole sessions each."""
    sessions = list(dict.fromkeys(call.session for call in calls))
    held_out = set(sessions[every - 1 :: every])
    if not held_out:
        raise ConfigError(
            f"--holdout must be at most the number of sessions, {len(sessions)}, got {every}; pass more traces or a "
            "smaller --holdout"
        )
    return [c for c in calls if c.session not in held_out], [c for c in calls if c.session in held_out]


def _worth(row: dict[str, Any]) -> float:
    return float(row["accepted_per_step"] - _TOKEN_COST * row["drafted_per_step"])
