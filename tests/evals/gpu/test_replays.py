"""Measuring a server: answers must be the recorded ones, and agentspec's work is the growth of its counters."""

from __future__ import annotations

import random
from collections.abc import Mapping
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest

from agentspec.errors import ServerError
from agentspec.evals.clients.client import Reply
from agentspec.evals.clients.replay_requests import ReplayRequest
from agentspec.evals.gpu import replays
from agentspec.evals.gpu.replays import Servers, measure
from agentspec.evals.gpu.run import OutOfTimeError
from agentspec.evals.gpu.work import Cell
from agentspec.evals.workloads.task import Conversation, FixedCall
from agentspec.integrations.servers.server import RunningServer


class Replaying(RunningServer):
    """Writes the recorded answers, three tokens a step; ends them with a token of its own. It gets requests without a
    connection."""

    by_url: ClassVar[dict[str, Replaying]] = {}

    def __init__(self, *, active: bool = True, wrong: bool = False, plain: bool = False, refuses: bool = False) -> None:
        super().__init__(f"http://{id(self)}")
        self.by_url[self.url] = self
        self.active, self.wrong, self.plain, self.refuses = active, wrong, plain, refuses
        self.steps = 0

    async def send(self, body: Mapping[str, Any]) -> Reply:
        sampling = body["sampling_params"]
        answer = sampling["custom_params"]["agentspec"]["replay"]["ids"]
        whole = sampling["max_new_tokens"] > len(answer)
        steps = 0 if self.plain else -(-(len(answer) + whole - 1) // 3)
        self.steps += steps
        output = (*answer[:-1], answer[-1] + self.wrong, *([2] if whole else []))
        return Reply(
            began=1.0, ended=3.0, prompt_tokens=len(body["input_ids"]), cached_tokens=1, tokens=len(output), steps=steps,
            output=output, error="refused" if self.refuses else "",
        )  # fmt: skip

    def agentspec_state(self) -> dict[str, Any] | None:
        n = self.steps
        counters = dict.fromkeys(("drafted_tokens", "accepted_tokens", "verified_tokens", "draft_errors"), 2 * n)
        control = {"measured_steps": n, "observed_seconds": 0.25 * n, "widths": {"4": n}}
        found = {"counters": {"steps": n, "drafting_seconds": 0.125 * n, **counters}, "control": control}
        return found if self.active else None


def cell() -> Cell:
    rng = random.Random(0)

    def call() -> FixedCall:
        prompt, answer = (
            np.array([rng.randrange(3, 9) for _ in range(rng.randint(2, 20))], np.int32) for _ in range(2)
        )
        request = ReplayRequest(prompt, answer, "", 0, "", bool(rng.getrandbits(1)))
        return FixedCall(request.body(), answer=tuple(answer.tolist()))

    return Cell("sql", 4, 0, tuple(Conversation(str(i), (call(), call())) for i in range(10)))


@pytest.fixture(autouse=True)
def no_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replays, "PreparedSender", lambda url, bodies, seconds: nullcontext(Replaying.by_url[url]))


def test_the_figures_of_a_cell() -> None:
    server, asked = Replaying(), cell()
    calls = [call for session in asked.sessions for call in session.calls]
    server.steps = 7
    row = measure(server, asked, "suffix")
    assert row["calls"] == 20
    assert row["tokens"] == sum(call.body["sampling_params"]["max_new_tokens"] for call in calls)
    assert row["uncached_prompt_tokens"] == sum(len(call.body["input_ids"]) for call in calls) - 20
    # Only the steps of this cell count.
    assert row["counters"]["steps"] == server.steps - 7
    assert row["accept_length"] == pytest.approx((row["tokens"] - 20) / row["counters"]["steps"], abs=1e-3)
    assert (row["drafting_ms_a_step"], row["verify_ms_a_step"]) == (125.0, 250.0)
    assert row["widths"] == {"4": row["counters"]["steps"]}
    assert "counters" not in measure(server, asked, "ngram")


@pytest.mark.parametrize(
    ("server", "message"),
    [
        (Replaying(wrong=True), "20 of 20 are not"),
        (Replaying(active=False), "must be active"),
        (Replaying(plain=True), "must speculate"),
        (Replaying(refuses=True), "20 of 20 calls failed, the first: refused"),
    ],
)
def test_what_is_no_measurement_is_refused(server: Replaying, message: str) -> None:
    with pytest.raises(ServerError, match=message):
        measure(server, cell(), "suffix")


def test_a_server_without_a_state_does_not_hide_why_a_trip_ended() -> None:
    records: list[dict[str, Any]] = []
    servers: Any = object.__new__(Servers)
    servers.alive = {"suffix": Replaying(active=False), "ngram": Replaying(), "hybrid": Replaying()}
    servers.cells = [cell()]

    def check_time(needed: float) -> None:
        raise OutOfTimeError("the deadline")

    run: Any = SimpleNamespace(clients=(4,), check_time=check_time, results=SimpleNamespace(add=records.append))
    with pytest.raises(OutOfTimeError, match="the deadline"):
        servers.replay(run)
    assert [record["system"] for record in records] == ["suffix", "hybrid"]
    assert "must be active" in records[0]["error"] and records[1]["state"]["counters"]
