"""agentspec in servers of the oldest supported SGLang release gives the same tokens as that release's plain decoding.

The servers run in a separate environment, which `make old-sglang` creates.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from needs import OLD_SGLANG
from sampled_answers import SIGNIFICANCE, draw, p_value
from server_parity import FEW_TOKENS, Reference, assert_parity, assert_survives_aborts
from server_requests import counters_of

from agentspec.evals.parity.bench import reference
from agentspec.evals.parity.servers import Variant, check_drafted, check_variant, parity_server
from agentspec.integrations.servers.server import Server

pytestmark = [pytest.mark.sglang, pytest.mark.server, pytest.mark.other_release]

RELEASE = "0.5.17"
# Of these, one runs without the overlap schedule.
SYSTEMS = {"suffix": True, "suffix, in turn": False, "eagle3": True, "standalone": True}


def variant(system: str, *, overlap: bool = True) -> Variant:
    return Variant(system=system.partition(",")[0], overlap=overlap, python=str(OLD_SGLANG))


@pytest.fixture(scope="module")
def old_plain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with parity_server(variant("plain"), tmp_path_factory.mktemp("old-plain") / "log") as started:
        assert started.get("/server_info")["version"] == RELEASE
        yield started


@pytest.fixture(scope="module")
def old_reference(old_plain: Server) -> Reference:
    return reference(old_plain, FEW_TOKENS, seed=0)


@pytest.fixture(scope="module", params=SYSTEMS)
def old(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Variant, Server]]:
    of = variant(request.param, overlap=SYSTEMS[request.param])
    with parity_server(of, tmp_path_factory.mktemp("old-agentspec") / "log") as started:
        assert started.get("/server_info")["version"] == RELEASE
        yield of, started


def counters(server: Server) -> dict[str, Any]:
    found = counters_of(server)
    assert found["draft_errors"] == found["control_errors"] == 0
    return found


def test_answers_are_those_of_plain_decoding(old: tuple[Variant, Server], old_reference: Reference) -> None:
    of, server = old
    check_variant(server, of)
    check_drafted(server, of, assert_parity(server, old_reference).accepted_tokens)
    assert_survives_aborts(server, old_reference, 60)
    counters(server)


@pytest.mark.parametrize("sampling", [{}, {"top_p": 0.9}, {"top_k": 3}], ids=["temperature", "top_p", "top_k"])
def test_sampled_answers_are_distributed_as_those_of_plain_decoding(
    old_plain: Server, old: tuple[Variant, Server], sampling: dict[str, float]
) -> None:
    # The last two tokens of an answer are not drafted.
    number, options = 150, {**sampling, "max_new_tokens": 4}
    expected = draw(old_plain, number, **options)
    draw(old[1], 40, **options)  # later drafts use what the server learns here
    before = counters(old[1])
    got = draw(old[1], number, **options)
    after = counters(old[1])
    assert p_value(got, expected) > SIGNIFICANCE
    assert after["drafted_tokens"] - before["drafted_tokens"] > number
    assert after["accepted_tokens"] > before["accepted_tokens"]
    # A server that verified greedily would give equal answers whenever their first tokens are equal.
    assert len(got) > len({answer[:2] for answer in got})
