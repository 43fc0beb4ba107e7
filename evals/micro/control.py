"""`agentspec bench control`: what deciding costs a decode step.

Dataset: drawn drafts, trees of at most 31 nodes or of exactly 31, with estimates that fall along the row.
Metric: milliseconds of plan() and observe() in one step, CPU time of the thread, median over steps.
Pattern: controllers take turns over the same steps, so that they meet the same disturbances of the machine.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from typing import Any, get_args

import numpy as np

from agentspec.drafts import DraftBatch
from agentspec.environment import describe
from agentspec.errors import ConfigError
from agentspec.evals.files import write_json
from agentspec.evals.options import Options
from agentspec.progress import Progress
from agentspec.scheduling import (
    ControlConfig,
    Controller,
    ControllerName,
    LengthModel,
    MeasuredRange,
    Profile,
    ProfileKey,
    StepCost,
    StepState,
    make_controller,
)

BATCHES = (1, 16, 64, 256)
NODES = 32
"""In a row, root included."""
WIDTHS = (1, 2, 4, 8, 16, 32)
GOAL_MS = 0.3
_CONTEXT = 1000
_DRAWN = 8
_COST = StepCost(1e-7, 3e-5, 0.012)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options = Options(parser)
    options.number("--steps", 500, "steps of each case")
    options.number("--seed", 0, "seed of the drafts")
    options.file("--json", "write the figures to FILE")


def run(args: argparse.Namespace) -> int:
    """Runs all cases and prints a row for each; raises ConfigError if an argument is out of range."""
    if args.steps < 1:
        raise ConfigError(f"--steps must be >= 1, got {args.steps}")
    rows = measure(args.steps, args.seed)
    print(f"{'case':<50}{'median':>9}{'p99':>9}  ms of CPU time a step; goal {GOAL_MS:g}")
    for row in rows:
        print(f"{row['case']:<50}{row['value']:>9.3f}{row['p99']:>9.3f}")
    facts = {"seed": args.seed, "steps": args.steps, "nodes_a_row": NODES, "widths": WIDTHS, "goal_ms": GOAL_MS}
    write_json(args.json, {"head": {**describe(("agentspec", "numpy")), **facts}, "rows": rows})
    return 0


def measure(steps: int, seed: int = 0, batches: Sequence[int] = BATCHES) -> list[dict[str, Any]]:
    """A row for each controller, batch size and kind of drafts. The row of the default controller on full drafts, which
    take longest, has the batch size as its whole name."""
    rows = []
    done = 0
    with Progress("bench control", len(batches) * 2 * steps) as progress:
        for num_rows in batches:
            for drafts in ("full", "ragged"):
                rng = np.random.default_rng(seed)
                drawn = [draw_batch(rng, num_rows, full=drafts == "full") for _ in range(_DRAWN)]
                controllers = _controllers()
                taken: dict[str, list[float]] = {name: [] for name in controllers}
                for step in range(steps):
                    state = StepState(drawn[step % _DRAWN], _CONTEXT * num_rows, WIDTHS, WIDTHS[-1])
                    luck = rng.random(num_rows)
                    for name, controller in controllers.items():
                        taken[name].append(_step_ms(controller, state, luck))
                    done += 1
                    progress.update(done, "steps")
                for name, times in taken.items():
                    is_main = name == "goodput" and drafts == "full"
                    rows.append(
                        {
                            "case": f"controller_ms_batch{num_rows}" + ("" if is_main else f"_{name}_{drafts}"),
                            "controller": name,
                            "batch": num_rows,
                            "drafts": drafts,
                            "value": float(np.median(times)),
                            "p99": float(np.quantile(times, 0.99)),
                            "unit": "ms",
                        }
                    )
    return rows


def draw_batch(rng: np.random.Generator, num_rows: int, *, full: bool) -> DraftBatch:
    """Trees of NODES nodes, or of at most that many, roots included."""
    counts = np.full(num_rows, NODES) if full else rng.integers(1, NODES + 1, num_rows)
    offsets = np.concatenate([[0], counts.cumsum()]).astype(np.int32)
    columns = np.arange(offsets[-1]) - np.repeat(offsets[:-1], counts)
    # A node's parent is one of the three before it.
    parents = np.maximum(columns - rng.integers(1, 4, len(columns)), 0)
    estimates = np.repeat(rng.uniform(0.5, 0.95, num_rows), counts) ** columns
    return DraftBatch(
        offsets=offsets,
        tokens=np.zeros(len(columns), np.int32),
        parents=np.where(columns > 0, parents, -1).astype(np.int32),
        estimates=estimates.astype(np.float32),
        sources=(columns > 0).astype(np.uint8),
        match_lens=np.where(counts > 1, 8, 0).astype(np.int32),
        scores=(np.add.reduceat(estimates, offsets[:-1]) - 1.0).astype(np.float32),
    )


def _controllers() -> dict[str, Controller]:
    profile = Profile(
        key=ProfileKey(model="", device="", engine="", graphs=""),
        target=_COST,
        measured=MeasuredRange(batch_sizes=(1, 256), context_lengths=(1, 8000), widths=(1, 32)),
        widths=WIDTHS,
        peak_flops=1e15,
        peak_bandwidth=4.8e12,
    )
    configs = {name: ControlConfig(controller=name) for name in get_args(ControllerName) if name != "sweep"}
    models: tuple[LengthModel, ...] = ("tree", "confidence")
    for model in models:
        configs[f"smartspec-{model}"] = ControlConfig(controller="smartspec", length_model=model)
    return {name: make_controller(config, profile) for name, config in configs.items()}


def _step_ms(controller: Controller, state: StepState, luck: np.ndarray[Any, np.dtype[np.float64]]) -> float:
    """`luck` is the share of nodes that are accepted in each row."""
    num_rows = len(state.drafts)
    start = time.thread_time_ns()
    plan = controller.plan(state)
    middle = time.thread_time_ns()
    accepted = (luck * plan.num_nodes).astype(np.int32)
    seconds = _COST.seconds(state.context, num_rows * plan.width)
    again = time.thread_time_ns()
    controller.observe(plan, accepted, seconds, context=state.context)
    return (middle - start + time.thread_time_ns() - again) / 1e6
