"""Records that hold a request and its answer, or a span of one."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from agentspec.analysis.logs.account import Account
from agentspec.analysis.logs.calls import BadRecordError, LoggedCall, NoAnswerError, labels_of, shown, time_of
from agentspec.analysis.logs.formats.answers import ANSWERS, failed, read_answers, read_prompt
from agentspec.analysis.logs.formats.blocks import Part
from agentspec.analysis.logs.formats.messages import ASSISTANT_HEADER, Message, is_openai

Record = Mapping[str, Any]
Reader = Callable[[Record, str, Account], Iterator[LoggedCall]]
_SAMPLED_MESSAGES = 2
"""The number of first messages that identify a conversation without a name."""


def read_sglang(record: Record, session: str, account: Account) -> Iterator[LoggedCall]:
    if record["event"] != "request.finished":
        raise NoAnswerError(f"an event {shown(str(record['event']))}; the answer is in request.finished")
    out = record.get("out")
    if not isinstance(out, dict) or not out.keys() & {"text", "output_ids"}:
        raise NoAnswerError("an answer whose text SGLang did not log: log with --log-requests-level 3")
    yield from read_pair({**record, "out": out}, session, account)


def read_pair(record: Record, session: str, account: Account) -> Iterator[LoggedCall]:
    answer = next((record[key] for key in ANSWERS if record.get(key) is not None), None)
    if answer is None:
        if failed(record):
            raise NoAnswerError("a failed request")
        if record.keys() & ANSWERS:
            raise NoAnswerError("an answer without content")
        raise BadRecordError(f"an answer must be in one of the fields {', '.join(ANSWERS)}")
    prompt = read_prompt(record, account)
    try:
        answers = read_answers(answer, account)
    except BadRecordError:
        if failed(record):
            raise NoAnswerError("a failed request") from None
        raise
    labels = labels_of(record)
    messages = tuple(message.pair for message in prompt.messages if message.read or message.role == "assistant")
    if not labels.session:
        labels = replace(labels, session=_conversation(messages) or session)
    header = ASSISTANT_HEADER if messages else f"{labels.role or 'output'}\n"
    values = [message.value or {} for message in prompt.messages]
    is_chat = len(values) == len(messages) and all(map(is_openai, values)) and _has_messages(record, prompt.request)
    empty = True
    for found in answers:
        message = found.message
        if (prompt.request or record).get("echo") is True and messages and message.written.startswith(messages[-1][1]):
            # The completions API repeats the prompt before what the model wrote.
            message = Message("assistant", (Part("text", message.written[len(messages[-1][1]) :]),))
        if not message.written and not found.tokens:
            continue
        empty = False
        # Some programs add the answer to the messages before they log them.
        is_there = bool(messages) and messages[-1] == message.pair
        yield LoggedCall(
            messages[:-1] if is_there else messages,
            header,
            message.written,
            labels,
            tokens=found.tokens,
            message=message.value,
            request=prompt.request or record,
            prompt_values=values[: len(values) - is_there] if is_chat else (),
            began=time_of(record),
        )
    if empty:
        raise NoAnswerError("a failed request" if failed(record) else "an answer without text")


def _has_messages(record: Record, request: Mapping[str, Any] | None) -> bool:
    return isinstance(record.get("messages"), list) or isinstance((request or {}).get("messages"), list)


def _conversation(messages: Sequence[tuple[str, str]]) -> str:
    """A name for conversations with the same beginning: requests that continue each other are one session."""
    first = [text for role, text in messages if role != "system"][:1] or [text for _, text in messages]
    if not first:
        return ""
    text = "\0".join([*(text for role, text in messages[:_SAMPLED_MESSAGES] if role == "system"), *first[:1]])
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def span_reader(pair: Callable[[Record, Account], dict[str, Any]]) -> Reader:
    def read(record: Record, session: str, account: Account) -> Iterator[LoggedCall]:
        yield from read_pair(pair(record, account), session, account)

    return read
