"""Commands between the HTTP process and the schedulers."""

from __future__ import annotations

import asyncio
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from agentspec.integrations.sglang import compat
from agentspec.integrations.sglang.admin import wire


def test_answers_are_in_the_order_of_the_ranks_whichever_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    messages: Any = SimpleNamespace(GetInternalStateReq=SimpleNamespace, GetInternalStateReqOutput=SimpleNamespace)
    monkeypatch.setitem(sys.modules, "sglang.srt.managers.io_struct", messages)

    async def replies(message: object) -> list[Any]:
        assert wire.command_in(message) == {"do": "stats"}
        made: list[Any] = []
        for rank in (2, 0, 1):
            monkeypatch.setattr(compat, "data_parallel_rank", lambda rank=rank: rank)
            made.append(wire.reply({"status": 200, "body": {"of": rank}}))
        return made

    manager: Any = SimpleNamespace(auto_create_handle_loop=lambda: None, get_internal_state_communicator=replies)
    answers = asyncio.run(wire.ask(manager, {"do": "stats"}))
    assert [answer["body"]["of"] for answer in answers] == [0, 1, 2]
