"""Recorded tool calls in the served model's own way of writing them."""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import Mapping
from typing import Any

logger = logging.getLogger("agentspec")


def with_tool_calls(tokenizer: Any, message: Mapping[str, Any]) -> str | None:
    """What the served model writes to call the tools that a recorded message calls: what its chat template adds to a
    conversation for this message, without the end of the turn. None where the template tells nothing of tool calls."""
    before = [{"role": "user", "content": "-"}]
    calls = [_with_object_arguments(call) for call in message["tool_calls"]]
    after = [*before, {"role": "assistant", "content": message.get("content") or "", "tool_calls": calls}]
    try:
        opened = tokenizer.apply_chat_template(before, tokenize=False, add_generation_prompt=True)
        whole = tokenizer.apply_chat_template(after, tokenize=False)
    except Exception as error:
        logger.debug("the chat template refuses tool calls: %s", type(error).__name__)
        return None
    names = [str(call.get("function", call).get("name")) for call in calls]
    if not whole.startswith(opened) or not all(name in whole for name in names):
        return None
    end = getattr(tokenizer, "eos_token", None)
    added: str = whole[len(opened) :]
    return (added.rpartition(end)[0] if end and end in added else added).rstrip("\n")


def _with_object_arguments(call: Mapping[str, Any]) -> dict[str, Any]:
    """Templates want arguments as objects; most are recorded as a string."""
    function = dict(call.get("function", call))
    if isinstance(function.get("arguments"), str):
        with contextlib.suppress(ValueError):
            function["arguments"] = json.loads(function["arguments"])
    return {"type": "function", "function": function}
