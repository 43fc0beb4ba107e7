"""Recorded answers, found by their prompts.

A chat is found by a digest that is chained over its messages. For a chat that is not recorded, the longest known chain
tells where it differs from all recorded ones. A text prompt is found by its text, in any form in which a client may
have rendered a recorded chat.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from agentspec.analysis.logs.calls import LoggedCall
from agentspec.integrations.sglang.sglang_types import Tokenizer

Messages = Sequence[tuple[str, str]]
"""(role, text)."""
# How agentspec.analysis.replay.traces begins a tool call.
_TOOL_CALL = '{"name": '
_ROLES = {"developer": "system", "ai": "assistant", "model": "assistant"}
logger = logging.getLogger("agentspec")


@dataclass(frozen=True, slots=True)
class Answer:
    """A recorded answer."""

    text: str
    ids: tuple[int, ...] | None = None
    """The token ids, if they were recorded instead of a text."""
    tool_call_message: Mapping[str, Any] | None = None
    """The recorded message, if it calls tools, because each model writes tool calls in its own way."""


@dataclass(slots=True)
class _Known:
    """A chain of messages with which at least one recorded call begins."""

    next_roles: set[str] = field(default_factory=set)
    answers: list[Answer] = field(default_factory=list)
    num_taken: int = 0


class RecordedAnswers:
    """The answers of recorded calls. Safe to use from several threads.

    The answers of a prompt are returned in the order in which they were added. After the last one the first comes
    again, so that a trace can be replayed more than once.
    """

    def __init__(self, calls: Iterable[LoggedCall] = ()) -> None:
        self._chains: dict[bytes, _Known] = {b"": _Known()}
        self._calls: list[tuple[Messages, str, _Known]] = []
        # The messages that were added last, and the chain before the first and after each of them.
        self._last: tuple[Messages, list[bytes]] = ((), [b""])
        self._texts: dict[bytes, _Known] | None = None
        self._lock = threading.Lock()
        for call in calls:
            self.add(call)

    def __len__(self) -> int:
        return len(self._calls)

    def add(self, call: LoggedCall) -> None:
        """Adds a call. A call without messages is found by its header."""
        messages = call.messages or (("user", call.header),)
        # Each call of a session repeats the messages of the last one and adds a few. So the last call's chains are
        # reused.
        last, chains = self._last
        shared = 0
        while shared < min(len(last), len(messages)) and messages[shared] is last[shared]:
            shared += 1
        chains = chains[: shared + 1]
        for role, text in messages[shared:]:
            self._chains[chains[-1]].next_roles.add(_role(role))
            chains.append(_chained(chains[-1], role, text))
            self._chains.setdefault(chains[-1], _Known())
        self._last = messages, chains
        known = self._chains[chains[-1]]
        calls_tools = call.message is not None and call.message.get("tool_calls")
        known.answers.append(Answer(call.output, call.tokens, call.message if calls_tools else None))
        self._calls.append((messages, call.header, known))

    def take(self, messages: Messages) -> Answer | None:
        """The next answer to a chat; None if there is none."""
        known = self._chains.get(_chain(messages))
        return None if known is None else self._next(known)

    def take_text(
        self, text: str, forms: Callable[[Messages, str], Iterable[str]] = lambda messages, header: ()
    ) -> Answer | None:
        """The next answer to a text prompt; None if there is none.

        Args:
            text: The prompt. A chat of one message is also found by the text of the message.
            forms: Returns all texts in which a chat may have been rendered, from its messages and the header of its
                answer. It is called once for each recorded call, when the first text prompt comes.
        """
        with self._lock:
            if self._texts is None:
                self._texts = {}
                for messages, header, known in self._calls:
                    alone = [messages[0][1]] if len(messages) == 1 else []
                    for form in (*alone, *forms(messages, header)):
                        self._texts.setdefault(_digest(form.strip()), known)
            found = self._texts.get(_digest(text.strip()))
        return None if found is None else self._next(found)

    def nearest(self, messages: Messages) -> str:
        """Says where a chat that is not recorded differs from the recorded ones, by positions and roles only."""
        total, chain = len(messages), b""
        for i, (role, text) in enumerate(messages):
            following = _chained(chain, role, text)
            if following not in self._chains:
                roles = " or ".join(sorted(self._chains[chain].next_roles)) or "nothing"
                same = "with another text" if _role(role) in self._chains[chain].next_roles else "there"
                return (
                    f"the nearest recorded chat has the first {i} of its {total} messages; message {i + 1} has the role "
                    f"{_role(role)}, the recording {roles} {same}"
                )
            chain = following
        roles = " or ".join(sorted(self._chains[chain].next_roles)) or "nothing"
        return f"all of its {total} messages are recorded, but with {roles} behind them, and no answer"

    def _next(self, known: _Known) -> Answer | None:
        with self._lock:
            if not known.answers:
                return None
            known.num_taken += 1
            return known.answers[(known.num_taken - 1) % len(known.answers)]


def _role(role: str) -> str:
    return _ROLES.get(role, role)


def _chain(messages: Messages) -> bytes:
    chain = b""
    for role, text in messages:
        chain = _chained(chain, role, text)
    return chain


def _chained(chain: bytes, role: str, text: str) -> bytes:
    # Templates and clients may change the white space around a text.
    return hashlib.blake2b(chain + _digest(_role(role)) + _digest(_canonical(text).strip()), digest_size=16).digest()


def _canonical(text: str) -> str:
    """The text with the arguments of tool calls, which are on lines of their own, in a canonical form.

    A client that parses and writes them again may change their white space and the order of their names.
    """
    if _TOOL_CALL not in text:
        return text
    return "\n".join(_canonical_line(line) if line.startswith(_TOOL_CALL) else line for line in text.split("\n"))


def _canonical_line(line: str) -> str:
    try:
        return json.dumps(json.loads(line), sort_keys=True)
    except ValueError:
        return line


def _digest(text: str) -> bytes:
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()


def with_tool_calls(tokenizer: Tokenizer, message: Mapping[str, Any]) -> str | None:
    """The text with which the served model makes the tool calls of a recorded message.

    This is what the model's chat template adds to a conversation for the message, without the end of the turn; None if
    the template does not render tool calls.
    """
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
    """A tool call whose arguments are an object, as templates need them. Most are recorded as a string."""
    function = dict(call.get("function", call))
    if isinstance(function.get("arguments"), str):
        with contextlib.suppress(ValueError):
            function["arguments"] = json.loads(function["arguments"])
    return {"type": "function", "function": function}
