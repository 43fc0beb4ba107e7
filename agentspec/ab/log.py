"""A log of calls as a workload: its requests are sent again with their own timing.

A task is a session of the log. Its calls are sent one after another with the prompts as recorded, whatever the server
answered before. Two calls are as far apart as in the log, and longer pauses are shortened. Without times in the log,
a call is sent as soon as the answer before it is complete.
"""

from __future__ import annotations

import asyncio
import json
import math
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentspec.ab.calls import CUT_STREAM, AnswerReader, digest, without_echo
from agentspec.ab.workload import Target, TaskResult
from agentspec.analysis.logs.source import LogReading, log_files, read_calls
from agentspec.errors import ConfigError

if TYPE_CHECKING:
    from aiohttp import ClientSession

    from agentspec.analysis.logs.calls import LoggedCall

# The fields of a recorded request that decide what is answered, or how fast.
_KEPT_FIELDS = (
    "tools", "tool_choice", "parallel_tool_calls", "response_format", "stop", "max_tokens", "max_completion_tokens",
    "temperature", "top_p", "top_k", "min_p", "seed", "presence_penalty", "frequency_penalty", "reasoning_effort",
    "chat_template_kwargs", "cache_salt", "custom_params", "n", "prediction",
)  # fmt: skip
_KEPT_OF_MESSAGE = ("role", "content", "name", "tool_calls", "tool_call_id", "reasoning_content")
_ROLES = {"system", "developer", "user", "assistant", "tool", "function"}
_CALL_SECONDS = 3600.0
_FINISH = re.compile(rb'"finish_reason": ?"')


@dataclass(frozen=True, slots=True, kw_only=True)
class LogConfig:
    """How a log is sent again. Raises ConfigError if a field is out of range.

    Args:
        concurrency: Number of sessions at a time at most.
        speed: The log's pauses are divided by this; infinite: no pause.
        max_pause_s: Longer pauses are shortened to this, in seconds before division.
        max_tokens: Limit of the answers of calls that record none.
        keep_temperature: Whether calls keep their recorded temperature. Otherwise it is 0, so that answers can be
            compared.
        sessions: Number of sessions at most; 0: all.
        calls: Number of calls of a session at most; 0: all.
    """

    concurrency: int = 4
    speed: float = 1.0
    max_pause_s: float = 10.0
    max_tokens: int = 1024
    keep_temperature: bool = False
    sessions: int = 0
    calls: int = 0

    def __post_init__(self) -> None:
        if self.concurrency < 1 or self.max_tokens < 1 or min(self.sessions, self.calls) < 0:
            raise ConfigError(f"concurrency and max_tokens must be at least 1 and limits at least 0, got {self}")
        if not self.speed > 0 or not self.max_pause_s >= 0:
            raise ConfigError(
                f"--speed must be above 0 and --max-pause at least 0, got {self.speed}, {self.max_pause_s}"
            )


@dataclass(frozen=True, slots=True)
class _Session:
    name: str
    began: float | None
    """When its first call was recorded; None without times."""
    bodies: tuple[dict[str, Any], ...]
    pauses: tuple[float, ...]
    """Seconds from the beginning of the call before, for each call; 0 for the first."""


