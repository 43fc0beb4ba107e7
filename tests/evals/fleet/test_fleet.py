"""The fleet eval: how it counts and judges, and one small fleet with a real router and a real Redis."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from http_server import Handler, listening

from agentspec.errors import StoreUnavailableError
from agentspec.evals.clients.client import Reply
from agentspec.evals.fleet import __main__ as fleet
from agentspec.evals.fleet.faults import missed
from agentspec.evals.fleet.fleet import STORES, Router
from agentspec.evals.fleet.work import Tally
from agentspec.integrations.servers.server import RunningServer
from agentspec.store import Scope, open_store

SHARED = {"ratio": 1.0, "lost": 0, "changed": 0}
FAULT = {
    "fault": "redis lost", "back_seconds": 3.0, "ratio": 0.97, "loses_calls": False, "lost_at_replicas": 0,
    "traffic": {"lost": 0}, "changed": 0, "dropped_outputs": 0,
}  # fmt: skip


def test_lost_calls_do_not_count_as_tokens() -> None:
    tally, other = Tally(), Tally()
    tally.count(Reply(began=1.0, ended=3.0, tokens=11, steps=5))
    other.count(Reply(began=1.0, ended=2.0, error="ServerDisconnectedError"))
    tally.add(other)
    assert tally.figures() == {
        "calls": 2, "lost": 1, "changed": 0, "hung": 0, "tokens": 10, "steps": 5, "accept_length": 2.0,
        "slowest_call_seconds": 2.0, "errors": ["ServerDisconnectedError"],
    }  # fmt: skip


@pytest.mark.parametrize(
    ("change", "is_missed"),
    [
        ({}, False),
        ({"back_seconds": 10.5}, True),
        ({"ratio": 0.94}, True),
        ({"changed": 1}, True),
        ({"dropped_outputs": 1}, True),
        ({"traffic": {"lost": 1}}, True),
        # While the router is away, clients reach nothing.
        ({"traffic": {"lost": 1}, "loses_calls": True}, False),
        ({"lost_at_replicas": 1, "loses_calls": True}, True),
    ],
)
def test_bars_of_a_fault(change: dict[str, Any], is_missed: bool) -> None:
    result = {"policies": [], "sharing": [SHARED], "faults": [FAULT | change]}
    assert bool(missed(result)) == is_missed


@pytest.mark.redis
@pytest.mark.parametrize("kind", ["sentinel", "cluster"])
def test_a_store_survives_the_loss_of_its_server(kind: str, tmp_path: Path) -> None:
    with STORES[kind](tmp_path) as its:
        store = open_store(its.url, Scope("m", "t"), timeout=2)
        store.append([("a" * 32, b"before")])
        its.lose()
        deadline = time.monotonic() + 60
        while True:
            try:
                store.append([("a" * 32, b"after")])
                break
            except StoreUnavailableError:
                assert time.monotonic() < deadline
                time.sleep(0.1)
        assert [entry.data for entry in store.scan("a" * 32)][-1] == b"after"
        store.close()


@pytest.mark.router
def test_the_router_passes_on_what_tells_tenants_apart(tmp_path: Path) -> None:
    seen: list[dict[str, Any]] = []

    class Replica(Handler):
        def do_GET(self) -> None:
            self.reply(200, {"status": "ok", "data": [{"id": "m"}]})

        def do_POST(self) -> None:
            seen.append(self.content())
            self.reply(200, {"id": "1", "object": "chat.completion", "created": 1, "model": "m", "choices": []})

    told = {
        "cache_salt": "a",
        "extra_key": "b",
        "custom_params": {"agentspec": {"no_store": True}},
        "prediction": {"type": "content", "content": "c"},
    }
    messages = [{"role": "user", "content": "d"}]
    with listening(Replica) as url, Router([RunningServer(url)], "round_robin", tmp_path / "router.log") as router:
        router.post("/v1/chat/completions", {"model": "m", "messages": messages} | told)
    assert [{name: body.get(name) for name in told} for body in seen] == [told]


@pytest.mark.server
@pytest.mark.sglang
@pytest.mark.redis
@pytest.mark.router
def test_two_replicas_behind_a_router(tmp_path: Path) -> None:
    options = {
        "store": "redis", "policies": "round_robin", "questions": 4, "of-a-kind": 4, "clients": 2, "repeat": 1,
        "faults": "router restarted", "json": tmp_path / "fleet.json", "logs": tmp_path,
    }  # fmt: skip
    fleet.main([f"--{name}={value}" for name, value in options.items()])
    result = json.loads((tmp_path / "fleet.json").read_text())
    (policy,), (sharing,), (fault,) = result["policies"], result["sharing"], result["faults"]
    assert policy["calls"] >= 8 and min(policy["calls_of_replicas"]) > 0
    assert not any(row["changed"] for row in (policy, sharing, fault))
    assert policy["lost"] == sharing["lost"] == fault["lost_at_replicas"] == fault["dropped_outputs"] == 0
    # The few questions tell little about how much, but what was learnt at one replica helps the other.
    assert sharing["accept_length_after_sharing"] > 1.1 * sharing["accept_length_after_nothing"]
