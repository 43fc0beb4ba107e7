"""Records that hold a whole conversation or several calls: chats, trajectories of agents, stages, tokens."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from agentspec.analysis.logs.account import Account
from agentspec.analysis.logs.calls import BadRecordError, Labels, LoggedCall, NoAnswerError, labels_of, shown
from agentspec.analysis.logs.formats.answers import failed, unwrapped
from agentspec.analysis.logs.formats.blocks import Part
from agentspec.analysis.logs.formats.events import event_messages
from agentspec.analysis.logs.formats.messages import ASSISTANT_HEADER, Message, chat_calls, read_message, read_messages
from agentspec.analysis.logs.formats.record_fields import STAGED_CALL, SWE_AGENT_STEP

Record = Mapping[str, Any]

CHATS = ("messages", "conversations", "conversation", "traj", "trajectory", "dialogue", "dialog")
"""The fields that may hold the messages of a chat."""


def read_chat(record: Record, session: str, account: Account) -> Iterator[LoggedCall]:
    labels = _trace_labels(record, session)
    values = next((unwrapped(record[key]) for key in CHATS if record.get(key)), None)
    messages = read_messages(values, account, prompt=False)
    system = record.get("system") or record.get("system_prompt")
    if isinstance(system, str | list):
        messages.insert(0, read_message({"role": "system", "content": system}, account, "prompt"))
    greeting = values[0] if isinstance(values, list) and values and isinstance(values[0], dict) else {}
    if messages and messages[0].role == "assistant" and greeting.get("turn_idx") == 0 and not greeting.get("usage"):
        # tau2-bench opens each conversation with the same words.
        account.note_left_out("output", "greeting that no model wrote")
        skipped = [0]
    else:
        skipped = []
    if failed(record) and not any(message.role == "assistant" for message in messages):
        raise NoAnswerError("a failed request")
    times = [value.get("ts", value.get("timestamp")) for value in values or () if isinstance(value, dict)]
    if not labels.day and times:
        labels = replace(labels, day=labels_of({"ts": times[0]}).day)
    yield from chat_calls(messages, labels, account, skipped)


def read_sharegpt(record: Record, session: str, account: Account) -> Iterator[LoggedCall]:
    identity = record.get("id")
    if isinstance(identity, str | int) and not labels_of(record).session:
        record = {**record, "session": str(identity)}
    yield from read_chat(record, session, account)


def read_tau_bench(record: Record, session: str, account: Account) -> Iterator[LoggedCall]:
    names = [str(record[key]) for key in ("task_id", "trial") if isinstance(record.get(key), str | int)]
    yield from read_chat(record, "/".join([session, *names]), account)


def read_staged(record: Record, session: str, account: Account) -> Iterator[LoggedCall]:
    values = record["calls"]
    if not isinstance(values, list) or not all(isinstance(value, dict) for value in values):
        raise BadRecordError("calls must be a list of objects")
    labels = _trace_labels(record, session)
    for value in values:
        stage, output = value.get("stage"), value.get("output")
        if not isinstance(stage, str) or not isinstance(output, str):
            raise BadRecordError("a call has no stage or no output")
        account.check("record", "staged.calls", value, STAGED_CALL)
        account.note_read("output", len(output))
        read = read_messages(value.get("messages") or [], account)
        messages = tuple(message.pair for message in read)
        header = ASSISTANT_HEADER if messages else f"{stage}\n"
        began, seconds = value.get("began"), value.get("seconds")
        is_timed = isinstance(began, int | float) and isinstance(seconds, int | float)
        yield LoggedCall(
            messages,
            header,
            output,
            replace(labels, role=shown(stage)),
            prompt_values=value.get("messages") or (),
            began=began if is_timed else None,
            ended=began + seconds if is_timed else None,
        )


def _trace_labels(record: Record, session: str) -> Labels:
    """The labels of a trace, whose sessions are unique only within a task and a run."""
    labels = labels_of(record, session=session)
    names = [str(record[key]) for key in ("task", "run") if isinstance(record.get(key), str | int)]
    task = record.get("task")
    return replace(
        labels, session="/".join([labels.session, *names]), task=str(task) if isinstance(task, str | int) else ""
    )


def read_swe_agent(record: Record, session: str, account: Account) -> Iterator[LoggedCall]:
    attempts = record.get("attempts")
    if isinstance(attempts, list) and attempts:
        # The record's other fields repeat the best attempt.
        if not all(isinstance(attempt, dict) for attempt in attempts):
            raise BadRecordError("attempts must be a list of objects")
        for number, attempt in enumerate(attempts, 1):
            yield from read_swe_agent({**attempt, "attempts": None}, f"{session}/{number}", account)
        return
    labels = labels_of(record, session=session)
    history = record.get("history")
    if isinstance(history, list) and history:
        demonstrations = [i for i, value in enumerate(history) if isinstance(value, dict) and value.get("is_demo")]
        # Thought and action repeat what the model wrote in another form.
        values = [
            {key: inner for key, inner in value.items() if key not in ("thought", "action")}
            if isinstance(value, dict) else value
            for value in history
        ]  # fmt: skip
        yield from chat_calls(read_messages(values, account, prompt=False), labels, account, demonstrations)
        return
    steps = record.get("trajectory")
    if not isinstance(steps, list) or not all(isinstance(step, dict) for step in steps):
        raise BadRecordError("a trajectory must be a list of steps")
    # An empty prompt, because otherwise the first response would have none.
    messages = [Message("user", ())]
    for step in steps:
        account.check("record", "swe-agent.trajectory", step, SWE_AGENT_STEP)
        response, observation = step.get("response"), step.get("observation")
        if isinstance(response, str):
            account.note_read("output", len(response))
            messages.append(Message("assistant", (Part("text", response),)))
        if isinstance(observation, str):
            account.note_read("prompt", len(observation))
            messages.append(Message("user", (Part("text", observation),)))
    yield from chat_calls(messages, labels, account)


def read_openhands_output(record: Record, session: str, account: Account) -> Iterator[LoggedCall]:
    # Older releases kept each action together with its observation.
    events = [event for one in record["history"] for event in (one if isinstance(one, list) else [one])]
    labels = labels_of(record, session=session)
    messages = event_messages(events, account)
    yield from chat_calls(messages, labels, account)


def read_tokens(record: Record, session: str, account: Account) -> Iterator[LoggedCall]:
    tokens, tail = record["tokens"], record.get("num_prompt_tail", 0)
    if not isinstance(tokens, list) or not all(isinstance(t, int) and not isinstance(t, bool) for t in tokens):
        raise BadRecordError("tokens must be a list of token ids")
    if not isinstance(tail, int) or not 0 <= tail < max(len(tokens), 1):
        raise BadRecordError("num_prompt_tail must leave an output")
    labels = labels_of(record, session=str(record.get("request_id") or session))
    if not labels.tenant and isinstance(record.get("namespace"), str):
        labels = replace(labels, tenant=shown(record["namespace"]))
    if tokens:
        yield LoggedCall((), "", "", labels, tokens=tuple(tokens[tail:]))