class LogWorkload:
    """The sessions of a log. Raises ConfigError if no call with a prompt could be read."""

    def __init__(self, paths: Sequence[Path], config: LogConfig) -> None:
        self._config = config
        self.notes: list[str] = []
        reading = LogReading()
        grouped: dict[str, list[LoggedCall]] = {}
        without_prompt = 0
        for _, call in read_calls(log_files(paths), reading):
            if not call.has_prompt:
                without_prompt += 1
                continue
            if call.labels.session not in grouped and config.sessions and len(grouped) == config.sessions:
                continue
            calls = grouped.setdefault(call.labels.session, [])
            if calls and call.request is not None and call.request is calls[-1].request:
                # Another answer to the same request, which is sent once.
                continue
            if not config.calls or len(calls) < config.calls:
                calls.append(call)
        if not grouped:
            raise ConfigError(
                "a log that is sent again must have calls with their prompts, and none was read"
                + (f"; {without_prompt} calls have none" if without_prompt else "")
                + (f"; the first bad record: {reading.bad[0]['reason']}" if reading.bad else "")
            )
        self._sessions = sorted(
            (self._session(name, calls) for name, calls in grouped.items()),
            key=lambda session: session.began if session.began is not None else 0.0,
        )
        self._files = [path.name for path in paths]
        self._timed = all(session.began is not None for session in self._sessions)
        if without_prompt:
            self.notes.append(f"{without_prompt} calls of the log have no prompt and were not sent.")
        if reading.num_bad:
            self.notes.append(f"{reading.num_bad} records of the log could not be read.")
        if not self._timed:
            self.notes.append(
                "The log has no times for every session, so each call was sent as soon as the answer before it was "
                f"complete, {config.concurrency} sessions at a time."
            )
        elif not any(call.ended is not None and call.began is not None for calls in grouped.values() for call in calls):
            self.notes.append(
                "The log has one time for each call, so a pause includes the time that the recorded model took. Compare "
                "the time in the model rather than the wall time."
            )

    @property
    def tasks(self) -> Sequence[str]:
        return [session.name for session in self._sessions]

    def describe(self) -> dict[str, Any]:
        config = self._config
        return {
            "log": self._files,
            "sessions": len(self._sessions),
            "calls": sum(len(session.bodies) for session in self._sessions),
            # Of the last messages alone, because prompts repeat each other.
            "requests": digest([body["messages"][-1:] for session in self._sessions for body in session.bodies]),
            "timed": self._timed,
            # JSON has no infinity.
            "speed": config.speed if math.isfinite(config.speed) else "inf",
            "max_pause_s": config.max_pause_s if math.isfinite(config.max_pause_s) else "inf",
            "max_tokens": config.max_tokens,
            "keep_temperature": config.keep_temperature,
            "concurrency": config.concurrency,
        }

    def run(self, start: int, count: int, target: Target) -> list[TaskResult]:
        return asyncio.run(self._run(self._sessions[start : start + count], target))

    async def _run(self, sessions: Sequence[_Session], target: Target) -> list[TaskResult]:
        import aiohttp

        config, done = self._config, 0
        began, first = time.monotonic(), sessions[0].began if sessions else None
        gate = asyncio.Semaphore(config.concurrency)
        timeout = aiohttp.ClientTimeout(total=_CALL_SECONDS)
        async with aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0), timeout=timeout, read_bufsize=1 << 22
        ) as client:

            async def one(session: _Session, due: float) -> TaskResult:
                nonlocal done
                await asyncio.sleep(max(0.0, due - time.monotonic()))
                async with gate:
                    result = await self._send(client, session, target)
                done += 1
                target.say(done)
                return result

            due = [began]
            for before, session in pairwise(sessions):
                pause = (session.began or 0.0) - (before.began or 0.0) if first is not None and self._timed else 0.0
                due.append(due[-1] + min(max(pause, 0.0), config.max_pause_s) / config.speed)
            return list(await asyncio.gather(*(one(*pair) for pair in zip(sessions, due, strict=True))))

    async def _send(self, client: ClientSession, session: _Session, target: Target) -> TaskResult:
        began = sent = time.monotonic()
        error = ""
        for body, pause in zip(session.bodies, session.pauses, strict=True):
            due = sent + min(pause, self._config.max_pause_s) / self._config.speed
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            sent = time.monotonic()
            error = await _ask(
                client, f"{target.base_url(session.name)}/chat/completions", {**body, "model": target.model}
            )
            if error:
                break
        return TaskResult(task=session.name, seconds=time.monotonic() - began, error=error)

    def _session(self, name: str, calls: Sequence[LoggedCall]) -> _Session:
        starts = [call.began if call.began is not None else call.ended for call in calls]
        pauses = [0.0]
        for place in range(1, len(calls)):
            before, now = calls[place - 1], starts[place]
            # From the end of the answer before where that is known, or else from its beginning.
            since = before.ended if before.ended is not None and before.began is not None else starts[place - 1]
            pauses.append(max(0.0, now - since) if now is not None and since is not None else 0.0)
        bodies = tuple(request_of(call, self._config) for call in calls)
        return _Session(name, starts[0], bodies, tuple(pauses))


