"""Logs in which a record is only a part of a call: sessions of agents line by line, events, and chunks of streams.

The parts of a file are collected, and become calls at the file's end. A message in several lines is one output, and a
message that a later file repeats, because a session was resumed or forked, is not counted again.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from agentspec.analysis.logs.account import Account, type_name
from agentspec.analysis.logs.calls import Labels, LoggedCall, labels_of
from agentspec.analysis.logs.formats import fields
from agentspec.analysis.logs.formats.answers import ANSWERS, read_answers
from agentspec.analysis.logs.formats.events import event_messages, is_event
from agentspec.analysis.logs.formats.messages import Message, chat_calls, is_item, read_message, read_messages
from agentspec.analysis.logs.formats.streams import is_chunk, is_ollama, joined, stream_of

_CLAUDE_CODE_IGNORED = fields.names(
    """
    summary system file-history-snapshot queue-operation progress last-prompt custom-title ai-title agent-name result
    permission-mode pr-link rate_limit_event stream_event control_request control_response agent-setting mode tag
    worktree-state content-replacement speculation-accept attribution-snapshot
    """
)
"""Types of lines that are about the session. What they quote is in other lines too."""
_CLAUDE_CODE_KNOWN = fields.names(
    """
    type message uuid parentUuid parent_tool_use_id logicalParentUuid sessionId session_id timestamp requestId
    request_id isSidechain isMeta userType entrypoint cwd version gitBranch slug agentId sessionKind toolUseResult
    tool_use_result sourceToolUseID sourceToolAssistantUUID isApiErrorMessage isVisibleInTranscriptOnly
    isCompactSummary thinkingMetadata todos permissionMode promptId error apiError teamName level isReplay
    imagePasteIds planContent inferenceGeo mcpMeta isSynthetic
    """
)
_CODEX_IGNORED = fields.names("event_msg turn_context session_meta compacted world_state session_state ghost_snapshot")
_CODEX_TYPES = _CODEX_IGNORED | {"response_item"}
_FOLDER = "(folder)"
_MAX_STREAMS = 64
"""Streams that are open at the same time; more are only in logs of chunks whose ends are missing."""


@dataclass(slots=True)
class _Conversation:
    """The parts of one session in one file."""

    form: str
    labels: Labels
    items: list[Any] = field(default_factory=list)
    """Messages, or what becomes messages at the end."""
    places: dict[str, int] = field(default_factory=dict)
    """The places of messages by their identity."""
    repeated: set[int] = field(default_factory=set)
    """The places of items that another file has too."""


class Sessions:
    """Collects the parts of each file. One object reads all files of a log."""

    def __init__(self, account: Account) -> None:
        self._account = account
        self._open: dict[tuple[str, ...], _Conversation] = {}
        self._streams: dict[str, list[Any]] = {}
        self._stream = ""
        self._ended = 0
        # The identities of messages, and the conversation that they were counted in.
        self._counted: dict[str, str] = {}
        # The identity of the latest item of each session of Codex.
        self._latest: dict[str, str] = {}
        self._labels = Labels()

    def add(
        self, record: Mapping[str, Any], form: str, name: str, is_alone: bool = False
    ) -> Iterator[tuple[str, LoggedCall]]:
        """Takes in a record, and yields the calls that are complete, with their formats. Raises ValueError if the
        record is malformed.

        Args:
            record: A record that part_of() knows.
            form: What part_of() returned.
            name: The name of a session that has none.
            is_alone: Whether it may be the only record of its file.
        """
        if form == "stream":
            yield from self._add_chunk(record, name)
        elif form == "claude-code":
            self._add_claude_code(record, name)
        elif form == "codex":
            self._add_codex(record, name)
        elif form == "messages":
            # Its role is not that of an agent.
            labels = labels_of({**record, "role": None}, session=name)
            self._conversation("messages", labels, labels.session).items.append(record)
        else:
            folder = name.rpartition("/")[0]
            key = (folder, _FOLDER) if is_alone else (name,)
            self._conversation("openhands-events", Labels(session=key[0]), *key).items.append(record)

    def finish(self, goes_on: bool = False) -> Iterator[tuple[str, LoggedCall]]:
        """The calls of everything that was collected since the last time. `goes_on`: whether another file of the same
        folder follows. OpenHands writes a file for each event."""
        for name in list(self._streams):
            yield from self._end_stream(name)
        closed = [key for key in self._open if not (goes_on and key[-1] == _FOLDER)]
        for one in (self._open.pop(key) for key in closed):
            make = _MESSAGES_OF.get(one.form)
            messages = make(one.items, self._account) if make else one.items
            repeated = {i for i, message in enumerate(messages) if (message.place if make else i) in one.repeated}
            for message in (messages[i] for i in sorted(repeated)):
                if message.role == "assistant":
                    self._account.note_left_out("output", "message that another file has too", message.written)
            if not any(message.role == "assistant" for message in messages):
                self._account.note_skipped("a session without an answer")
            for call in chat_calls(messages, one.labels, self._account, repeated):
                yield one.form, call

    def _conversation(self, form: str, labels: Labels, *key: str) -> _Conversation:
        return self._open.setdefault((form, *key), _Conversation(form, labels))

    def _add_chunk(self, chunk: Mapping[str, Any], name: str) -> Iterator[tuple[str, LoggedCall]]:
        # Only some events of a stream tell its name; the others belong to the stream that was met last.
        self._stream = stream_of(chunk) or self._stream
        self._labels = Labels(session=name)
        self._streams.setdefault(self._stream, []).append(chunk)
        if is_ollama(chunk) and chunk["done"] is True:
            yield from self._end_stream(self._stream)
        while len(self._streams) > _MAX_STREAMS:
            yield from self._end_stream(next(iter(self._streams)))

    def _end_stream(self, name: str) -> Iterator[tuple[str, LoggedCall]]:
        chunks = self._streams.pop(name)
        self._ended += 1
        session = f"{self._labels.session}/{name or self._ended}"
        for value in joined(chunks, self._account):
            for answer in read_answers(value, self._account):
                if answer.message.written:
                    labels = Labels(session=session)
                    yield "stream", LoggedCall((), "output\n", answer.message.written, labels)

    def _add_claude_code(self, line: Mapping[str, Any], name: str) -> None:
        account, kind, value = self._account, line["type"], line.get("message")
        is_model = kind == "assistant"
        labels = labels_of(line, session=name)
        key = (
            labels.session,
            str(line.get("agentId") or line.get("parent_tool_use_id") or line.get("isSidechain") or ""),
        )
        if kind == "system" and line.get("subtype") == "compact_boundary":
            # Later prompts begin with a summary.
            self._cut(("claude-code", *key))
            return
        if kind not in ("user", "assistant") or not isinstance(value, dict):
            if kind not in _CLAUDE_CODE_IGNORED:
                account.note_unknown("record", f"claude-code line of the type {type_name(kind)}", line)
            else:
                account.note_skipped(f"a line of the type {kind}, which is about the session")
            return
        if is_model and (line.get("isApiErrorMessage") is True or value.get("model") == "<synthetic>"):
            account.note_skipped("a message that the agent's program wrote itself")
            return
        account.check("record", "claude-code", line, _CLAUDE_CODE_KNOWN)
        one = self._conversation("claude-code", labels, *key)
        identity = str(value.get("id") or line.get("uuid") or "") if is_model else str(line.get("uuid") or "")
        lines = f"line {line.get('uuid')}"
        if line.get("uuid") and lines in one.places:
            return
        one.places[lines] = -1
        message = read_message({"role": kind, **value}, account, "output" if is_model else "prompt")
        place = one.places.get(identity) if is_model and identity else None
        if place is not None:
            before: Message = one.items[place]
            one.items[place] = Message("assistant", before.parts + message.parts, before.value)
            return
        if is_model and identity:
            one.places[identity] = len(one.items)
            self._count(one, identity, "/".join(key))
        one.items.append(message)

    def _add_codex(self, line: Mapping[str, Any], name: str) -> None:
        payload = line["payload"]
        kind = line.get("type")
        one = self._conversation("codex", labels_of(line, session=name), name)
        if kind == "response_item":
            identity = self._latest[name] = _identity(payload, self._latest.get(name, ""))
            self._count(one, identity, name)
            one.items.append(payload)
        elif kind == "compacted":
            self._cut(("codex", name))
        elif kind == "session_meta":
            text = payload.get("base_instructions", payload.get("instructions"))
            text = text.get("text") if isinstance(text, dict) else text
            if isinstance(text, str) and text and not one.items:
                one.items.append({"role": "system", "content": text})
            self._account.note_skipped("a line of the type session_meta, which is about the session")
        elif kind in _CODEX_IGNORED:
            self._account.note_skipped(f"a line of the type {kind}, which is about the session")
        else:
            self._account.note_unknown("record", f"codex line of the type {type_name(kind)}", line)

    def _count(self, one: _Conversation, identity: str, name: str) -> None:
        """Notes the identity of the item that is added next, and whether another conversation has it too."""
        if self._counted.setdefault(identity, name) != name:
            one.repeated.add(len(one.items))

    def _cut(self, key: tuple[str, ...]) -> None:
        """Ends a conversation, because what follows does not have it in its prompts."""
        one = self._open.pop(key, None)
        if one is not None:
            self._open[*key, str(len(self._open))] = one
            self._open[key] = _Conversation(one.form, one.labels)


def _identity(item: Mapping[str, Any], before: str) -> str:
    """The identity of an item of Codex. A forked session begins with the items of another one. An item without an id of its
    own is the same if all items before it are, back to one with an id."""
    if isinstance(item.get("id") or item.get("call_id"), str):
        before = ""
    content = json.dumps(item, sort_keys=True).encode("utf-8", "surrogatepass")
    return hashlib.blake2b(before.encode() + content, digest_size=16).hexdigest()


def part_of(record: Any) -> str | None:
    """The format of a record that is a part of a session; None if it is none."""
    if not isinstance(record, dict):
        return None
    if is_chunk(record):
        return "stream"
    kind = record.get("type") if isinstance(record.get("type"), str) else None
    if isinstance(record.get("payload"), dict) and (kind in _CODEX_TYPES or kind and "timestamp" in record):
        return "codex"
    if kind and is_claude_code(record):
        return "claude-code"
    if is_event(record):
        return "openhands-events"
    row = fields.BLOCKS.get(kind or "")
    is_lone = is_item(record) and row is not None and row.kind in ("call", "result", "reasoning")
    has_role = isinstance(record.get("role"), str) and record["role"] in fields.KNOWN_ROLES
    is_lone |= has_role and bool(record.keys() & {"content", "parts", "tool_calls"})
    # What a tool answered may be in the field "output".
    own = row.known if row is not None and row.kind in ("call", "result") else frozenset[str]()
    return "messages" if is_lone and not record.keys() & {*ANSWERS, "messages", "prompt"} - own else None


def is_claude_code(record: Mapping[str, Any]) -> bool:
    """Whether a record is a line of a session of Claude Code, from its folder or from its output."""
    kind = record["type"]
    if kind in ("user", "assistant") and isinstance(record.get("message"), dict):
        return True
    has_session = bool(record.keys() & {"sessionId", "session_id", "leafUuid", "parentUuid"})
    return has_session and not record.keys() & {"messages", "input", "output", "response", "run_type"} or (
        kind in ("file-history-snapshot", "queue-operation") or kind == "summary" and "summary" in record
    )  # fmt: skip


_MESSAGES_OF: dict[str, Callable[[list[Any], Account], list[Message]]] = {
    "codex": lambda items, account: read_messages(items, account, prompt=False),
    "messages": lambda items, account: read_messages(items, account, prompt=False),
    "openhands-events": event_messages,
}
