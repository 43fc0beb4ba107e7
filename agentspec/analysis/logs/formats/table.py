"""Formats of recorded calls, recognized by the fields of a record.

sglang      {"event", "obj", "out"}, as --log-requests-format json writes
openai      {"messages", "completion" | "response" | "choices"}, {"request", "response"}, {"prompt", "completion"},
            of the APIs of OpenAI (chat, completions, Responses), Anthropic, Gemini, Bedrock and SGLang, streamed or not
openhands   the same with "args" or "cost", one file per call, in a folder named llm_completions
openhands-output    {"history": events}
langfuse, langsmith, opentelemetry      spans, of which those of model calls are read
sharegpt    {"conversations": [{"from", "value"}, ...], "system"?}
swe-agent   {"history" | "trajectory", "info"}, or several of them as {"attempts"}
mini-swe-agent  {"messages", "info" | "trajectory_format"}
tau-bench   {"traj", "task_id"}
chat        {"messages"} or {"trajectory"}, as a list or as JSON in a string: each assistant message is an output
staged      {"calls": [{"stage", "output", "messages"?}, ...]}
tokens      {"tokens", "num_prompt_tail"?}, as `agentspec store export` writes

A format is a row of FORMATS: how a record is recognized, who reads it, and which fields are known. What a field of a
message or of an answer means is in fields.py. Records that are only a part of a call are in sessions.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from agentspec.analysis.logs.account import Account, Tally, type_name
from agentspec.analysis.logs.calls import BadRecordError, LoggedCall, NoAnswerError, from_text
from agentspec.analysis.logs.formats.answers import ANSWERS, REQUESTS, failed, unwrapped
from agentspec.analysis.logs.formats.events import is_event
from agentspec.analysis.logs.formats.messages import REDACTED, is_message
from agentspec.analysis.logs.formats.pairs import Reader, Record, read_pair, read_sglang, span_reader
from agentspec.analysis.logs.formats.record_fields import (
    DATASET,
    HELICONE,
    LITELLM,
    LOG_LEVELS,
    LOG_TEXTS,
    OPENHANDS,
    PAIR,
    SWE,
    known,
)
from agentspec.analysis.logs.formats.sessions import part_of
from agentspec.analysis.logs.formats.spans import LANGFUSE_TYPES, langfuse_pair, langsmith_pair, opentelemetry_pair
from agentspec.analysis.logs.formats.trajectories import (
    CHATS,
    read_chat,
    read_openhands_output,
    read_sharegpt,
    read_staged,
    read_swe_agent,
    read_tau_bench,
    read_tokens,
)

_HOLDERS = (
    "observations", "resourceSpans", "resource_spans", "scopeSpans", "scope_spans", "spans", "simulations", "child_runs",
    "data", "records", "rows", "items", "results", "runs", "traces",
)  # fmt: skip
"""Fields of objects that hold a list of records."""
_FIRST_HOLDERS = _HOLDERS[:8]
"""Those whose records come first, even if the object around them has a known format too."""
_WRAPPERS = (
    "row", "jsonPayload", "_source", "message", "msg", "log", "line", "payload", "record", "json", "textPayload",
)  # fmt: skip
"""Fields of objects that hold one record, perhaps as JSON in a string, as programs that collect logs write them."""


@dataclass(frozen=True, slots=True)
class Format:
    """A format of records."""

    name: str
    matches: Callable[[Record], bool]
    read: Reader
    """Yields the calls of a record. Raises NoAnswerError if it is known why it has none, and ValueError if it is
    malformed."""
    known: frozenset[str]
    """The fields that are read, and those that are ignored because they have no text of a prompt or an answer."""


def format_of(record: Any) -> Format:
    """The format of a record; raises BadRecordError if none fits."""
    if not isinstance(record, dict):
        raise BadRecordError(f"a record must be an object, got {type(record).__name__}")
    for form in FORMATS:
        if form.matches(record):
            return form
    raise BadRecordError(
        f"no known format matches a record with the fields {', '.join(sorted(type_name(k) for k in list(record)[:6])) or '(none)'}"
    )


def calls_of(record: Any, fallback_session: str, account: Account | None = None) -> tuple[str, list[LoggedCall]]:
    """The format of a parsed record, and its calls.

    Raises:
        NoAnswerError: It is known why the record has no answer of a model.
        BadRecordError: The record has no known format, or lacks a part.
        ValueError: One of its messages is not a message.
    """
    account = Account() if account is None else account
    form = format_of(record)
    account.check("record", form.name, record, form.known)
    redacted = account.left_out.get(("output", REDACTED), Tally()).count
    try:
        calls = list(form.read(record, fallback_session, account))
    except (TypeError, KeyError, AttributeError) as error:
        raise BadRecordError(f"a record of the format {form.name} is malformed ({type(error).__name__})") from error
    if not calls and account.left_out.get(("output", REDACTED), Tally()).count > redacted:
        raise NoAnswerError("an answer that the log has redacted")
    if not calls and record.keys() & ANSWERS:
        raise NoAnswerError("an answer without content")
    if not calls:
        raise BadRecordError(f"a record of the format {form.name} has no outputs")
    return form.name, calls


def records_in(value: Any, where: str) -> Iterator[tuple[str, Any]]:
    """(where, record) of the records that a value holds: the elements of a list, or of the lists of an object that is no
    record itself."""
    if isinstance(value, list) and value:
        for number, inner in enumerate(value, 1):
            yield from records_in(inner, f"{where}, element {number}")
        return
    if not isinstance(value, dict):
        yield where, value
        return
    # A line of a program's log may hold a record.
    is_known = part_of(value) is not None or any(form.matches(value) for form in FORMATS if form.name != "log")
    for key in _FIRST_HOLDERS if is_known else _HOLDERS:
        held = value.get(key)
        if isinstance(held, list) and held and all(isinstance(inner, dict) for inner in held):
            if key == "child_runs":
                yield where, {name: inner for name, inner in value.items() if name != key}
            for number, inner in enumerate(held, 1):
                yield from records_in(inner, f"{where}, {key} {number}")
            return
    if not is_known:
        for key in _WRAPPERS:
            inner = from_text(value.get(key))
            if isinstance(inner, dict):
                yield from records_in(inner, where)
                return
    yield where, value


def _program_log(record: Record, session: str, account: Account) -> Iterator[LoggedCall]:
    raise NoAnswerError("a line of a program's log without a call")


def _is_sglang(record: Record) -> bool:
    return isinstance(record.get("event"), str) and "rid" in record and bool(record.keys() & {"obj", "out"})


def _is_langfuse(record: Record) -> bool:
    kind = record.get("type")
    return isinstance(kind, str) and kind.upper() in LANGFUSE_TYPES and bool(
        record.keys() & {"input", "output", "traceId", "trace_id"}
    )  # fmt: skip


def _is_span(record: Record) -> bool:
    return isinstance(record.get("attributes"), dict | list) and bool(
        record.keys() & {"name", "traceId", "trace_id", "spanId", "span_id", "context", "events"}
    )


def _is_openhands_output(record: Record) -> bool:
    history = record.get("history")
    first = history[0] if isinstance(history, list) and history else None
    first = first[0] if isinstance(first, list) and first else first
    return isinstance(first, dict) and is_event(first)


def _is_program_log(record: Record) -> bool:
    # Programs that collect logs write no level, and old sessions of Codex have lines about their state.
    is_collected = record.get("stream") in ("stdout", "stderr") or "ingestionTime" in record
    has_text = bool(record.keys() & LOG_TEXTS)
    return has_text and (is_collected or bool(record.keys() & LOG_LEVELS)) or record.keys() == {"record_type"}


def _has_answer(record: Record) -> bool:
    return any(record.get(key) is not None for key in ANSWERS)


def _is_openhands(record: Record) -> bool:
    return (
        "messages" in record
        and _has_answer(record)
        and bool(record.keys() & {"args", "cost"})
        and "status" not in record
    )


def _is_chat_with_answer(record: Record) -> bool:
    has_place = bool(record.keys() & ANSWERS)
    return "messages" in record and (_has_answer(record) or has_place and failed(record))


def _is_mini_swe_agent(record: Record) -> bool:
    return "messages" in record and ("trajectory_format" in record or isinstance(record.get("info"), dict))


def _is_chat(record: Record) -> bool:
    if "messages" in record:
        return True
    # Data sets name the list in several ways; SWE-agent's steps are no messages.
    found = next((unwrapped(record[key]) for key in CHATS if key in record), None)
    return isinstance(found, list) and bool(found) and is_message(found[0])


FORMATS = (
    Format("sglang", _is_sglang, read_sglang, known("event rid obj out")),
    Format("opentelemetry", _is_span, span_reader(opentelemetry_pair), known(
        """
        attributes events context trace_id traceId span_id spanId parent_id parentSpanId parent_span_id kind links resource
        scope startTimeUnixNano endTimeUnixNano start_time_unix_nano end_time_unix_nano flags traceState trace_state
        droppedAttributesCount droppedEventsCount droppedLinksCount instrumentation_scope status_code status_message
        parentId span_kind
        """
    )),
    Format("langsmith", lambda record: "run_type" in record, span_reader(langsmith_pair), known(
        """
        run_type inputs outputs extra serialized events parent_run_id parent_run_ids child_run_ids direct_child_run_ids
        dotted_order execution_order feedback_stats reference_example_id session_id trace_id app_path manifest_id
        prompt_cost completion_cost total_cost first_token_time in_dataset inputs_preview outputs_preview
        attachments s3_urls inputs_s3_urls outputs_s3_urls share_token last_queued_at price_model_id
        """
    )),
    Format("langfuse", _is_langfuse, span_reader(langfuse_pair), known(
        """
        input output traceId trace_id parentObservationId completionStartTime modelParameters usageDetails costDetails
        promptId promptName promptVersion projectId statusMessage calculatedTotalCost calculatedInputCost
        calculatedOutputCost inputPrice outputPrice totalPrice timeToFirstToken unit inputUsage outputUsage totalUsage
        internalModelId modelId toolDefinitions toolCalls toolCallNames providedUsageDetails providedCostDetails
        """
    )),
    Format("sharegpt", lambda record: "conversations" in record, read_sharegpt, known("conversations system", DATASET)),
    Format("openhands-output", _is_openhands_output, read_openhands_output, known(
        "history metrics llm_completions instance", DATASET
    )),
    Format("openhands", _is_openhands, read_pair, PAIR | OPENHANDS),
    Format("openai", _is_chat_with_answer, read_pair, PAIR | LITELLM | HELICONE | OPENHANDS),
    Format("mini-swe-agent", _is_mini_swe_agent, read_chat, known("messages", DATASET)),
    Format("tau-bench", lambda record: "traj" in record, read_tau_bench, known("traj info", DATASET)),
    Format("chat", _is_chat, read_chat, known(CHATS, DATASET, LITELLM)),
    Format("swe-agent", lambda record: bool(record.keys() & {"history", "trajectory", "attempts"}), read_swe_agent, SWE),
    Format("staged", lambda record: "calls" in record, read_staged, known("calls", DATASET)),
    Format("tokens", lambda record: "tokens" in record, read_tokens, known(
        "tokens num_prompt_tail namespace output_id"
    )),
    Format(
        "openai",
        lambda record: bool(record.keys() & {"prompt", *REQUESTS, *ANSWERS}),
        read_pair,
        PAIR | LITELLM | HELICONE | OPENHANDS,
    ),
    Format("log", _is_program_log, _program_log, known(LOG_LEVELS, LOG_TEXTS, "record_type ingestionTime kubernetes")),
)  # fmt: skip
"""Every format, the first that matches is taken."""
