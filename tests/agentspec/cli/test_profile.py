from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from server_requests import chat_prompts

from agentspec.cli import main
from agentspec.cli.profile import ProfilePlan
from agentspec.errors import ServerError
from agentspec.evals.systems import EAGLE3_FOLDER
from agentspec.evals.text_to_sql import MODEL_FOLDER
from agentspec.integrations.servers.server import RunningServer
from agentspec.integrations.servers.serving_costs import Cell
from agentspec.integrations.servers.told_steps import measured
from agentspec.scheduling import Profile


class Told(RunningServer):
    """A server whose steps take known times. One step of each cell takes about ten times as long as the others."""

    def __init__(self, *, tells: bool = True) -> None:
        super().__init__("http://told")
        self.steps: list[tuple[int, int, int, float]] = []
        self.tells = tells
        self.asked: list[Any] = []

    def get(self, path: str, timeout: float = 30.0) -> Any:
        return {"model_path": "nowhere"}

    def post(self, path: str, body: Any = None, timeout: float = 300.0) -> Any:
        self.asked.append(body)
        rows, length = 2, len(body["input_ids"][0])
        seconds = 0.01 + 1e-6 * length
        # Rows come and go: some steps have only one row.
        steps = [(1, 4, length, 0.5), *[(rows, 4, rows * length, seconds)] * 4, (rows, 4, rows * length, 0.1)]
        self.steps += steps * len(body["input_ids"])

    def agentspec_state(self) -> dict[str, Any] | None:
        # Drafts of three passes take a tenth of their step's time.
        drafts = [(rows, 3, context, seconds / 10) for rows, _, context, seconds in self.steps]
        told = {"num_steps": len(self.steps), "steps": self.steps, "num_drafts": len(drafts), "drafts": drafts}
        return {"control": told if self.tells else {}}


def test_a_cell_is_the_median_of_its_steps_with_all_rows() -> None:
    server = Told()
    points = measured(server, [Cell(2, 100), Cell(2, 300)], 8, random.Random(1))
    assert [(point.rows, point.width, point.context) for point in points] == [(2, 4, 200), (2, 4, 600)]
    assert [point.seconds for point in points] == pytest.approx([0.0101, 0.0103])
    # The first cell ran once more to warm up, and no prompt was sent twice.
    assert len(server.asked) == 3
    assert len({tuple(prompt) for body in server.asked for prompt in body["input_ids"]}) == 6


def test_a_server_that_takes_widths_in_turn_gives_a_point_of_each() -> None:
    class Sweeping(Told):
        def post(self, path: str, body: Any = None, timeout: float = 300.0) -> Any:
            length = len(body["input_ids"][0])
            # The widest width has too few steps for a point.
            self.steps += [(2, width, 2 * length, 0.01 * width) for width in (1, 2, 4, 1, 2, 4, 1, 2, 4, 8)]

    points = measured(Sweeping(), [Cell(2, 100)], 8, random.Random(1))
    assert [(point.width, point.seconds) for point in points] == [(1, 0.01), (2, 0.02), (4, 0.04)]


def test_a_draft_is_the_seconds_of_one_of_its_passes() -> None:
    points = measured(Told(), [Cell(2, 100), Cell(2, 300)], 8, random.Random(1), "drafts")
    assert [(point.rows, point.width, point.context) for point in points] == [(2, 1, 200), (2, 1, 600)]
    assert [point.seconds for point in points] == pytest.approx([0.0101 / 30, 0.0103 / 30])


def test_cells_that_were_not_together_are_left_out() -> None:
    assert measured(Told(), [Cell(3, 100)], 8, random.Random(1)) == []


def test_rows_that_did_not_begin_together_are_asked_once_more() -> None:
    class Late(Told):
        def post(self, path: str, body: Any = None, timeout: float = 300.0) -> Any:
            super().post(path, body)
            if len(self.asked) in (2, 3):
                self.steps = [(1, *rest) for _, *rest in self.steps]

    server = Late()
    points = measured(server, [Cell(2, 100)], 8, random.Random(1))
    assert [(point.rows, point.seconds) for point in points] == [(2, pytest.approx(0.0101))]
    assert len(server.asked) == 4


def test_a_server_that_does_not_tell_its_steps() -> None:
    with pytest.raises(ServerError, match="AGENTSPEC_PROFILING"):
        measured(Told(tells=False), [Cell(2, 100)], 8, random.Random(1))


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["http://here", "--model", "m"],
        ["http://here", "--widths-of", "1"],
        ["http://here", "--draft-model", "m"],
        ["--model", "m", "--widths", "2,4"],
        ["--model", "m", "--batch-sizes", "0,1"],
        ["--model", "m", "--tokens", "2"],
        ["http://here", "--sweep"],
        ["http://here", "--calls", "log"],
    ],
)
def test_arguments_that_do_not_go_together(words: list[str], tmp_path: Path) -> None:
    assert main(["profile", *words, "--out", str(tmp_path / "profile.json")]) == 2


@pytest.mark.parametrize(
    ("sweep", "serving", "wanted"),
    [
        (False, False, [(1, "p"), (4, "p"), (16, "p")]),
        (False, True, [(1, "ps"), (4, "p"), (16, "ps")]),
        (True, False, [(16, "wp")]),
        (True, True, [(16, "wp"), (1, "s"), (16, "s")]),
    ],
)
def test_servers_of_a_profile(sweep: bool, serving: bool, wanted: list[tuple[int, str]]) -> None:
    plan = ProfilePlan(
        model=Path("m"), batch_sizes=[1], context_lengths=[9], widths=[1, 4, 16], sweep=sweep, serving=serving
    )
    found = [(of.width, "w" * of.sweep + "p" * of.points + "s" * of.serving) for of in plan.servers]
    assert found == wanted


@pytest.mark.sglang
@pytest.mark.server
def test_a_small_profile_of_the_small_model(tmp_path: Path) -> None:
    out, figures = tmp_path / "profile.json", tmp_path / "figures.json"
    words = ["--sweep", "--widths", "1,2,4", "--batch-sizes", "1,4", "--context-lengths", "32,200"]
    files = ["--out", str(out), "--json", str(figures), "--draft-model", str(EAGLE3_FOLDER)]
    log = tmp_path / "log.jsonl"
    requests = [{"messages": [{"role": "user", "content": text}], "output": "x"} for text in chat_prompts(24, seed=7)]
    log.write_text("".join(json.dumps(request) + "\n" for request in requests))
    files += ["--calls", str(log)]
    assert main(["profile", "--model", str(MODEL_FOLDER), *words, *files]) == 0
    profile = Profile.load(out)
    assert profile.key.model == MODEL_FOLDER.name and profile.key.engine.startswith("sglang ")
    assert len(profile.points) == 12 and profile.widths == (1, 2, 4)
    assert 0 < profile.target.seconds(100, 2) < 5
    assert profile.drafter is not None and 0 < profile.drafter.seconds(100, 2) < 5
    assert profile.peak_flops and profile.peak_bandwidth and profile.hidden_size
    assert [size for size, _ in profile.lengths] == [1, 4] and {length for _, length in profile.lengths} <= {0, 1, 3}
    assert len(profile.accepted) == 3 and 0 < profile.accepted[0] <= 1
    assert str(tmp_path) not in json.dumps(json.loads(figures.read_text())["command"])
