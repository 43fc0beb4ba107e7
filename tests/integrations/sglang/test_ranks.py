"""Two tensor-parallel ranks with overlap give plain SGLang's answers and always make the same decisions."""

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
    steps_of_ranks,
)

from agentspec.evals.parity.servers import Variant, check_drafted, check_variant, parity_server
from agentspec.integrations.servers.server import Server

pytestmark = [pytest.mark.sglang, pytest.mark.server]


@pytest.fixture(scope="module", params=["suffix", "eagle3"])
def ranked(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Variant, Server, Path]]:
    """A server with two ranks, and the folder in which each rank records its forwards."""
    folder = tmp_path_factory.mktemp("ranks")
    variant = Variant(
        system=request.param,
        ranks=2,
        variables={
            "PYTHONPATH": python_path(GPU_WAYS),
            "GPU_WAYS": ALL_GPU_WAYS,
            "GPU_WAYS_STEPS": str(folder / "steps"),
        },
    )
    with parity_server(variant, folder / "server.log") as server:
        check_variant(server, variant)
        yield variant, server, folder / "steps"


def test_answers_are_those_of_plain_decoding(ranked: tuple[Variant, Server, Path], short_reference: Reference) -> None:
    """If one rank decides differently, the other one waits forever. Then a request times out and the test fails."""
    variant, server, _ = ranked
    found = assert_parity(server, short_reference)
    check_drafted(server, variant, found.accepted_tokens)


def test_ranks_run_the_same_forwards_also_where_clients_abort(
    ranked: tuple[Variant, Server, Path], short_reference: Reference
) -> None:
    _, server, folder = ranked
    assert_survives_aborts(server, short_reference, 60)
    first, second = steps_of_ranks(folder)
    assert any("TARGET_VERIFY" in step for step in first)
    assert len(first) > 100
    for number, (one, other) in enumerate(zip(first, second, strict=True)):
        assert one == other, f"forward {number}"
