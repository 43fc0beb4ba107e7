"""Servers whose steps run in stream order: recorded answers come whole while other requests are aborted.

With two ranks, some steps fail on the first one, and both ranks run the same forwards nevertheless.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from server_parity import GPU_WAYS, steps_of_ranks
from server_requests import forced_request

from agentspec.integrations.emulated_device.models.simulated_head import VARIABLE as HEAD_VARIABLE
from agentspec.integrations.servers.server import Server

pytestmark = [pytest.mark.sglang, pytest.mark.server, pytest.mark.xdist_group("emulated device")]

MODELS = Path(__file__).resolve().parents[3] / "evals" / "models"
HEAD = (
    "--speculative-draft-model-path", str(MODELS / "tiny-sql-eagle3"), "--speculative-num-steps", "3",
    "--speculative-eagle-topk", "1", "--agentspec-base", "EAGLE3",
)  # fmt: skip
REQUESTS, CLIENTS, SECONDS = 60, 12, 60.0


def _server(system: str, folder: Path, *arguments: str, **variables: str) -> Server:
    return Server(
        MODELS / "tiny-sql",
        "AGENTSPEC",
        log=folder / "log",
        arguments=(*(HEAD if system == "hybrid" else ()), *arguments),
        environment={HEAD_VARIABLE: "0.7", **variables},
        emulate="h200-8b",
    )


@pytest.fixture(scope="module", params=["suffix", "hybrid", "hybrid with chains"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    system, _, chains = request.param.partition(" with ")
    with _server(
        system, tmp_path_factory.mktemp("ahead"), *(("--agentspec-mode", "chain") if chains else ())
    ) as started:
        yield started


@pytest.fixture(scope="module")
def ranked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, Path]]:
    """A server with two ranks, of whose steps some fail, and the folder in which each rank records its forwards."""
    folder = tmp_path_factory.mktemp("ranks")
    variables = {
        "GPU_WAYS": "failing-steps",
        "GPU_WAYS_STEPS": str(folder / "steps"),
        # On a busy machine, threads that wait for each other make a step many times as long.
        "OMP_NUM_THREADS": "1",
        "SGLANG_CPU_OMP_THREADS_BIND": "0|1",
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), str(GPU_WAYS)])))
        made = _server("hybrid", folder, "--tp", "2", **variables)
        with made as started:
            yield started, folder / "steps"


class Drawn:
    """A request: its answer repeats parts of the prompt and parts of other answers, between tokens of its own."""

    def __init__(self, number: int) -> None:
        rng = np.random.default_rng(number)
        shared = np.random.default_rng(number % 5).integers(20, 900, 80).tolist()
        self.prompt: list[int] = [*rng.integers(20, 900, int(rng.integers(1, 60))).tolist(), *shared]
        self.answer: list[int] = []
        while len(self.answer) < 100:
            first, novel = int(rng.integers(0, 60)), int(rng.integers(0, 6))
            self.answer += [
                *rng.integers(1000, 1400, novel).tolist(),
                *shared[first : first + int(rng.integers(3, 40))],
            ]
        self.abort_after = int(rng.integers(1, 80)) if rng.random() < 0.4 else None
        """Number of tokens."""

    def body(self, rid: str) -> dict[str, Any]:
        return {"rid": rid, "stream": True, **forced_request(self.prompt, self.answer)}


def _asked(server: Server, number: int) -> tuple[list[int], bool]:
    """The tokens that came, and whether the request was aborted before the last one."""
    drawn, rid, tokens = Drawn(number), f"drawn-{number:03}", list[int]()
    is_aborted = False
    for event in server.stream("/generate", drawn.body(rid), timeout=SECONDS):
        tokens = event["output_ids"]
        if drawn.abort_after is not None and len(tokens) >= drawn.abort_after and not is_aborted:
            is_aborted = True
            threading.Thread(target=server.post, args=("/abort_request", {"rid": rid})).start()
    return tokens, is_aborted


def _state(server: Server) -> dict[str, Any]:
    state: dict[str, Any] = server.get("/server_info")["internal_states"][0]
    return state


def _assert_answers(server: Server) -> None:
    """Asks for the drawn answers and checks them."""
    with ThreadPoolExecutor(CLIENTS) as clients:
        found = list(clients.map(lambda number: _asked(server, number), range(REQUESTS)))
    whole = 0
    for number, (tokens, is_aborted) in enumerate(found):
        answer = Drawn(number).answer
        assert tokens == answer[: len(tokens)]
        assert is_aborted or len(tokens) == len(answer)
        whole += len(tokens) == len(answer)
    assert 0.5 * REQUESTS < whole < REQUESTS, "some were aborted, and some before their end"
    server.check_replay(wanted=True)


def test_recorded_answers_come_whole_while_other_requests_are_aborted(server: Server) -> None:
    _assert_answers(server)
    state = _state(server)
    assert state["emulated"]["mixed_operations"] == state["emulated"]["unordered_operations"] == {}
    ours = state["agentspec"]
    counters = ours["counters"]
    assert ours["stream_order"] is not None and ours["stream_order"]["speedup"] > 1.0
    plan = ours["stream_order"]["plan"]
    assert plan["width"] >= 1 and plan["ms"] > 0.0 and plan["tokens"] > 0.0
    assert counters["drafted_tokens"] > counters["accepted_tokens"] > 0
    assert counters["draft_errors"] == 0
    assert ours["breaker"] == {"open": False, "openings": 0}
    if "drafter" in ours:
        assert ours["drafter"]["drafts_united_on"] == "device"
        assert plan["ms_with_model"] > plan["ms"] and plan["tokens_with_model"] >= 1.0
        assert counters["drafter_steps"] > 0


def test_requests_that_were_aborted_leave_nothing_behind(server: Server) -> None:
    """After a flush, which waits for the last request, the next answers are drafted for from the start."""
    server.flush()
    assert _asked(server, REQUESTS)[0] == Drawn(REQUESTS).answer
    engine = _state(server)["agentspec"]["engine"]
    assert engine["open_requests"] <= 1, "the last one may still be closing"
    assert engine["outputs"] <= 1


def test_two_ranks_run_the_same_forwards_and_wait_for_nothing(ranked: tuple[Server, Path]) -> None:
    server, folder = ranked
    _assert_answers(server)
    state = _state(server)
    emulated, ours = state["emulated"], state["agentspec"]
    assert emulated["mixed_operations"] == emulated["unordered_operations"] == {}
    assert ours["stream_order"] is not None and ours["stream_order"]["plan"]["ms"] > 0.0
    counters = ours["counters"]
    assert counters["drafted_tokens"] > counters["accepted_tokens"] > 0
    # Of 16 launches, one fails, and so does one host function.
    assert emulated["host_functions"] > 0.8 * counters["steps"]
    assert counters["draft_errors"] >= counters["steps"] // 8 - 1
    assert ours["drafter"]["drafts_united_on"] == "device" and counters["drafter_steps"] > 0
    first, second = steps_of_ranks(folder)
    for number, (one, other) in enumerate(zip(first, second, strict=True)):
        assert one == other, f"forward {number}"
    verified = [step for step in second if "TARGET_VERIFY" in step]
    waited = [step for step in verified if step.endswith("host lengths")]
    assert len(verified) == counters["steps"]
    assert len(waited) <= len(verified) / 4, "steps in stream order leave the lengths on the device"
    assert emulated["by_name"]["broadcast"] >= len(verified) - len(waited)
