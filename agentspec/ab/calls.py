"""A call as the recording proxy saw it: its times, its token counts, and digests of what was asked and answered.

No text is kept. Two calls asked the same if their `request` is equal, and got the same answer if their `answer` is
equal. These API calls are understood; others are passed on and not recorded:

    chat/completions, completions   OpenAI
    responses                       OpenAI
    generate                        SGLang's own
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

UNDERSTOOD = ("chat/completions", "completions", "responses", "generate")
RESPONSE_ENDS = ("response.completed", "response.incomplete", "response.failed")
"""The last event of a streamed response; it is incomplete where a limit has cut it."""
CUT_STREAM = "the stream ended before the answer did"
# What may differ between two requests for the same answer: names, and how the answer is sent.
_NOT_ASKED = ("model", "stream", "stream_options", "user", "rid", "request_id", "return_spec_tokens_details", "store")
_ECHO = re.compile(r"""['"\\]*\binput(_value)?['"\\]*\s*[:=].*""", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One call of a model. Times are seconds of this machine's monotonic clock."""

    task: str
    path: str
    """The API call, such as `chat/completions`."""
    began: float
    first: float | None = None
    """When the first token came; None unless the answer was streamed."""
    ended: float = 0.0
    prompt_tokens: int | None = None
    """None where the server does not tell."""
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    verify_steps: int | None = None
    """Steps that the answer took; None where the server does not tell."""
    is_greedy: bool = False
    request: str = ""
    """A digest of what was asked; "" where the call is not understood."""
    answer: str = ""
    """A digest of the answer's texts and tool calls; "" where the call failed or is not understood."""
    error: str = ""

    @property
    def seconds(self) -> float:
        return self.ended - self.began

    @property
    def seconds_a_token(self) -> float | None:
        """Mean seconds between the tokens after the first."""
        if self.first is None or self.completion_tokens is None or self.completion_tokens < 2:
            return None
        return (self.ended - self.first) / (self.completion_tokens - 1)


@dataclass(slots=True)
class AnswerReader:
    """Collects an answer from its body or from its streamed events."""

    path: str
    usage: dict[str, Any] = field(default_factory=dict)
    verify_steps: int | None = None
    error: str = ""
    _parts: dict[str, str] = field(default_factory=dict)
    _has_delta: bool = False

    def read(self, body: Mapping[str, Any]) -> None:
        """Takes in a whole body that was not streamed."""
        self._note(body)
        if self.path == "responses":
            self._items(body.get("output"))
        elif self.path == "generate":
            self._generated(body)
        else:
            self._choices(body, "message")

    def read_event(self, event: Mapping[str, Any]) -> None:
        """Takes in one event of a stream."""
        if self.path == "responses":
            # Events without text say that the server has begun to read the prompt.
            self._has_delta |= str(event.get("type")).endswith(".delta")
            if isinstance(whole := event.get("response"), Mapping) and event.get("type") in RESPONSE_ENDS:
                self._note(whole)
                self._items(whole.get("output"))
            return
        self._note(event)
        if self.path == "generate":
            self._generated(event)
        else:
            self._choices(event, "delta")

    def has_text(self) -> bool:
        return self._has_delta or any(self._parts.values())

    def is_finished(self) -> bool:
        """Whether the answer told why it ended."""
        return any(part.endswith("/finish") for part in self._parts)

    def digest(self) -> str:
        """A digest of the answer; "" if nothing was understood."""
        return digest(sorted(self._parts.items())) if self._parts and not self.error else ""

    def tokens(self) -> dict[str, int | None]:
        """The counts of tokens, by the names of `Call`'s fields."""
        details = self.usage.get("prompt_tokens_details") or self.usage.get("input_tokens_details")
        details = details if isinstance(details, Mapping) else {}
        return {
            "prompt_tokens": _count(self.usage.get("prompt_tokens", self.usage.get("input_tokens"))),
            "completion_tokens": _count(self.usage.get("completion_tokens", self.usage.get("output_tokens"))),
            "cached_tokens": _count(self.usage.get("cached_tokens", details.get("cached_tokens"))),
        }

    def _note(self, body: Mapping[str, Any]) -> None:
        if isinstance(usage := body.get("usage"), Mapping):
            self.usage = dict(usage)
        if error := body.get("error"):
            self.error = without_echo(str(error.get("message", error) if isinstance(error, Mapping) else error))
        told = body.get("sglext")
        steps = (told.get("spec_tokens_details") if isinstance(told, Mapping) else None) or {}
        if isinstance(steps, Mapping) and _count(steps.get("spec_verify_ct")):
            self.verify_steps = _count(steps["spec_verify_ct"])

    def _choices(self, body: Mapping[str, Any], field_name: str) -> None:
        for choice in _mappings(body.get("choices")):
            number = choice.get("index", 0)
            said = choice.get(field_name) or {}
            self._add(f"{number}/text", choice.get("text"))
            self._add(f"{number}/content", said.get("content"))
            self._add(f"{number}/reasoning", said.get("reasoning_content", said.get("reasoning")))
            for place, tool in enumerate(_mappings(said.get("tool_calls"))):
                function = tool.get("function") or {}
                at = f"{number}/tool {tool.get('index', place)}"
                self._add(f"{at}/name", function.get("name"))
                self._add(f"{at}/arguments", function.get("arguments"))
            if reason := choice.get("finish_reason"):
                self._parts[f"{number}/finish"] = str(reason)

    def _items(self, items: object) -> None:
        for number, item in enumerate(_mappings(items)):
            kept = {key: value for key, value in item.items() if key not in ("id", "call_id", "status")}
            self._parts[str(number)] = json.dumps(kept, sort_keys=True)

    def _generated(self, body: Mapping[str, Any]) -> None:
        meta = body.get("meta_info") or {}
        self.usage = {key: meta.get(key) for key in ("prompt_tokens", "completion_tokens", "cached_tokens")}
        self.verify_steps = _count(meta.get("spec_verify_ct")) or None
        # Each event has the whole answer so far.
        self._parts["text"] = json.dumps([body.get("text"), body.get("output_ids")])

    def _add(self, part: str, text: object) -> None:
        if isinstance(text, str) and text:
            self._parts[part] = self._parts.get(part, "") + text
        elif text is not None and not isinstance(text, str):
            self._parts[part] = self._parts.get(part, "") + json.dumps(text, sort_keys=True)


def request_digest(path: str, body: Mapping[str, Any]) -> str:
    """What a request asks for, without names and without how the answer is sent."""
    return digest([path, {key: value for key, value in body.items() if key not in _NOT_ASKED}])


def is_greedy(path: str, body: Mapping[str, Any]) -> bool:
    """True if the request asks for the likeliest tokens, so that its answer is the same on every right server."""
    sampling = body.get("sampling_params") if path == "generate" else body
    return isinstance(sampling, Mapping) and (sampling.get("temperature") == 0 or sampling.get("top_k") == 1)


def without_echo(text: str) -> str:
    """An error, cut to 300 characters, and to where a server repeats what it was sent as the wrong input."""
    return _ECHO.sub("…", text)[:300]


def digest(value: object) -> str:
    """The first 16 hexadecimal digits of a SHA-256 of the value as JSON."""
    text = json.dumps(value, sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def busy_seconds(calls: Sequence[Call]) -> float:
    """Seconds in which at least one of the calls was in progress."""
    total, until = 0.0, float("-inf")
    for call in sorted(calls, key=lambda call: call.began):
        total += max(0.0, call.ended - max(call.began, until))
        until = max(until, call.ended)
    return total


def _mappings(values: object) -> list[Mapping[str, Any]]:
    return [value for value in values if isinstance(value, Mapping)] if isinstance(values, list) else []


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None
