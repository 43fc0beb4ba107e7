"""The fidelity bench: a server that behaves as the simulation assumes is predicted without error."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from draft_states import profile

from agentspec.cli import main
from agentspec.errors import ConfigError
from agentspec.evals.clients.open_loop import Answered, AskedCall, send_at, send_closed
from agentspec.evals.served.fidelity import BOUND
from agentspec.evals.served.fidelity_rows import LoadedServer, Run, compared, pace, row_of, service_rate
from agentspec.evals.served.fidelity_table import markdown, plot
from agentspec.integrations.servers.server import RunningServer
from agentspec.scheduling import Profile, ServingCosts, StepCost


def costs() -> Profile:
    serving = ServingCosts(request_seconds=0.02, prefill=StepCost(0, 1e-4, 0.01), step=StepCost(0, 1e-4, 0.005))
    return replace(profile(), plain=serving, speculative=serving)


def alone(calls: list[AskedCall], step: float, apart: float = 1.0) -> list[Answered]:
    """Answers of a server that is asked so seldom that each request runs alone and gets one token a step."""
    rng = np.random.default_rng(0)
    found = []
    for i, call in enumerate(calls):
        seconds = 0.02 + 0.01 + 1e-4 * len(call.prompt) + step * (call.output_tokens - 1)
        output = rng.integers(0, 1000, call.output_tokens).astype(np.int32)
        found.append(Answered(i * apart, i * apart + seconds, 0, output, call.output_tokens - 1))
    return found


CALLS = [AskedCall("open", tuple(range(100 * i, 100 * i + 20 + i)), 5 + i) for i in range(6)]


def run_of(factors: tuple[float, float], answers: list[Answered], server: LoadedServer | None = None) -> Run:
    server = server or LoadedServer("plain", 4, RunningServer(""))
    return compared(costs(), factors, server, CALLS, answers, rate=1.0)


def test_a_server_that_is_as_simulated_has_no_error() -> None:
    found = row_of([run_of((1.0, 1.0), alone(CALLS, 0.005 + 1e-4))])
    assert found["error"] == pytest.approx(0.0, abs=1e-3)
    assert found["measured_accept_length"] == found["simulated_accept_length"] == 1.0
    assert found["simulated_rows"] == 1.0
    assert row_of([run_of((1.0, 1.0), alone(CALLS, 0.02))])["error"] < -BOUND


def test_a_server_at_another_pace_has_no_error_at_that_pace() -> None:
    answers = [replace(answer, answered=answer.sent + 1.5 * answer.seconds) for answer in alone(CALLS, 0.005 + 1e-4)]
    found = row_of([run_of((1.4, 1.6), answers)])
    assert found["error"] == pytest.approx(0.0, abs=1e-3)
    assert found["error_as_profiled"] == pytest.approx(1 / 1.5 - 1, abs=1e-3)


def test_errors_of_several_runs_are_those_of_their_mean() -> None:
    slow, fast = run_of((1.0, 1.0), alone(CALLS, 0.0061)), run_of((1.0, 1.0), alone(CALLS, 0.0041))
    found = row_of([slow, fast])
    assert found["errors"][0] < -0.05 < 0.05 < found["errors"][1]
    assert found["error"] == pytest.approx(0.0, abs=1e-3)
    assert (found["runs"], found["requests"]) == (2, 2 * len(CALLS))


def test_a_run_in_which_the_pace_changed_does_not_count() -> None:
    steady, changed = run_of((1.0, 1.1), alone(CALLS, 0.0051)), run_of((1.0, 1.3), alone(CALLS, 0.1))
    found = row_of([steady, changed])
    assert (found["runs"], found["steady_runs"], found["requests"]) == (2, 1, len(CALLS))
    assert found["error"] == found["errors"][0] and len(found["errors"]) == 2
    assert row_of([changed])["steady_runs"] == 0


class Steady(RunningServer):
    """A server that takes `seconds` for each token after the first one, by its own clock."""

    def __init__(self, seconds: float) -> None:
        super().__init__("")
        self.seconds = seconds
        self.bodies: list[Any] = []
        self.now = 0.0

    def perf_counter(self) -> float:
        return self.now

    def post(self, path: str, body: Any = None, timeout: float = 300.0) -> Any:
        self.bodies.append(body)
        self.now += self.seconds * (body["sampling_params"]["max_new_tokens"] - 1)


def test_the_pace_is_that_of_steps_without_drafts(monkeypatch: pytest.MonkeyPatch) -> None:
    step = StepCost(0, 0, 0.001)
    serving = ServingCosts(request_seconds=0, prefill=step, step=step)
    server = Steady(0.003)
    monkeypatch.setattr("agentspec.integrations.servers.serving_costs.time", server)
    found = replace(profile(), target=step, plain=serving, speculative=serving)
    assert pace(found, LoadedServer("plain", 4, server), random.Random(0)) == pytest.approx(3)
    assert pace(found, LoadedServer("agentspec", 4, server), random.Random(0)) == pytest.approx(1.5)
    assert all(body["sampling_params"]["custom_params"]["agentspec"]["no_draft"] for body in server.bodies)


def test_drafts_of_agentspec_come_from_what_it_was_asked_before() -> None:
    server = LoadedServer("agentspec", 4, RunningServer(""))
    answers = alone(CALLS, 0.02)
    first = row_of([run_of((1.0, 1.0), answers, server)])
    assert len(server.learnt) == len(CALLS)
    again = row_of([run_of((1.0, 1.0), answers, server)])
    assert again["simulated_accept_length"] > first["simulated_accept_length"]
    assert again["simulated_mean"] < first["simulated_mean"]


def test_the_service_rate_of_one_at_a_time() -> None:
    answers = alone(CALLS, 0.0051)
    rate = service_rate(costs(), LoadedServer("plain", 1, RunningServer("")), CALLS, answers)
    assert rate == pytest.approx(len(CALLS) / sum(answer.seconds for answer in answers))


def test_answers_of_another_length_are_refused() -> None:
    answers = alone(CALLS, 0.01)
    answers[0] = replace(answers[0], output=answers[0].output[:-1])
    with pytest.raises(ConfigError, match="5 tokens, got 4"):
        run_of((1.0, 1.0), answers)


class Echo(RunningServer):
    def post(self, path: str, body: Any = None, timeout: float = 300.0) -> Any:
        tokens = body["sampling_params"]["max_new_tokens"]
        return {"output_ids": [body["input_ids"][0]] * tokens, "meta_info": {"cached_tokens": 3}}


def test_requests_are_sent_when_they_are_due() -> None:
    times = [0.0, 0.01, 0.05, 0.05, 0.06, 0.1]
    told: list[int] = []
    answers = send_at(Echo(""), CALLS, times, lambda: told.append(1))
    assert all(answer.sent >= due for answer, due in zip(answers, times, strict=True))
    assert [answer.output.tolist() for answer in answers] == [[call.prompt[0]] * call.output_tokens for call in CALLS]
    assert len(told) == len(CALLS)
    assert [len(answer.output) for answer in send_closed(Echo(""), CALLS, 2)] == [5, 6, 7, 8, 9, 10]


def test_the_table_and_the_picture(tmp_path: Path) -> None:
    found = row_of([run_of((1.0, 1.0), alone(CALLS, 0.02))])
    rows = [{"system": "plain", "limit": 4, "share": 0.3, **found}]
    content = {"command": ["agentspec", "bench"], "profile": ["T"], "rows": rows, "goals": [{"met": False}]}
    assert f"**{found['error']:+.1%}**" in markdown(content, BOUND)
    plot(rows, tmp_path / "a.png")
    assert (tmp_path / "a.png").stat().st_size > 1000


def test_a_profile_without_serving_costs_is_refused(tmp_path: Path) -> None:
    profile().save(tmp_path / "profile.json")
    assert main(["bench", "fidelity", "--profile", str(tmp_path / "profile.json")]) == 2
