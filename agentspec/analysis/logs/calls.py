"""A recorded model call as text, independent of the program that recorded it."""

from __future__ import annotations

import ast
import json
import math
import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

_MAX_NAME = 48
_MAX_WORDS = 4
_ROLE_FIELDS = ("stage", "agent_role", "agent_name", "agent", "node", "role")
_TENANT_FIELDS = (
    "tenant", "tenant_id", "organization", "org_id", "customer", "customer_id", "user", "user_id", "userId",
)  # fmt: skip
# The narrowest comes first where a record may have several.
_SESSION_FIELDS = (
    "session", "session_id", "sessionId", "conversation_id", "conversationId", "thread_id", "threadId", "trace_id",
    "traceId", "traj_id", "trajectory_id", "instance_id",
)  # fmt: skip
_TIME_FIELDS = (
    "ts", "timestamp", "time", "created", "created_at", "createdAt", "start_time", "startTime", "request_created_at",
)  # fmt: skip
_NESTED_FIELDS = ("metadata", "request", "request_body", "body", "obj")
LABEL_FIELDS = frozenset((*_ROLE_FIELDS, *_TENANT_FIELDS, *_SESSION_FIELDS, *_TIME_FIELDS, "metadata"))
"""The fields of a record that labels may be read from."""
_LITERAL = re.compile(r"\s*[\[{][\s\[{]*'")
_LONGEST_LITERAL = 4 << 20
_LAST_TIME = 32503680000.0
"""Numbers beyond the year 3000, in seconds, are milliseconds."""


class BadRecordError(ValueError):
    """A record has no known format, or lacks a part; the message says what was expected."""


class NoAnswerError(BadRecordError):
    """A record is understood and has no answer of a model, for example that of a failed request; the message says which."""


@dataclass(frozen=True, slots=True)
class Labels:
    """The sets that a record's calls belong to; "" where the record does not say."""

    session: str = ""
    role: str = ""
    tenant: str = ""
    day: str = ""
    """YYYY-MM-DD, UTC."""
    task: str = ""
    """The task of the session, where a trace names it."""


@dataclass(frozen=True, slots=True)
class LoggedCall:
    """One model call."""

    messages: tuple[tuple[str, str], ...]
    """(role, text) of all messages before the output; () if none were recorded."""
    header: str
    """The text between the messages and the output: a role's header, or the name of a stage."""
    output: str
    labels: Labels
    tokens: tuple[int, ...] | None = None
    """The output as token ids, if the record has them; `output` is then ""."""
    message: Mapping[str, Any] | None = None
    """The output as a chat message, if it was recorded as one."""
    request: Mapping[str, Any] | None = None
    """The body of the request, if it was recorded."""
    prompt_values: Sequence[Mapping[str, Any]] = ()
    """`messages` as they were recorded, if each of them was recorded as a chat message."""
    began: float | None = None
    """When the request was sent, in seconds of any clock; None where the log does not tell."""
    ended: float | None = None
    """When the answer was complete."""

    @property
    def has_prompt(self) -> bool:
        return bool(self.messages)

    @property
    def num_prompt_characters(self) -> int:
        return sum(len(text) for _, text in self.messages)


def labels_of(record: Mapping[str, Any], *, session: str = "") -> Labels:
    """The labels in a record's own fields or in its `metadata`, shortened for display. `session`: the session's name if
    the record has none."""
    places = [record, *(record[key] for key in _NESTED_FIELDS if isinstance(record.get(key), dict))]
    places += [place["metadata"] for place in places[1:] if isinstance(place.get("metadata"), dict)]
    return Labels(
        session=_first(places, _SESSION_FIELDS) or session,
        role=_name(_first(places, _ROLE_FIELDS)),
        tenant=_name(_first(places, _TENANT_FIELDS)),
        day=_day(places),
    )


def from_text(value: Any) -> Any:
    """The list or object that was stored in a string, as JSON or as Python shows it; anything else unchanged."""
    if not isinstance(value, str) or value.lstrip()[:1] not in ("{", "["):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        pass
    if len(value) <= _LONGEST_LITERAL and _LITERAL.match(value):
        try:
            return ast.literal_eval(value)
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            pass
    return value


def shown(name: str, longest: int = _MAX_NAME) -> str:
    """A name without control and direction characters, cut to `longest` characters."""
    kept = "".join(c if unicodedata.category(c)[0] != "C" else " " for c in name[: 4 * longest])
    kept = " ".join(kept.split())
    return kept if len(kept) <= longest else kept[: longest - 1] + "…"


def _name(text: str) -> str:
    """A name as it may be shown in a report; "" for many words, which may be what somebody wrote."""
    return shown(text) if len(text.split()) <= _MAX_WORDS else ""


def _first(places: Iterable[Mapping[str, Any]], names: Iterable[str]) -> str:
    names = tuple(names)
    for place in places:
        for name in names:
            value = place.get(name)
            if isinstance(value, str | int) and not isinstance(value, bool) and value != "":
                return str(value)
    return ""


def time_of(record: Mapping[str, Any]) -> float | None:
    """The time in a record's own fields, in seconds since 1970; None where it has none."""
    found = (_as_time(record.get(name)) for name in _TIME_FIELDS)
    return next((seconds for seconds in found if seconds is not None), None)


def _day(places: Iterable[Mapping[str, Any]]) -> str:
    for place in places:
        seconds = time_of(place)
        if seconds is not None:
            return datetime.fromtimestamp(seconds, UTC).date().isoformat()
    return ""


def _as_time(value: Any) -> float | None:
    """Seconds since 1970 of a number or a date. A date without a zone is taken as UTC."""
    if isinstance(value, str):
        try:
            value = float(value)
        except ValueError:
            try:
                when = datetime.fromisoformat(value)
                return (when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp()
            except (ValueError, OverflowError):
                return None
    if not isinstance(value, int | float) or isinstance(value, bool) or not math.isfinite(value) or value <= 0:
        return None
    seconds = value / 1e3 if value > _LAST_TIME else float(value)
    return seconds if seconds < _LAST_TIME else None
