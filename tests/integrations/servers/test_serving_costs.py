"""What a client measures of servers whose times are known, and of a server that another one beats to its port."""

from __future__ import annotations

import random
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agentspec.evals.text_to_sql import MODEL_FOLDER
from agentspec.integrations.servers import server as servers
from agentspec.integrations.servers.server import RunningServer
from agentspec.integrations.servers.serving_costs import Cell, ServingMeter, held_up

pytest.importorskip("uvicorn", reason="`make setup` installs it")
from agentspec.errors import ConfigError
from agentspec.integrations.servers.drafted_chains import drafted_chains


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


SERVING = """
import sys, uvicorn
async def answer(scope, receive, send):
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"well"})
uvicorn.run(answer, port=int(sys.argv[sys.argv.index("--port") + 1]), lifespan="off")
"""


def test_a_server_whose_port_was_taken_starts_on_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        # It accepts connections and never answers, as the port of torch's store does.
        taken.listen()
        ports = [taken.getsockname()[1], servers.free_port()]
        found = iter(ports)
        monkeypatch.setattr(servers, "free_port", lambda: next(found))
        made = servers.Server(MODEL_FOLDER, "none", log=tmp_path / "server.log")
        made.command = [sys.executable, "-P", "-c", SERVING, "--port", str(ports[0])]
        with made as server:
            assert server.port == ports[1] and server.get("/") == "well"
        assert not server.is_running()


class Drafting(RunningServer):
    """Answers every prompt in some steps. The last draft of an answer has one token less."""

    def __init__(self, steps: int) -> None:
        super().__init__("http://drafting")
        self.steps = steps
        self.chains: list[tuple[list[float], int]] = []
        self.asked: list[list[list[int]]] = []

    def post(self, path: str, body: Any = None, timeout: float = 300.0) -> Any:
        if path == "/tokenize":
            return {"tokens": [[*range(len(text))] for text in body["prompt"]]}
        self.asked.append(body["input_ids"])
        for _ in body["input_ids"]:
            self.chains += [([0.9, 0.5, 0.25], number % 4) for number in range(self.steps)]
            self.chains.append(([0.9, 0.5], 1))
        return {}

    def agentspec_state(self) -> dict[str, Any] | None:
        # As many as a server remembers.
        return {"control": {"steps": [], "num_chains": len(self.chains), "chains": self.chains[-64:]}}


def test_whole_chains_are_kept() -> None:
    server = Drafting(steps=12)
    chains = drafted_chains(server, ["abcd", "ab", "abc", "abcdef", "a"], rows=2, most_tokens=3)
    assert server.asked == [[[1, 2, 3], [0, 1]], [[0, 1, 2], [3, 4, 5]], [[0], [1, 2, 3]]]
    assert chains.probabilities.shape == (6 * 12, 3) and chains.probabilities[5].tolist() == [0.9, 0.5, 0.25]
    assert chains.accepted.tolist() == [0, 1, 2, 3] * 18


def test_enough_chains_end_the_search() -> None:
    server = Drafting(steps=30)
    drafted_chains(server, ["ab"] * 500, rows=2, most_tokens=3)
    assert len(server.asked) == -(-2000 // 62)


def test_too_few_chains() -> None:
    with pytest.raises(ConfigError, match="gave 9 drafts, and 50 are needed"):
        drafted_chains(Drafting(steps=2), ["ab", "ab", "ab"], rows=1, most_tokens=3)
