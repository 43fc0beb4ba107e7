"""Sends a command from the HTTP process to every scheduler, and returns the answers.

SGLang's processes exchange a closed set of message types, also through processes that load no plugins. So a command is
sent as the request id of the message that `/server_info` sends, which does not use the id. Clients cannot send such a
message with an id, because SGLang makes it itself, without one.
"""

from __future__ import annotations

import importlib
import json
from typing import Any

from agentspec.integrations.sglang import compat
from agentspec.integrations.sglang.sglang_types import TokenizerManager

JsonObject = dict[str, Any]
"""An object of JSON, parsed or to be written."""

_MARK = "agentspec "
_KEY = "agentspec_admin"
_RANK = "agentspec_dp_rank"
NO_DESK: JsonObject = {"status": 503, "body": {"error": "this scheduler runs without agentspec; its log says why"}}


async def ask(manager: TokenizerManager, command: JsonObject) -> list[JsonObject]:
    """Sends a command to the scheduler of each data-parallel rank. Returns their answers, which have `status` and `body`,
    by rank."""
    messages = importlib.import_module("sglang.srt.managers.io_struct")
    manager.auto_create_handle_loop()
    request = messages.GetInternalStateReq(rid=_MARK + json.dumps(command))
    replies = await manager.get_internal_state_communicator(request)
    # Replies come in the order in which the ranks answered.
    states = sorted((reply.internal_state for reply in replies), key=lambda state: state.get(_RANK) or 0)
    return [state.get(_KEY, NO_DESK) for state in states]


def command_in(message: object) -> JsonObject | None:
    """The command in a message; None if the message carries none."""
    rid = getattr(message, "rid", None)
    if not isinstance(rid, str) or not rid.startswith(_MARK):
        return None
    found: JsonObject = json.loads(rid.removeprefix(_MARK))
    return found


def reply(answer: JsonObject) -> object:
    """The message with an answer, which must consist of JSON's types."""
    messages = importlib.import_module("sglang.srt.managers.io_struct")
    return messages.GetInternalStateReqOutput(internal_state={_KEY: answer, _RANK: compat.data_parallel_rank()})
