"""An error names what answers at a URL if it is not a server with agentspec."""

from __future__ import annotations

from typing import Any

import pytest
from every import every
from server_blocks import block, info, served

from agentspec.errors import ConfigError, ServerError
from agentspec.observe.client import ServerClient


def test_the_blocks_of_all_ranks() -> None:
    with served({"/server_info": info(block(), block(version="2"))}) as url:
        state = ServerClient(url).state()
        assert [one["version"] for one in state.blocks()] == ["1.2.3", "2"]
        assert "internal_states" not in state.server and ServerClient(url).metrics() is None


@every(
    ("pages", "named"),
    [
        ({}, "not an SGLang server"),
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
