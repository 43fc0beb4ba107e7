"""`agentspec bench specdec`: drafts that stop where a head expects a rejection, beside drafts of a fixed length.

Dataset: what the tiny target writes on held-out text-to-SQL prompts; the chains of its drafters from every position of
it.
Metric: discard rate and verification rate (SpecDec++, equation 2.3), and the tokens a second by equation 2.1 with the
times of forwards measured here, or with those of the paper's models.
Pattern: all rules walk the same chains.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from agentspec.environment import describe
from agentspec.errors import ConfigError
from agentspec.evals.files import write_json
from agentspec.evals.options import Options
from agentspec.evals.research.specdec_report import markdown, panels
from agentspec.evals.research.specdec_rounds import (
    Counts,
    count_batches,
    count_fixed,
    count_oracle,
    count_stopped,
)
from agentspec.evals.sql_databases import temporary_databases
from agentspec.progress import Progress
from agentspec.scheduling.baselines import threshold_search
from agentspec.scheduling.baselines.candidate_length import theorem_threshold
from agentspec.scheduling.costs.profile import Profile

if TYPE_CHECKING:
    from agentspec.evals.research.specdec_costs import Drafters
    from agentspec.evals.research.tiny_sql.chains import Text
    from agentspec.integrations.sglang.drafting.acceptance_head import AcceptanceHead

MODELS = Path(__file__).resolve().parents[1] / "models"
FIXED = (2, 4, 6, 8, 10, 12, 14)
"""Lengths of the paper's baseline. `LONGEST` and 1, which a head may also choose, are measured beside them."""
LONGEST = 20
THRESHOLDS = tuple(sorted((0.0, *threshold_search.THRESHOLDS, 0.995, 0.999)))
PAPER_COSTS = (0.112, 0.0234)
"""(t_target, t_draft) of section 4.2: seconds of llama-2-chat 70B and 7B."""
_CHEAP_COSTS = (0.112, 0.0056)

Walk = tuple[NDArray[np.int64], NDArray[np.floating]]
"""For one text: `matches` [S] and the p_i [S, K] of its chains; see `specdec_rounds`."""


