from __future__ import annotations

import json
import urllib.error
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from server_requests import counters_of, forced_request

from agentspec.integrations.servers.server import Server

pytestmark = [pytest.mark.sglang, pytest.mark.server, pytest.mark.xdist_group("emulated device")]

MODEL = Path(__file__).resolve().parents[3] / "evals" / "models" / "tiny-sql"
REPEATED = [20 + (7 * place) % 900 for place in range(40)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("emulated")


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Server]:
    """A server with suffix drafts on an emulated 8B model."""
    variables = {"EMULATED_DEVICE_TRACE": str(folder / "trace.json")}
    with Server(MODEL, "AGENTSPEC", log=folder / "log", emulate="h200-8b", environment=variables) as started:
        yield started


def _answer(number: int) -> list[int]:
    return [1000 + number, *REPEATED[number % 5 :], 1001 + number, *REPEATED]


def _asked(server: Server, number: int) -> list[int]:
    body = forced_request([30 + number, *range(40, 100)], _answer(number))
    found: list[int] = server.post("/generate", body)["output_ids"]
    return found


def _state(server: Server) -> dict[str, Any]:
    state: dict[str, Any] = server.get("/server_info")["internal_states"][0]["emulated"]
    return state


def test_answers_are_the_forced_ones_and_the_device_was_busy(server: Server, folder: Path) -> None:
    before = _state(server)
    with ThreadPoolExecutor(4) as clients:
        answers = list(clients.map(lambda number: _asked(server, number), range(12)))
    assert answers == [_answer(number) for number in range(12)]
    after = _state(server)
    server.check_replay(wanted=True)

    def added(name: str) -> float:
        return float(after[name] - before[name])

    num_tokens = sum(map(len, answers))
    assert 12 <= added("steps") < num_tokens
    assert added("busy_seconds") > 0.3 * added("active_seconds")
    assert added("busy_seconds") >= added("steps") * 0.004
    assert after["mixed_operations"] == after["unordered_operations"] == {}
    # A step has at most one read, for the lengths. Tokens come by an asynchronous copy with an event.
    assert added("host_reads") <= added("steps")
    assert added("eager_ops") > added("steps")
    assert set(after["idle_seconds_by"]) >= {"reading", "drafting", "planning", "staging", "launch", "scheduler"}
    assert 0 < after["step_python_seconds"] < 0.1
    events = json.loads((folder / "trace.json").read_text().rpartition("},")[0] + "}]")
    assert {"verify", "prefill", "kernel"} <= {event["name"] for event in events if event["tid"] == 0}


@pytest.mark.parametrize("num_clients", [1, 64])
def test_cold_clients_get_drafts_of_what_they_copy_from_their_prompts(server: Server, num_clients: int) -> None:
    novel, copied = 40, 120
    server.flush()

    def answered(number: int) -> bool:
        prompt = [20 + (37 * place + 101 * number) % 900 for place in range(copied)]
        answer = [1000 + (13 * place + 7 * number) % 400 for place in range(novel)] + prompt
        return bool(server.post("/generate", forced_request(prompt, answer))["output_ids"] == answer)

    before = _rows(server)
    with ThreadPoolExecutor(num_clients) as clients:
        assert all(clients.map(answered, range(num_clients)))
    assert _rows(server) - before < num_clients * (novel + copied / 4)


def _rows(server: Server) -> int:
    return int(counters_of(server)["verify_steps"])


def test_it_has_the_defaults_of_a_gpu_that_captures_graphs(server: Server) -> None:
    state = server.get("/server_info")["internal_states"][0]["agentspec"]
    assert state["num_draft_tokens"] == 64
    assert state["control"]["widths_captured"] == [1, 2, 4, 8, 10, 16, 20, 32, 64]
    assert [
        (tier["width"], tier["most_rows"] * tier["width"] <= 2048) for tier in state["graphs"] if tier["width"] > 8
    ] == [(width, True) for width in (10, 16, 20, 32, 64)]


def test_requests_without_an_answer_are_refused(server: Server) -> None:
    with pytest.raises(urllib.error.HTTPError, match="replays recorded answers") as refusal:
        server.post("/generate", {"input_ids": [40], "sampling_params": {"temperature": 0, "max_new_tokens": 4}})
    refusal.value.close()


@pytest.mark.parametrize(
    ("sampling", "more", "reason"),
    [
        ({"temperature": 0.7}, {}, "decodes greedily"),
        ({}, {}, "decodes greedily"),
        ({"temperature": 0}, {"return_logprob": True}, "drop return_logprob"),
        ({"temperature": 0, "frequency_penalty": 0.5}, {}, "drop frequency_penalty"),
        ({"temperature": 0, "regex": "a+"}, {}, "drop regex"),
    ],
)
def test_requests_that_read_logits_are_refused_and_the_server_goes_on(
    server: Server, sampling: dict[str, Any], more: dict[str, Any], reason: str
) -> None:
    answer = {"custom_params": {"agentspec": {"replay": {"ids": [40, 41]}}}, "max_new_tokens": 2, "ignore_eos": True}
    body = {"input_ids": [40, 41], "sampling_params": {**answer, **sampling}, **more}
    with pytest.raises(urllib.error.HTTPError, match=reason) as refusal:
        server.post("/generate", body)
    refusal.value.close()
    assert _asked(server, 1) == _answer(1)


def test_plain_decoding_is_emulated_too(folder: Path) -> None:
    with Server(MODEL, "none", log=folder / "plain", emulate="h200-8b") as plain:
        assert _asked(plain, 1) == _answer(1)
        assert _state(plain)["steps"] >= len(_answer(1)) - 1
