"""Real servers with a store: learnt outputs survive a restart, reach a replica, and stay with their tenant."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from replicas import until
from server_requests import ARGUMENTS, MODEL, assert_same, chat_prompts, from_outputs, generate, state_of, tokens_of

from agentspec.cli import main
from agentspec.evals.micro.store.redis_server import RedisServer
from agentspec.integrations.servers.server import Server

pytestmark = [pytest.mark.sglang, pytest.mark.server, pytest.mark.redis]

GREEDY = {"temperature": 0, "max_new_tokens": 48}
SECRET = "hush-hush-hush"


def body(text: str, tenant: str, **options: bool) -> dict[str, Any]:
    custom_params = {"team": tenant, "agentspec": options} if options else {"team": tenant}
    return {"text": text, "sampling_params": {**GREEDY, "custom_params": custom_params}}


def server(folder: Path, name: str, url: str, **environment: str) -> Server:
    return Server(
        MODEL,
        "AGENTSPEC",
        log=folder / f"{name}.log",
        arguments=(*ARGUMENTS, "--enable-metrics", "--served-model-name", "sql"),
        environment={"AGENTSPEC_STORE": url, "AGENTSPEC_NAMESPACE_FROM": "custom_params.team", **environment},
    )


@dataclass
class Replicas:
    redis: RedisServer
    one: Server
    other: Server
    environment: dict[str, str]

    def ask(self, of: Server, texts: list[str], tenant: str, **options: bool) -> list[list[int]]:
        return tokens_of(generate(of, [body(text, tenant, **options) for text in texts], 1))


@pytest.fixture(scope="module")
def replicas(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Replicas]:
    folder = tmp_path_factory.mktemp("replicas")
    secrets = {"AGENTSPEC_STORE_PASSWORD": SECRET, "AGENTSPEC_STORE_KEY": "5" * 64, "AGENTSPEC_NAMESPACE_KEY": "6" * 64}
    with RedisServer(folder / "redis", "--appendonly", "yes", password=SECRET) as redis:
        url = f"redis://127.0.0.1:{redis.port}"
        with server(folder, "one", url, **secrets) as one, server(folder, "other", url, **secrets) as other:
            yield Replicas(redis, one, other, {**secrets, "AGENTSPEC_STORE": url})


def test_a_restarted_server_drafts_from_what_it_had_learned(tmp_path: Path, plain: Server) -> None:
    texts = chat_prompts(4, seed=300)
    expected = tokens_of(generate(plain, [body(text, "a") for text in texts], 1))
    url = f"sqlite:///{tmp_path}/store.sqlite3"
    with server(tmp_path, "first", url) as first:
        assert_same(tokens_of(generate(first, [body(text, "a") for text in texts], 1)), expected)
        until(lambda: state_of(first)["store"]["delivered_outputs"] == 4)
    with server(tmp_path, "second", url) as second:
        assert state_of(second)["store"]["loaded_outputs"] == 4
        assert state_of(second)["engine"]["outputs"] == 4
        assert from_outputs(second) == 0
        assert_same(tokens_of(generate(second, [body(texts[0], "a")], 1)), expected[:1])
        assert from_outputs(second) > 0


def test_a_replica_drafts_from_another_s_outputs_within_a_second(plain: Server, replicas: Replicas) -> None:
    texts = chat_prompts(3, seed=310)
    expected = tokens_of(generate(plain, [body(text, "a") for text in texts], 1))
    received = state_of(replicas.other)["store"]["received_outputs"]
    assert_same(replicas.ask(replicas.one, texts, "a"), expected)
    until(lambda: state_of(replicas.other)["store"]["received_outputs"] == received + 3)
    before = from_outputs(replicas.other)
    assert_same(replicas.ask(replicas.other, texts, "a"), expected)
    assert from_outputs(replicas.other) > before
    assert state_of(replicas.other)["store"]["lag_seconds"]["max"] < 1.0


def test_tenants_do_not_draft_from_each_other(plain: Server, replicas: Replicas) -> None:
    texts = chat_prompts(3, seed=320)
    expected = tokens_of(generate(plain, [body(text, "a") for text in texts], 1))
    assert_same(replicas.ask(replicas.one, texts, "tenant-1"), expected)
    before = from_outputs(replicas.one)
    assert_same(replicas.ask(replicas.one, texts[:1], "tenant-2"), expected[:1])
    # A tenant's first request can draft only from its own prompt, whatever the outputs of other tenants are.
    assert from_outputs(replicas.one) == before
    assert_same(replicas.ask(replicas.one, texts[:1], "tenant-1"), expected[:1])
    assert from_outputs(replicas.one) > before


def test_a_request_may_forbid_keeping_and_drafting(plain: Server, replicas: Replicas) -> None:
    texts = chat_prompts(1, seed=330)
    expected = tokens_of(generate(plain, [body(text, "a") for text in texts], 1))
    outputs = state_of(replicas.one)["engine"]["outputs"]
    assert_same(replicas.ask(replicas.one, texts, "shy", no_store=True), expected)
    drafted = state_of(replicas.one)["counters"]["drafted_tokens"]
    assert_same(replicas.ask(replicas.one, texts, "shy", no_store=True, no_draft=True), expected)
    assert state_of(replicas.one)["counters"]["drafted_tokens"] == drafted
    assert state_of(replicas.one)["engine"]["outputs"] == outputs


def test_deleting_a_tenant_reaches_every_replica(
    plain: Server, replicas: Replicas, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in replicas.environment.items():
        monkeypatch.setenv(name, value)
    texts = chat_prompts(2, seed=340)
    expected = tokens_of(generate(plain, [body(text, "a") for text in texts], 1))
    assert_same(replicas.ask(replicas.one, texts, "leaving"), expected)
    until(lambda: state_of(replicas.one)["engine"]["outputs"] == state_of(replicas.other)["engine"]["outputs"])
    before = state_of(replicas.one)["engine"]["outputs"]
    assert main(["store", "delete", "--model", "sql", "--tenant", "leaving", "--yes"]) == 0
    for of in (replicas.one, replicas.other):
        until(lambda of=of: state_of(of)["engine"]["outputs"] == before - 2)  # type: ignore[misc]
        drafted = from_outputs(of)
        assert_same(replicas.ask(of, texts[:1], "leaving", no_store=True), expected[:1])
        assert from_outputs(of) == drafted


def test_a_dead_store_costs_nothing_and_gets_what_it_missed(plain: Server, replicas: Replicas) -> None:
    texts = chat_prompts(3, seed=350)
    expected = tokens_of(generate(plain, [body(text, "a") for text in texts], 1))
    delivered = state_of(replicas.one)["store"]["delivered_outputs"]
    received = state_of(replicas.other)["store"]["received_outputs"]
    replicas.redis.kill()
    assert_same(replicas.ask(replicas.one, texts, "patient"), expected)
    store = state_of(replicas.one)["store"]
    assert (store["delivered_outputs"], store["queued_outputs"], store["dropped_outputs"]) == (delivered, 3, 0)
    until(lambda: not state_of(replicas.one)["store"]["connected"])
    replicas.redis.start()
    until(lambda: state_of(replicas.one)["store"]["delivered_outputs"] == delivered + 3)
    until(lambda: state_of(replicas.other)["store"]["received_outputs"] == received + 3)
    # Publishing and polling reconnect independently, so either may notice the connection first.
    until(lambda: state_of(replicas.one)["store"]["connected"])
    assert state_of(replicas.one)["counters"]["draft_errors"] == 0


def test_metrics_tell_of_the_store_and_nothing_tells_its_secrets(replicas: Replicas) -> None:
    replicas.ask(replicas.one, chat_prompts(1, seed=360), "metrics")
    until(lambda: "agentspec:store_delivered_outputs_total" in replicas.one.get("/metrics"))
    shown = replicas.one.get("/metrics") + str(replicas.one.get("/server_info")) + replicas.one.log_text()
    for name in ("lag_seconds", "queued_outputs", "dropped_outputs_total", "errors_total", "bytes", "namespaces"):
        assert f"agentspec:store_{name}" in shown
    assert SECRET not in shown
    assert "5" * 64 not in shown
    assert "6" * 64 not in shown
    assert "metrics-tenant" not in shown
