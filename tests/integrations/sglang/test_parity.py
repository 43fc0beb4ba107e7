"""Every kind of request, from 1 to 16 clients and in any order, gets the answer of plain SGLang, token by token.

`agentspec bench parity` does the same with more requests.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from server_parity import (
    ALL_GPU_WAYS,
    GPU_WAYS,
    Reference,
    assert_parity,
    assert_survives_aborts,
    python_path,
    retracting,
)
from server_requests import counters_of

from agentspec.evals.parity.servers import Variant, check_drafted, check_variant, num_retractions, parity_server
from agentspec.integrations.servers.server import Server

pytestmark = [pytest.mark.sglang, pytest.mark.server]


def test_the_session_s_servers_overlap_scheduling_and_forwards(plain: Server, agentspec: Server) -> None:
    for server in (plain, agentspec):
        assert server.get("/server_info")["disable_overlap_schedule"] is False


def test_answers_are_those_of_plain_decoding(agentspec: Server, reference: Reference) -> None:
    assert_parity(agentspec, reference)
    assert counters_of(agentspec)["draft_errors"] == 0


def test_nothing_hangs_where_clients_abort(agentspec: Server, reference: Reference) -> None:
    assert_survives_aborts(agentspec, reference, 150)


@pytest.fixture(scope="module", params=["suffix", "eagle3-tau"])
def in_turn(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server without overlap that retracts requests from time to time."""
    variant = Variant(system=request.param, overlap=False, variables=retracting(11))
    with parity_server(variant, tmp_path_factory.mktemp("in-turn") / "server.log") as server:
        check_variant(server, variant)
        yield server


def test_answers_without_the_overlap_schedule(in_turn: Server, short_reference: Reference) -> None:
    assert_parity(in_turn, short_reference)
    assert num_retractions(in_turn) >= 3
    by_source = counters_of(in_turn)["by_source"]["drafted_tokens"]
    # A number as tau takes one draft or the other.
    assert sum(by_source.values()) > by_source.get("model", 0) and by_source.get("model", 1) > 0


def test_chains_over_pages(short_reference: Reference, tmp_path: Path) -> None:
    """With pages of several tokens, accepted tokens end within a page, and rejected tokens share it with later
    tokens."""
    variant = Variant(
        system="eagle3",
        arguments=("--page-size", "4", "--speculative-eagle-topk", "1"),
        variables={"PYTHONPATH": python_path(GPU_WAYS), "GPU_WAYS": ALL_GPU_WAYS, **retracting(13)},
    )
    with parity_server(variant, tmp_path / "server.log") as server:
        found = assert_parity(server, short_reference)
        check_drafted(server, variant, found.accepted_tokens)
