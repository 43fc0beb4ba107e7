"""The change between two readings of a server; and an error names what answers at a URL without agentspec."""

from __future__ import annotations

from typing import Any

import pytest
from every import every
from server_blocks import block, info, served

from agentspec.errors import ConfigError, ServerError
from agentspec.observe.client import ServerClient
from agentspec.observe.counts import change
from agentspec.observe.summary import summarise
from agentspec.observe.view import plain


def test_without_an_earlier_reading_all_counts_since_the_start() -> None:
    changed = change(block())
    assert changed.since_start and not changed.restarted and changed.seconds == 100.0
    of = summarise(block(), changed)
    assert of.goodput == pytest.approx(30.0)
    assert of.accept_length == pytest.approx(3.0)
    assert of.sources["request"].accept_length == pytest.approx(1 + 500 / 300)
    assert of.sources["none"].acceptance_rate is None
    assert of.width == pytest.approx(6.0) and of.rows_a_step == pytest.approx(2.0)
    assert of.predicted_ms == pytest.approx(10.0) and of.observed_ms == pytest.approx(11.0)


def test_a_plan_is_told_with_the_numbers_that_made_it() -> None:
    plan = {"passes": True, "width": 8, "reason": "best", "tokens": 40.0, "ms": 6.5, "tokens_with_model": 52.0}
    for changes, told in (
        ({"ms_with_model": 7.5}, "with the draft model, width 8, best: suffix drafts alone 40.00 tokens in 6.50 ms"),
        ({"ms_with_model": 7.5, "passes": False}, "without the draft model, width 8"),
        ({"ms_with_model": 0.0}, "width 8, best: suffix drafts alone 40.00 tokens in 6.50 ms"),
    ):
        planned = block(stream_order={"speedup": 2.0, "plan": {**plan, **changes}})
        assert told in plain(0, 1, summarise(planned, change(planned, None, seconds=1.0)))
    waits = block(stream_order=None)
    assert "next step" not in plain(0, 1, summarise(waits, change(waits, None, seconds=1.0)))


def test_rates_come_from_the_difference() -> None:
    later = block(
        uptime_seconds=104.0,
        counters__accepted_tokens=2060,
        counters__verify_steps=1020,
        counters__steps=510,
        rows_without_draft={"no_match": 150, "no_room": 50, "breaker": 7},
    )
    of = summarise(later, change(later, block(), seconds=99.0))
    assert not of.since_start and of.seconds == pytest.approx(4.0), "by the server's clock"
    assert of.goodput == pytest.approx(20.0) and of.accept_length == pytest.approx(4.0)
    assert of.rows_without_draft == {"breaker": 7}
    assert of.sources == {} and of.outputs == 40


@pytest.mark.parametrize(
    "later",
    [
        block(started=2000.0, uptime_seconds=3.0),
        # An older plugin does not say when it started, but its counters fall.
        block(counters__accepted_tokens=10),
        block(control__plans={"best": 3}),
    ],
)
def test_a_restart_is_recognised(later: dict[str, object]) -> None:
    changed = change(later, block(), seconds=2.0)
    assert changed.restarted and changed.since_start
    assert changed.seconds == later["uptime_seconds"]
    assert "RESTARTED" in plain(0, 1, summarise(later, changed))


def test_a_server_that_tells_little_is_shown_all_the_same() -> None:
    bare = {"active": True, "counters": {"steps": 0}}
    of = summarise(bare, change(bare, bare, 2.0))
    assert of.goodput == 0.0 and of.accept_length is None and of.store is None and of.seconds == 2.0
    assert "nothing outlives this server" in plain(0, 1, of)


def test_the_blocks_of_all_ranks() -> None:
    with served({"/server_info": info(block(), block(version="2"))}) as url:
        state = ServerClient(url).state()
        assert [one["version"] for one in state.blocks()] == ["1.2.3", "2"]
        assert "internal_states" not in state.server and ServerClient(url).metrics() is None


@every(
    ("pages", "named"),
    [
        ({}, "not an SGLang server.*behind a router name one of its replicas"),
        ({"/v1/models": {"data": [{"owned_by": "vllm"}]}}, "owned by vllm"),
        ({"/server_info": "<html>"}, "not an SGLang server"),
        ({"/server_info": {"version": 1}}, "not an SGLang server"),
        ({"/server_info": 401}, "--api-key-file"),
        ({"/server_info": 503}, "status 503"),
    ],
)
def test_another_server_is_named(pages: dict[str, Any], named: str) -> None:
    with served(pages) as url, pytest.raises(ServerError, match=named):
        ServerClient(url).state()


def test_a_server_without_agentspec_is_told_from_one_with_it() -> None:
    with served({"/server_info": info(block(), None)}) as url:
        state = ServerClient(url).state()
        with pytest.raises(ServerError, match="--speculative-algorithm AGENTSPEC"):
            state.blocks()


def test_nobody_answers() -> None:
    with served({}) as url:
        pass
    with pytest.raises(ServerError, match="no server answers at"):
        ServerClient(url).state()


@pytest.mark.parametrize("url", ["", "http://", "http://a b", ":80"])
def test_a_url_that_is_none(url: str) -> None:
    with pytest.raises(ConfigError, match="http://HOST:PORT"):
        ServerClient(url)
