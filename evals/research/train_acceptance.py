"""Trains acceptance-prediction heads (SpecDec++) for the drafters of the tiny SQL model, and ships the best of each.

Of each drafter, a head for every depth D and weight w_rej is trained on the same states. The one whose stopping rule
gives the least time a token on texts of their own is written beside the drafter.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentspec.evals.options import Options
from agentspec.evals.sql_databases import temporary_databases

if TYPE_CHECKING:
    from agentspec.evals.research.tiny_sql.acceptance import AcceptanceTraining, Examples
    from agentspec.evals.research.tiny_sql.chains import Drafted
    from agentspec.integrations.sglang.drafting.acceptance_head import AcceptanceHead

# Times of a forward of the drafter over the target's: of the best heads over this range, whatever the machine.
_COST_RATIOS = (0.1, 0.2, 0.3)
_THRESHOLDS = (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95)
_LONGEST = 20


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line."""
    options = _parser().parse_args(arguments)
    # Before torch loads OpenMP: threads that wait without spinning lose little on a machine that others use too.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    import torch

    from agentspec.evals.research.specdec_costs import load_drafters
    from agentspec.evals.research.tiny_sql.acceptance import AcceptanceTraining, Examples, mixed_examples
    from agentspec.evals.research.tiny_sql.chains import draft_all
    from agentspec.evals.research.tiny_sql.own_texts import own_texts
    from agentspec.progress import Progress

    torch.set_num_threads(options.threads)
    training = AcceptanceTraining(
        depths=tuple(options.depths),
        weights=tuple(options.weights),
        mixing=options.mixing,
        seed=options.seed,
        after=options.after,
    )
    start = time.monotonic()
    pair = load_drafters(options.target, {"standalone": options.standalone, "eagle3": options.eagle3})
    random = torch.Generator().manual_seed(options.seed)
    learnt: dict[str, list[Examples]] = {name: [] for name in pair.drafters}
    measured: dict[str, list[Drafted]] = {name: [] for name in pair.drafters}
    with temporary_databases() as databases:
        drawn = own_texts(pair.target, pair.tokenizer, databases, pair.capture, split="train", seed=options.seed + 1000)
        total = options.texts + options.measured
        with Progress("texts", total) as progress:
            for number, text in enumerate(islice(drawn, total)):
                for name, drafter in pair.drafters.items():
                    if number < options.texts:
                        learnt[name].append(mixed_examples(drafter, text, training, random))
                    else:
                        drafted = draft_all(drafter, text, _LONGEST)
                        measured[name].append(drafted.after() if training.after else drafted)
                progress.update(number + 1)
    print(f"{total} texts, {(time.monotonic() - start) / 60:.1f} min", file=sys.stderr, flush=True)
    folders = {"standalone": options.standalone, "eagle3": options.eagle3}
    for name in pair.drafters:
        examples = Examples.joined(learnt.pop(name))
        _train_all(name, examples, measured.pop(name), training, folders[name], options.grid)
    print(f"trained in {(time.monotonic() - start) / 60:.1f} min", file=sys.stderr)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m agentspec.evals.research.train_acceptance", description=__doc__.partition("\n")[0]
    )
    options = Options(parser)
    options.folder("--target", "folder of the model, e.g. evals/models/tiny-sql", required=True)
    options.folder("--standalone", "folder of the small Llama", required=True)
    options.folder("--eagle3", "folder of the EAGLE-3 head", required=True)
    options.folder("--grid", "folder for all heads, for `agentspec bench specdec --heads`")
    options.add("--depths", type=int, nargs="+", default=[0, 1, 2, 3], help="depths D of heads (default: %(default)s)")
    weights = "weights w_rej of rejections in the loss (default: %(default)s)"
    options.add("--weights", type=float, nargs="+", default=[1, 3, 6], help=weights)
    options.number("--mixing", 0.85, "r, share of the target's tokens among the inputs of a chain")
    after = "judge tokens by the state after them, which costs a pass more; such heads are measured and not shipped"
    options.flag("--after", after)
    options.number("--texts", 400, "texts to learn from")
    options.number("--measured", 80, "texts to choose a head by")
    options.number("--seed", 0, "seed of weights and texts")
    options.number("--threads", 2, "CPU threads")
    return parser


