"""What a client measures of servers whose times are known."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from typing import Any

import pytest

from agentspec.integrations.servers.server import RunningServer
from agentspec.integrations.servers.serving_costs import Cell, ServingMeter, held_up


def test_what_holds_up_is_what_pauses_are_over_the_usual_one() -> None:
    times = [0, 1, 2, 3, 7, 8, 9, 10, 13, 14, 15]
    windows = [(64, 3.2, 6.5), (16, 10.5, 12.0), (256, 14.5, 20.0)]
    assert held_up(times, windows) == pytest.approx({64: 3.0, 16: 2.0})


def test_where_steps_overlap_a_pause_of_the_prefill_alone_and_one_of_two_steps_make_one_prefill() -> None:
    times = [0, 1, 2, 3, 5.5, 7.5, 8.5, 9.5]
    assert held_up(times, [(64, 2.5, 6.9)]) == pytest.approx({64: 2.5})


class Sleeping(RunningServer):
    """A server that takes a millisecond a step and row, and says how long it verified: half of that."""

    def __init__(self) -> None:
        super().__init__("http://sleeping")
        self.steps: list[tuple[int, int, int, float]] = []
        self.prompts: list[tuple[int, ...]] = []

    def get(self, path: str, timeout: float = 30.0) -> Any:
        return {"disable_overlap_schedule": False}

    def post(self, path: str, body: Any = None, timeout: float = 300.0) -> Any:
        ids = body["input_ids"]
        prompts = ids if isinstance(ids[0], list) else [ids]
        self.prompts += map(tuple, prompts)
        tokens = body["sampling_params"]["max_new_tokens"]
        time.sleep(1e-3 * (tokens - 1) * len(prompts))
        self.steps += [(len(prompts), 1, 10, 5e-4 * len(prompts))] * (tokens - 1)

    def stream(self, path: str, body: Any, timeout: float = 300.0) -> Iterator[Any]:
        for token in range(20):
            time.sleep(0.01)
            yield token

    def told(self) -> list[tuple[int, int, int, float]]:
        steps, self.steps = self.steps, []
        return steps


def test_steps_are_what_long_answers_have_more_than_short_ones() -> None:
    server = Sleeping()
    meter = ServingMeter(server, 1000, random.Random(0), repeats=1)
    plain, wide = meter.steps([Cell(1, 8), Cell(3, 8)])
    assert (plain.steps, plain.batched, plain.context) == (40, 40, sum(8 + i for i in range(4, 44)))
    assert plain.outside == plain.wall > 0.02
    assert (wide.steps, wide.batched) == (40, 120)
    [told] = meter.steps([Cell(2, 8)], server.told)
    assert (told.steps, told.batched, told.context) == (40, 80, 400)
    assert told.outside == pytest.approx(told.wall - 40 * 1e-3)
    assert len(set(server.prompts)) == len(server.prompts)


def test_all_points_of_a_server() -> None:
    points = ServingMeter(Sleeping(), 1000, random.Random(0), repeats=1).points([Cell(1, 8)], [4, 8])
    assert [point.width for point in points.alone] == [4, 8]
    assert points.overlap and len(points.steps) == 1