@dataclass(frozen=True)
class Rule:
    """The source of the p_i: a head, or the drafter's own confidence."""

    name: str
    depth: int | None = None
    rejection_weight: float | None = None
    threshold: float | None = None
    """The shipped head's own h."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options = Options(parser)
    options.folder("--target", "the model (default: tiny-sql)", MODELS / "tiny-sql")
    options.folder("--standalone", "its small draft model (default: tiny-sql-draft)", MODELS / "tiny-sql-draft")
    options.folder("--eagle3", "its EAGLE-3 head (default: tiny-sql-eagle3)", MODELS / "tiny-sql-eagle3")
    options.folder("--heads", "further heads, from `python -m agentspec.evals.research.train_acceptance --grid`")
    options.number("--texts", 200, "held-out texts")
    options.number("--seed", 0, "seed of the texts")
    options.number("--timed", 200, "timing rounds")
    options.number("--threads", 1, "CPU threads")
    options.number(
        "--rows", 8, "texts at a time, for the comparison of drafts that end row by row with those that end together"
    )
    options.file(
        "--profile", "times for that comparison, from `agentspec profile --draft-model`; without it there is none"
    )
    options.file("--json", "write the figures to FILE")
    options.file("--table", "write the tables to FILE, as Markdown")
    options.file("--plot", "write the curves to FILE, as SVG")


def run(args: argparse.Namespace) -> int:
    """Walks all texts by all rules and prints the tables.

    Raises:
        ConfigError: An argument is out of range, or a checkpoint or a head is missing or does not fit.
    """
    if min(args.texts, args.timed, args.threads, args.rows) < 1:
        raise ConfigError("--texts, --timed, --threads and --rows must be at least 1")
    profile = Profile.load(args.profile) if args.profile else None
    if profile is not None and profile.drafter is None:
        raise ConfigError(f"--profile must have the times of a draft model, got {args.profile}")
    # Set before torch loads OpenMP: threads that wait without spinning lose little on a busy machine.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    import torch

    from agentspec.evals.research.specdec_costs import load_drafters, measure_costs

    torch.set_num_threads(args.threads)
    folders = {"standalone": args.standalone, "eagle3": args.eagle3}
    pair = load_drafters(args.target, folders)
    heads = load_heads(pair, folders, args.heads)
    texts = held_out_texts(pair, args.texts, args.seed)
    walks = judge(pair, heads, texts)
    shipped = {name: head for name, of_one in heads.items() for rule, head in of_one.items() if rule.name == "shipped"}
    costs = measure_costs(pair, shipped, texts, args.timed)
    rows: list[dict[str, Any]] = []
    for name in pair.drafters:
        prices = {
            "measured": (costs.target_seconds, costs.draft[name], costs.head.get(name, 0.0)),
            "paper": (*PAPER_COSTS, 0.0),
            "drafting at 1/20": (*_CHEAP_COSTS, 0.0),
        }
        rows += rows_of(name, walks[name], prices)
    report = {
        "head": {
            **describe(("agentspec", "torch", "numpy")),
            "seed": args.seed,
            "texts": len(texts),
            "longest_draft": LONGEST,
            "seconds": {"target": costs.target, "draft": costs.draft, "acceptance_head": costs.head},
        },
        "rows": rows,
        "batches": [] if profile is None else batch_rows(walks, profile, args.rows),
    }
    table = markdown(report)
    print(table)
    write_json(args.json, report)
    if args.table:
        args.table.write_text(table, encoding="utf-8")
    if args.plot:
        from agentspec.analysis.plots import svg

        args.plot.write_text(svg(panels(rows), "discard rate", "verification rate"), encoding="utf-8")
    return 0


def load_heads(pair: Drafters, folders: Mapping[str, Path], grid: Path | None) -> dict[str, dict[Rule, AcceptanceHead]]:
    """Each drafter's shipped head, if there is one, and those of the grid."""
    from agentspec.integrations.sglang.drafting.acceptance_head import CONFIG_FILE, AcceptanceHead

    found: dict[str, dict[Rule, AcceptanceHead]] = {name: {} for name in pair.drafters}
    for name, drafter in pair.drafters.items():
        places = [("shipped", folders[name])]
        if grid is not None:
            if not (grid / name).is_dir():
                raise ConfigError(
                    f"--heads must hold a folder {name}, as train_acceptance --grid writes it, got {grid}"
                )
            places += [("head", folder) for folder in sorted((grid / name).iterdir())]
        for kind, folder in places:
            if kind == "shipped" and not (folder / CONFIG_FILE).is_file():
                continue
            head = AcceptanceHead.load(folder, drafter.hidden_size)
            config = head.config
            found[name][Rule(kind, config.depth, config.rejection_weight, config.threshold)] = head
    return found


def held_out_texts(pair: Drafters, count: int, seed: int) -> list[Text]:
    from agentspec.evals.research.tiny_sql.own_texts import own_texts

    with temporary_databases() as databases:
        drawn = own_texts(pair.target, pair.tokenizer, databases, pair.capture, split="heldout", seed=seed)
        texts = []
        with Progress("held-out texts", count) as progress:
            for text in islice(drawn, count):
                texts.append(text)
                progress.update(len(texts))
    return texts


def judge(
    pair: Drafters, heads: Mapping[str, Mapping[Rule, AcceptanceHead]], texts: Sequence[Text]
) -> dict[str, dict[Rule, list[Walk]]]:
    """The chains of every drafter on every text, with what each rule says of their tokens."""
    import torch

    from agentspec.evals.research.tiny_sql.chains import draft_all

    walks: dict[str, dict[Rule, list[Walk]]] = {}
    with Progress("chains", len(texts) * len(pair.drafters)) as progress:
        done = 0
        for name, drafter in pair.drafters.items():
            walks[name] = {Rule("confidence"): [], **{rule: [] for rule in heads[name]}}
            for text in texts:
                drafted = draft_all(drafter, text, LONGEST)
                matches, shape = drafted.matches.numpy(), drafted.confidences.shape
                walks[name][Rule("confidence")].append((matches, drafted.confidences.numpy()))
                with torch.no_grad():
                    states = drafted.states.flatten(0, 1).float()
                    for rule, head in heads[name].items():
                        walks[name][rule].append((matches, head(states).view(shape).numpy()))
                done += 1
                progress.update(done)
    return walks