def _train_all(
    name: str,
    examples: Examples,
    measured: Sequence[Drafted],
    training: AcceptanceTraining,
    folder: Path,
    grid: Path | None,
) -> None:
    """Train a drafter's heads, print how good they are, write the best beside the drafter and all into the grid."""
    import torch

    from agentspec.evals.research.tiny_sql.acceptance import fit_calibration, train_head
    from agentspec.integrations.sglang.drafting.acceptance_head import AcceptanceConfig, AcceptanceHead

    share = float(examples.labels.mean())
    print(f"{name}: {len(examples.labels)} examples, {share:.1%} accepted", flush=True)
    reached = torch.cat([one.reached.flatten() for one in measured])
    states = torch.cat([one.states.flatten(0, 1) for one in measured])[reached].float()
    columns = torch.cat([torch.arange(one.states.shape[1]).expand(len(one.matches), -1).flatten() for one in measured])
    matches = torch.cat([one.matches.repeat_interleave(one.states.shape[1]) for one in measured])
    labels = (columns < matches)[reached].float()
    best: tuple[float, AcceptanceHead, dict[str, Any]] | None = None
    for depth in training.depths:
        for weight in training.weights:
            head = train_head(examples, depth, weight, training)
            logits = head.logits(states)
            scale, shift = fit_calibration(logits, labels)
            loss = float(torch.nn.functional.binary_cross_entropy_with_logits(scale * logits + shift, labels))
            cost, threshold = _cost(head, measured, after=training.after)
            config = AcceptanceConfig(examples.states.shape[1], depth, weight, threshold, scale, shift)
            finished = AcceptanceHead(config)
            finished.load_state_dict(head.state_dict())
            notes = {
                "drafter": name,
                "mixing": training.mixing,
                "seed": training.seed,
                "examples": len(examples.labels),
                "accepted_share": round(share, 4),
                "calibrated_loss": round(loss, 4),
                "cost": round(cost, 4),
            }
            print(
                f"  D={depth} w_rej={weight:g}: calibrated loss {loss:.4f}, cost {cost:.4f} at h={threshold}",
                flush=True,
            )
            if grid is not None:
                finished.save(grid / name / f"d{depth}-w{weight:g}", notes)
            if best is None or cost < best[0]:
                best = cost, finished, notes
    assert best is not None
    _, head, notes = best
    if training.after:
        print(f"{name}: best D={head.config.depth} w_rej={head.config.rejection_weight:g}", flush=True)
        return
    head.save(folder, notes)
    print(f"{name}: shipped D={head.config.depth} w_rej={head.config.rejection_weight:g}", flush=True)


def _cost(head: AcceptanceHead, measured: Sequence[Drafted], *, after: bool) -> tuple[float, float]:
    """Time a token over the target's forward, at the best thresholds, mean over cost ratios; and the best h overall.

    The state after a token comes from the pass that drafts the next one. So a rule that judges by it makes one pass more
    in each round than there are tokens in the draft.
    """
    from agentspec.evals.research.specdec_rounds import count_stopped

    judged = [
        (one.matches.numpy(), head(one.states.flatten(0, 1)).view(one.states.shape[:2]).numpy()) for one in measured
    ]
    counts = {h: count_stopped(judged, h) for h in _THRESHOLDS}
    if after:
        counts = {
            h: replace(count, draft_forwards=count.draft_forwards + count.target_forwards)
            for h, count in counts.items()
        }
    costs = {h: [count.latency(1.0, ratio) for ratio in _COST_RATIOS] for h, count in counts.items()}
    least = [min(cost[place] for cost in costs.values()) for place in range(len(_COST_RATIOS))]
    return sum(least) / len(least), min(costs, key=lambda h: sum(costs[h]))


if __name__ == "__main__":
    raise SystemExit(main())