def request_of(call: LoggedCall, config: LogConfig) -> dict[str, Any]:
    """The body of a streamed chat completion, without the model's name."""
    recorded = call.request or {}
    values = call.prompt_values
    messages = [_message(value) for value in values] if values else [
        {"role": role if role in ("system", "user", "assistant") else "user", "content": text}
        for role, text in call.messages
    ]  # fmt: skip
    body = {key: recorded[key] for key in _KEPT_FIELDS if recorded.get(key) is not None}
    given = body.pop("tools", None)
    tools = [_tool(tool) for tool in given if isinstance(tool, Mapping)] if isinstance(given, list) else []
    if any(tools):
        body["tools"] = [tool for tool in tools if tool]
    if not any(tools) or isinstance(body.get("tool_choice"), Mapping) and "function" not in body["tool_choice"]:
        # Of another API, or of its own servers' tools.
        body.pop("tool_choice", None)
    if not config.keep_temperature:
        body["temperature"] = 0
    if "max_tokens" not in body and "max_completion_tokens" not in body:
        body["max_tokens"] = config.max_tokens
    return {**body, "messages": messages, "stream": True}


def _message(value: Mapping[str, Any]) -> dict[str, Any]:
    message = {key: value[key] for key in _KEPT_OF_MESSAGE if value.get(key) is not None}
    if message.get("role") not in _ROLES:
        message["role"] = "user"
    if "tool_calls" in message:
        message["tool_calls"] = [_tool_call(call, place) for place, call in enumerate(message["tool_calls"])]
        message.setdefault("content", "")
    return message


def _tool(value: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The tool as the API has it. Those of the Responses API and of Anthropic have their function's fields at the top."""
    if "function" in value:
        return value
    schema = value.get("parameters", value.get("input_schema"))
    if not isinstance(schema, Mapping):
        return None
    kept = {key: value[key] for key in ("name", "description") if value.get(key) is not None}
    return {"type": "function", "function": {**kept, "parameters": schema}}


def _tool_call(value: Mapping[str, Any], place: int) -> dict[str, Any]:
    """The tool call as the API has it. Some logs keep the function alone."""
    function = value.get("function") if isinstance(value.get("function"), Mapping) else value
    assert isinstance(function, Mapping)
    arguments = next((function[key] for key in ("arguments", "args") if function.get(key) is not None), "{}")
    return {
        "id": str(value.get("id") or f"call_{place}"),
        "type": "function",
        "function": {
            "name": str(function.get("name", "")),
            "arguments": arguments if isinstance(arguments, str) else json.dumps(arguments),
        },
    }


async def _ask(client: ClientSession, url: str, body: Mapping[str, Any]) -> str:
    """Reads the streamed answer to its end; the proxy records it. Returns the reason of a failure, or ""."""
    import aiohttp

    try:
        async with client.post(url, json=body) as response:
            if response.status != 200:
                return f"{response.status}: {without_echo(await response.text())}"
            reader = AnswerReader("chat/completions")
            is_whole = False
            async for line in response.content:
                is_whole |= line.startswith(b"data: [DONE]") or _FINISH.search(line) is not None
                if line.startswith(b"data: {") and b'"error"' in line:
                    reader.read_event(json.loads(line.removeprefix(b"data:")))
            return reader.error or ("" if is_whole else CUT_STREAM)
    except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as error:
        return f"{type(error).__name__}: {error}"[:300]