def rows_of(
    drafter: str, walks: Mapping[Rule, Sequence[Walk]], prices: Mapping[str, tuple[float, float, float]]
) -> list[dict[str, Any]]:
    """A row for each fixed length, one for the oracle, and one for each rule at each threshold.

    `prices` are seconds of a forward of target, drafter and head. The head's is paid for every token drafted under it.
    """
    matches = [matches for matches, _ in walks[Rule("confidence")]]
    rows = [
        _row(drafter, {"rule": "fixed", "length": length}, count_fixed(matches, length), prices, judged=False)
        for length in (1, *FIXED, LONGEST)
    ]
    rows.append(_row(drafter, {"rule": "oracle"}, count_oracle(matches, LONGEST), prices, judged=False))
    theorem: dict[float, list[str]] = {}
    for name, (target, draft, head) in prices.items():
        theorem.setdefault(round(theorem_threshold(target, draft + head), 4), []).append(name)
    for rule, of_rule in walks.items():
        described = {"rule": rule.name, "depth": rule.depth, "rejection_weight": rule.rejection_weight}
        chosen = {rule.threshold} if rule.name == "shipped" else set()
        for h in sorted({*THRESHOLDS, *chosen, *theorem} - {None}):  # type: ignore[type-var]
            row = {**described, "h": h, "own_h": h in chosen, "theorem_h": theorem.get(float(h or 0), [])}
            judged = rule.name != "confidence"
            rows.append(_row(drafter, row, count_stopped(of_rule, float(h or 0)), prices, judged=judged))
    return rows


def batch_rows(walks: Mapping[str, Mapping[Rule, Sequence[Walk]]], profile: Profile, rows: int) -> list[dict[str, Any]]:
    """Tokens a second of `rows` texts at a time, by each threshold: where each row of a step ends by itself, with the
    widths of rows apart or padded to the widest, and where all end with the last."""
    assert profile.drafter is not None
    context = sum(profile.measured.context_lengths) / 2
    found = []
    for drafter, of_drafter in walks.items():
        for rule, of_rule in of_drafter.items():
            if rule.name not in ("shipped", "confidence"):
                continue
            for h in THRESHOLDS[1:]:
                by_row = count_batches(of_rule, h, rows, by_row=True)
                together = count_batches(of_rule, h, rows, by_row=False)
                speeds = {
                    name: round(1 / counts.seconds(profile.target, profile.drafter, context, padded=padded), 2)
                    for name, counts, padded in (
                        ("by_row", by_row, False),
                        ("by_row_padded", by_row, True),
                        ("together", together, True),
                    )
                }
                described = {"drafter": drafter, "rule": rule.name, "h": h, "rows": rows}
                found.append(
                    {
                        **described,
                        "tokens": by_row.tokens,
                        "verified": {"by_row": by_row.verified, "together": together.verified},
                        "discarded": {"by_row": by_row.discarded, "together": together.discarded},
                        "steps": {"by_row": by_row.steps, "together": together.steps},
                        "tokens_per_second": speeds,
                    }
                )
    return found


def _row(
    drafter: str,
    described: dict[str, Any],
    counts: Counts,
    prices: Mapping[str, tuple[float, float, float]],
    *,
    judged: bool,
) -> dict[str, Any]:
    return {
        "drafter": drafter,
        **described,
        "tokens": counts.tokens,
        "target_forwards": counts.target_forwards,
        "draft_forwards": counts.draft_forwards,
        "discarded": counts.discarded,
        "discard_rate": round(counts.discard_rate, 5),
        "verification_rate": round(counts.verification_rate, 5),
        "tokens_per_second": {
            name: round(1 / counts.latency(target, draft + (head if judged else 0.0)), 3)
            for name, (target, draft, head) in prices.items()
        },
    }
