"""`agentspec bench rollouts`: the time until the last of many rollouts has ended, as reinforcement learning waits for it.

Dataset: drawn rollouts (agentspec.evals.workloads.rollouts). All begin at the same time and run in one batch.
Metric: seconds until the last one ends (makespan) by the step times of an emulated device; accepted tokens a step.
Pattern: the same rollouts with each source of drafts. Each step has the width that promises the most tokens a second, by
the drafts' estimates and the known step times. "lengths known" weighs each row's tokens by those that it really has left
(DAS: more drafts for long rollouts): the most that knowing lengths could bring.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from agentspec.analysis.replay.engine_system import as_draft
from agentspec.analysis.replay.teacher_forcing import accepted_nodes
from agentspec.analysis.replay.traces import Call
from agentspec.config import EngineConfig
from agentspec.drafts import DraftBatch
from agentspec.engine import Engine
from agentspec.environment import describe
from agentspec.errors import ConfigError
from agentspec.evals.files import write_json
from agentspec.evals.options import Options
from agentspec.evals.workloads.rollouts import RolloutShape, drawn_rollouts
from agentspec.integrations.emulated_device.models.step_times import StepTimes
from agentspec.progress import Progress

_WIDTHS = (1, 2, 4, 8, 16)
"""Those of captured graphs, to which all rows of a step are padded."""


@dataclass(frozen=True, slots=True)
class Way:
    """How rollouts are drafted for."""

    name: str
    siblings: int
    """EngineConfig.max_siblings."""
    width: int | None = None
    """Of every step; None: the one that promises the most."""
    knows_lengths: bool = False


WAYS = (
    Way("plain", 0, width=1),
    Way("finished outputs", 0),
    Way("siblings", EngineConfig().max_siblings),
    Way("siblings, lengths known", EngineConfig().max_siblings, knows_lengths=True),
    Way("finished outputs, 15 tokens", 0, width=_WIDTHS[-1]),
    Way("siblings, 15 tokens", EngineConfig().max_siblings, width=_WIDTHS[-1]),
)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of all rollouts."""

    makespan: float
    """Seconds until the last has ended."""
    mean_finished: float
    """Seconds until a rollout has ended, on average."""
    steps: int
    accepted_per_step: float
    """Of a row, bonus tokens not counted."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options = Options(parser)
    shape = RolloutShape()
    options.number("--prompts", shape.prompts, "prompts")
    options.number("--rollouts", shape.rollouts, "rollouts of each")
    options.number("--median-tokens", shape.median_tokens, "usual length of a rollout")
    options.number("--own-words", shape.own_words, "share of phrases that occur nowhere else")
    options.number("--seeds", 3, "numbers of draws, with seeds 0, 1, ...")
    options.text("--device", "h200-8b", "emulated device whose step times count")
    options.number("--overhead", 0.001, "seconds of a step besides its forward pass")
    options.file("--json", "write the figures to FILE")


def run(args: argparse.Namespace) -> int:
    """Runs every way on every draw, and prints a table.

    Raises:
        ConfigError: An argument is out of range, or the device is unknown.
    """
    if args.seeds < 1 or not args.overhead >= 0:
        raise ConfigError(f"--seeds must be at least 1 and --overhead 0 or more, got {args.seeds} and {args.overhead}")
    shape = RolloutShape(
        prompts=args.prompts, rollouts=args.rollouts, median_tokens=args.median_tokens, own_words=args.own_words
    )
    times = StepTimes.load(args.device)
    rows: list[dict[str, Any]] = []
    with Progress("rollouts", args.seeds * len(WAYS)) as progress:
        for seed in range(args.seeds):
            calls = drawn_rollouts(shape, seed)
            for way in WAYS:
                rows.append({"seed": seed, "way": way.name, **asdict(finish(calls, way, times, args.overhead))})
                progress.update(len(rows))
    print(table(rows))
    head = {
        **describe(("agentspec", "numpy")),
        "shape": asdict(shape),
        "device": args.device,
        "overhead": args.overhead,
    }
    write_json(args.json, {"head": head, "rows": rows})
    return 0


def finish(calls: Sequence[Call], way: Way, times: StepTimes, rest: float) -> Outcome:
    """Writes all rollouts in one batch.

    Args:
        calls: They begin at the same time.
        way: How they are drafted for.
        times: Seconds of forward passes.
        rest: Seconds of a step besides.
    """
    engine = Engine(EngineConfig(max_siblings=way.siblings, max_draft_tokens=_WIDTHS[-1] - 1))
    truths = [call.output.tolist() for call in calls]
    done = [1] * len(calls)
    for number, call in enumerate(calls):
        engine.open(str(number), call.prompt)
        engine.extend(str(number), call.output[:1])
    running = [number for number, truth in enumerate(truths) if len(truth) > 1]
    clock, steps, accepted, row_steps = 0.0, 0, 0, 0
    ended = [0.0] * len(calls)
    while running:
        b = len(running)
        context = sum(len(calls[number].prompt) + done[number] for number in running)
        seconds = {width: times.target(b, b * width, context) + rest for width in _WIDTHS}
        if way.width == 1:
            drafts, width = None, 1
        else:
            drafts = engine.draft([str(number) for number in running])
            left = np.array([len(truths[number]) - done[number] for number in running], np.float64)
            weights = left / left.mean() if way.knows_lengths else np.ones(b)
            width = way.width or best_width(drafts, weights, seconds)
            drafts = drafts.first(np.full(b, width - 1, np.int32))
        clock, steps, row_steps = clock + seconds[width], steps + 1, row_steps + b
        going = []
        for row, number in enumerate(running):
            truth, place = truths[number], done[number]
            kept = len(accepted_nodes(as_draft(drafts.row(row)), truth[place:-1])) if drafts is not None else 0
            accepted += kept
            done[number] = place + kept + 1
            engine.extend(str(number), calls[number].output[place : done[number]])
            if done[number] < len(truth):
                going.append(number)
            else:
                engine.close(str(number))
                ended[number] = clock
        running = going
    return Outcome(clock, float(np.mean(ended)), steps, accepted / max(row_steps, 1))


def best_width(drafts: DraftBatch, weights: NDArray[np.float64], seconds: dict[int, float]) -> int:
    """The width that promises the most tokens a second, each row's tokens weighted."""
    rows = np.repeat(np.arange(len(drafts)), np.diff(drafts.offsets))
    places = np.arange(drafts.offsets[-1]) - np.repeat(drafts.offsets[:-1], np.diff(drafts.offsets))
    # The root's estimate is 1: it stands for the bonus token.
    promised = np.bincount(places, drafts.estimates * weights[rows], minlength=max(seconds)).cumsum()
    return max(seconds, key=lambda width: float(promised[width - 1] / seconds[width]))


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Makespans and accepted tokens, means over draws, beside those with finished outputs alone."""
    lines = [f"{'':<28}  {'makespan s':>10}  {'of finished':>11}  {'mean end s':>10}  {'steps':>7}  accepted a step"]
    by_seed = {row["seed"]: row["makespan"] for row in rows if row["way"] == "finished outputs"}
    for name in dict.fromkeys(row["way"] for row in rows):
        of_way = [row for row in rows if row["way"] == name]
        mean = {
            key: float(np.mean([row[key] for row in of_way]))
            for key in ("makespan", "mean_finished", "steps", "accepted_per_step")
        }
        gain = float(np.mean([by_seed[row["seed"]] / row["makespan"] for row in of_way]))
        lines.append(
            f"{name:<28}  {mean['makespan']:10.2f}  {gain:10.2f}x  {mean['mean_finished']:10.2f}  {mean['steps']:7.0f}  "
            f"{mean['accepted_per_step']:15.2f}"
        )
    return "\n".join(lines)
