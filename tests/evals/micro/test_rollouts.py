"""Drawn rollouts, and the time until the last has ended."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from every import every

from agentspec.cli import main
from agentspec.drafts import DraftBatch
from agentspec.errors import ConfigError
from agentspec.evals.micro.rollouts import WAYS, best_width, finish
from agentspec.evals.workloads.rollouts import RolloutShape, drawn_rollouts
from agentspec.integrations.emulated_device.models.step_times import StepTimes

SHAPE = RolloutShape(prompts=2, rollouts=3, median_tokens=120)
WAY = {way.name: way for way in WAYS}


def test_rollouts_of_a_prompt_share_it_and_much_of_their_text() -> None:
    calls = drawn_rollouts(SHAPE, 0)
    assert [call.task for call in calls] == ["0"] * 3 + ["1"] * 3
    assert len({call.session for call in calls}) == 6
    assert np.array_equal(calls[0].prompt, calls[2].prompt) and not np.array_equal(calls[0].prompt, calls[3].prompt)
    again, other = drawn_rollouts(SHAPE, 0), drawn_rollouts(SHAPE, 1)
    assert all(np.array_equal(one.output, two.output) for one, two in zip(calls, again, strict=True))
    assert not np.array_equal(calls[0].output[:20], other[0].output[:20])

    def fours(number: int) -> set[tuple[int, ...]]:
        output = calls[number].output.tolist()
        return {tuple(output[i : i + 4]) for i in range(len(output) - 3)}

    assert len(fours(0) & fours(1)) > 3 * len(fours(0) & fours(3))


@pytest.mark.parametrize(
    "wrong", [{"prompts": 0}, {"own_words": 0.8, "repeats": 0.3}, {"spread": -1.0}, {"slips": 1.5}]
)
def test_shapes_out_of_range(wrong: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match="must be"):
        RolloutShape(**wrong)  # type: ignore[arg-type]


def drafts(*rows: list[float]) -> DraftBatch:
    """A chain for each row, with these estimates."""
    sizes = [len(row) + 1 for row in rows]
    estimates = np.array([value for row in rows for value in (1.0, *row)], np.float32)
    return DraftBatch(
        offsets=np.concatenate(([0], np.cumsum(sizes))).astype(np.int32),
        tokens=np.zeros(len(estimates), np.int32),
        parents=np.concatenate([np.arange(-1, size - 1) for size in sizes]).astype(np.int32),
        estimates=estimates,
        sources=np.zeros(len(estimates), np.uint8),
        match_lens=np.zeros(len(rows), np.int32),
        scores=np.array([sum(row) for row in rows], np.float32),
    )


def test_the_width_promises_the_most_tokens_a_second() -> None:
    two = drafts([0.9, 0.8, 0.7], [])
    seconds = {1: 1.0, 2: 1.3, 4: 1.6}
    # Tokens: 2, 2.9 and 4.4 of both rows.
    assert best_width(two, np.ones(2), seconds) == 4
    assert best_width(two, np.ones(2), {1: 1.0, 2: 1.4, 4: 2.4}) == 2
    # The second row counts almost alone, and it has no drafts.
    assert best_width(two, np.array([0.01, 1.99]), seconds) == 1


@every("way", WAYS)
def test_all_rollouts_end(way: object) -> None:
    calls = drawn_rollouts(SHAPE, 0)
    longest = max(len(call.output) for call in calls) - 1
    found = finish(calls, way, StepTimes.load("h200-8b"), 0.001)  # type: ignore[arg-type]
    assert 0 < found.mean_finished <= found.makespan and 0 < found.steps <= longest
    if way is WAY["plain"]:
        assert found.steps == longest and found.accepted_per_step == 0
    else:
        assert found.steps < longest and found.accepted_per_step > 0


def test_siblings_are_drafted_from_before_they_end() -> None:
    calls = drawn_rollouts(SHAPE, 0)
    times = StepTimes.load("h200-8b")
    with_siblings = finish(calls, WAY["siblings, 15 tokens"], times, 0.001)
    without = finish(calls, WAY["finished outputs, 15 tokens"], times, 0.001)
    assert with_siblings.accepted_per_step > 1.2 * without.accepted_per_step


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "rollouts.json"
    words = ["--prompts", "2", "--rollouts", "2", "--median-tokens", "60", "--seeds", "2", "--json", str(out)]
    assert main(["bench", "rollouts", *words]) == 0
    found = json.loads(out.read_text())
    assert len(found["rows"]) == 2 * len(WAYS) and found["head"]["shape"]["rollouts"] == 2
    shown = capsys.readouterr().out
    assert all(way.name in shown for way in WAYS)
    assert main(["bench", "rollouts", "--seeds", "0"]) == 2
