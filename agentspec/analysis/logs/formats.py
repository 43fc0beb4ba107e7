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

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from agentspec.analysis.logs import fields
from agentspec.analysis.logs.account import Account, Tally
from agentspec.analysis.logs.answers import (
    ANSWERS,
    PROMPTS,
    REQUESTS,
    SYSTEMS,
    failed,
    read_answers,
    read_prompt,
    unwrapped,
)
from agentspec.analysis.logs.calls import (
    LABEL_FIELDS,
    BadRecordError,
    Labels,
    LoggedCall,
    NoAnswerError,
    from_text,
    labels_of,
    shown,
    time_of,
)
from agentspec.analysis.logs.messages import (
    ASSISTANT_HEADER,
    REDACTED,
    Message,
    Part,
    chat_calls,
    is_message,
    is_openai,
    read_message,
    read_messages,
)
from agentspec.analysis.logs.sessions import event_messages, is_event, part_of
from agentspec.analysis.logs.spans import LANGFUSE_TYPES, langfuse_pair, langsmith_pair, opentelemetry_pair

Record = Mapping[str, Any]
Reader = Callable[[Record, str, Account], Iterator[LoggedCall]]
_SAMPLED_MESSAGES = 2
"""The number of first messages that identify a conversation without a name."""
_CHATS = ("messages", "conversations", "conversation", "traj", "trajectory", "dialogue", "dialog")
"""The fields that may hold the messages of a chat."""
_HOLDERS = (
    "observations", "resourceSpans", "resource_spans", "scopeSpans", "scope_spans", "spans", "simulations", "child_runs",
    "data", "records", "rows", "items", "results", "runs", "traces",
)  # fmt: skip
"""Fields of objects that hold a list of records."""
_FIRST_HOLDERS = _HOLDERS[:8]
"""Those whose records come first, even if the object around them has a known format too."""
_WRAPPERS = (
    "row",
    "jsonPayload",
    "_source",
    "message",
    "msg",
    "log",
    "line",
    "payload",
    "record",
    "json",
    "textPayload",
)
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
        f"no known format matches a record with the fields {', '.join(sorted(shown(str(k)) for k in list(record)[:6])) or '(none)'}"
    )


def calls_of(record: Any, fallback_session: str, account: Account | None = None) -> tuple[str, list[LoggedCall]]:
    """The format of a record, and its calls.

    Args:
        record: Parsed JSON.
        fallback_session: The session's name if the record has none.
        account: Takes what was understood.

    Raises:
        NoAnswerError: It is known why the record has no answer of a model.
        BadRecordError: The record has no known format, or lacks a part.
        ValueError: One of its messages is not a message.
    """
    account = Account() if account is None else account
    form = format_of(record)
    account.check("record", form.name, record, form.known)
    redacted = account.left_out.get(("output", REDACTED), Tally()).count
    calls = list(form.read(record, fallback_session, account))
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


def _sglang(record: Record, session: str, account: Account) -> Iterator[LoggedCall]:
    if record["event"] != "request.finished":
        raise NoAnswerError(f"an event {shown(str(record['event']))}; the answer is in request.finished")
    out = record.get("out")
    if not isinstance(out, dict) or not out.keys() & {"text", "output_ids"}:
        raise NoAnswerError("an answer whose text SGLang did not log: log with --log-requests-level 3")
    yield from _pair({**record, "out": out}, session, account)


def _pair(record: Record, session: str, account: Account) -> Iterator[LoggedCall]:
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


def _span(pair: Callable[[Record, Account], dict[str, Any]]) -> Reader:
    def read(record: Record, session: str, account: Account) -> Iterator[LoggedCall]:
        yield from _pair(pair(record, account), session, account)

    return read


def _chat(record: Record, session: str, account: Account) -> Iterator[LoggedCall]:
    labels = _trace_labels(record, session)
    values = next((unwrapped(record[key]) for key in _CHATS if record.get(key)), None)
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


def _sharegpt(record: Record, session: str, account: Account) -> Iterator[LoggedCall]:
    identity = record.get("id")
    if isinstance(identity, str | int) and not labels_of(record).session:
        record = {**record, "session": str(identity)}
    yield from _chat(record, session, account)


def _tau_bench(record: Record, session: str, account: Account) -> Iterator[LoggedCall]:
    names = [str(record[key]) for key in ("task_id", "trial") if isinstance(record.get(key), str | int)]
    yield from _chat(record, "/".join([session, *names]), account)


def _staged(record: Record, session: str, account: Account) -> Iterator[LoggedCall]:
    values = record["calls"]
    if not isinstance(values, list) or not all(isinstance(value, dict) for value in values):
        raise BadRecordError("calls must be a list of objects")
    labels = _trace_labels(record, session)
    for position, value in enumerate(values):
        stage, output = value.get("stage"), value.get("output")
        if not isinstance(stage, str) or not isinstance(output, str):
            raise BadRecordError("a call has no stage or no output")
        account.check("record", "staged.calls", value, _STAGED_CALL)
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
            position,
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
        labels,
        session="/".join([labels.session, *names]),
        task=str(task) if isinstance(task, str | int) else "",
    )


def _swe_agent(record: Record, session: str, account: Account) -> Iterator[LoggedCall]:
    attempts = record.get("attempts")
    if isinstance(attempts, list) and attempts:
        # The record's other fields repeat the best attempt.
        if not all(isinstance(attempt, dict) for attempt in attempts):
            raise BadRecordError("attempts must be a list of objects")
        for number, attempt in enumerate(attempts, 1):
            yield from _swe_agent({**attempt, "attempts": None}, f"{session}/{number}", account)
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
        account.check("record", "swe-agent.trajectory", step, _SWE_AGENT_STEP)
        response, observation = step.get("response"), step.get("observation")
        if isinstance(response, str):
            account.note_read("output", len(response))
            messages.append(Message("assistant", (Part("text", response),)))
        if isinstance(observation, str):
            account.note_read("prompt", len(observation))
            messages.append(Message("user", (Part("text", observation),)))
    yield from chat_calls(messages, labels, account)


def _openhands_output(record: Record, session: str, account: Account) -> Iterator[LoggedCall]:
    # Older releases kept each action together with its observation.
    events = [event for one in record["history"] for event in (one if isinstance(one, list) else [one])]
    labels = labels_of(record, session=session)
    messages = event_messages(events, account)
    yield from chat_calls(messages, labels, account)


def _tokens(record: Record, session: str, account: Account) -> Iterator[LoggedCall]:
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


def _program_log(record: Record, session: str, account: Account) -> Iterator[LoggedCall]:
    raise NoAnswerError("a line of a program's log without a call")


def _known(*lists: Sequence[str] | frozenset[str] | str) -> frozenset[str]:
    """The names of several lists, and those that any record may have."""
    parts = [fields.names(one) if isinstance(one, str) else frozenset(one) for one in lists]
    return _COMMON.union(*parts)


# Fields of any record: who called, when, which model, what it cost, how it ended.
_COMMON = LABEL_FIELDS | fields.names(
    """
    id uuid name model model_name model_id version type object status error error_str error_message exception usage cost
    latency latency_ms duration duration_ms seconds tokens_used num_tokens input_tokens output_tokens total_tokens
    prompt_tokens completion_tokens finish_reason stop_reason end_time endTime ended completed_at updated_at updatedAt
    request_id requestId call_id run task run_id task_id reward score seed temperature top_p max_tokens stream tags
    language source split index idx environment level provider system_fingerprint service_tier host pid logger
    num_turns turn success resolved passed exit exit_status category
    """
)
_PAIR = _known(ANSWERS, REQUESTS, PROMPTS, SYSTEMS, "body custom_id").union(fields.ANSWER_IGNORED) | {
    "tools",
    "functions",
    "kwargs",
    "raw_response",
}  # fmt: skip
_LITELLM = fields.names(
    """
    call_type trace_id saved_cache_cost response_cost response_cost_failure_debug_info status_fields custom_llm_provider
    completionStartTime response_time model_map_information model_group api_base end_user requester_ip_address
    requester_custom_headers cache_hit cache_key request_tags hidden_params model_parameters guardrail_information
    standard_built_in_tools_params cost_breakdown error_information litellm_call_id litellm_params spend
    proxy_server_request api_key team_id organization_id session_id user_agent mcp_namespaced_tool_name agent_id
    request_duration_ms optional_params additional_args log_event_type original_response stream_options
    """
)
_OPENHANDS = fields.names(
    """
    args context_window latency_sec fncall_messages fncall_response usage_summary accumulated_cost llm_metrics log_id
    """
)
_HELICONE = fields.names(
    """
    request_created_at response_created_at response_id response_status request_path request_properties properties
    request_user_id response_delay_ms prompt_id feedback_rating country_code scores helicone_user provider_request_id
    """
)
_STAGED_CALL = _known("stage output messages began seconds attempt candidate finish")
_SWE_AGENT_STEP = fields.names(
    """
    response observation action thought state query messages extra_info execution_time cost info llm_latency
    tool_calls tool_call_ids thinking_blocks reasoning
    """
)
_SWE = _known(
    "history trajectory info attempts replay_config environment trajectory_format instance_id run_id metadata best_attempt",
    "review_results",
)
_LOG_LEVELS = fields.names("level levelname log_level severity lvl loglevel")
_LOG_TEXTS = fields.names("message msg event log textPayload")
_DATASET = fields.names(
    """
    info trajectory_format tools patch model_patch git_patch generated_patch eval_logs eval_result target resolved
    traj_id instance_id repo test_result report instruction problem_statement base_commit dataset
    conversation_hash conversation_id turn redacted toxic openai_moderation detailed_moderation hashed_ip header state
    country system system_prompt tstamp judge winner exit traj_reward agent_cost user_cost termination_reason
    reward_info start_time end_time trial task_id id seed hints review chat_template_kwargs reference ground_truth
    gold gold_sql sql db_id evaluation difficulty
    """
)


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
    return bool(record.keys() & _LOG_LEVELS and record.keys() & _LOG_TEXTS)


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
    found = next((unwrapped(record[key]) for key in _CHATS if key in record), None)
    return isinstance(found, list) and bool(found) and is_message(found[0])


FORMATS = (
    Format("sglang", _is_sglang, _sglang, _known("event rid obj out")),
    Format("opentelemetry", _is_span, _span(opentelemetry_pair), _known(
        """
        attributes events context trace_id traceId span_id spanId parent_id parentSpanId parent_span_id kind links resource
        scope startTimeUnixNano endTimeUnixNano start_time_unix_nano end_time_unix_nano flags traceState trace_state
        droppedAttributesCount droppedEventsCount droppedLinksCount instrumentation_scope status_code status_message
        parentId span_kind
        """
    )),
    Format("langsmith", lambda record: "run_type" in record, _span(langsmith_pair), _known(
        """
        run_type inputs outputs extra serialized events parent_run_id parent_run_ids child_run_ids direct_child_run_ids
        dotted_order execution_order feedback_stats reference_example_id session_id trace_id app_path manifest_id
        prompt_cost completion_cost total_cost first_token_time in_dataset inputs_preview outputs_preview
        attachments s3_urls inputs_s3_urls outputs_s3_urls share_token last_queued_at price_model_id
        """
    )),
    Format("langfuse", _is_langfuse, _span(langfuse_pair), _known(
        """
        input output traceId trace_id parentObservationId completionStartTime modelParameters usageDetails costDetails
        promptId promptName promptVersion projectId statusMessage calculatedTotalCost calculatedInputCost
        calculatedOutputCost inputPrice outputPrice totalPrice timeToFirstToken unit inputUsage outputUsage totalUsage
        internalModelId modelId toolDefinitions toolCalls toolCallNames providedUsageDetails providedCostDetails
        """
    )),
    Format("sharegpt", lambda record: "conversations" in record, _sharegpt, _known("conversations system", _DATASET)),
    Format("openhands-output", _is_openhands_output, _openhands_output, _known(
        "history metrics llm_completions instance", _DATASET
    )),
    Format("openhands", _is_openhands, _pair, _PAIR | _OPENHANDS),
    Format("openai", _is_chat_with_answer, _pair, _PAIR | _LITELLM | _HELICONE | _OPENHANDS),
    Format("mini-swe-agent", _is_mini_swe_agent, _chat, _known("messages", _DATASET)),
    Format("tau-bench", lambda record: "traj" in record, _tau_bench, _known("traj info", _DATASET)),
    Format("chat", _is_chat, _chat, _known(_CHATS, _DATASET, _LITELLM)),
    Format("swe-agent", lambda record: bool(record.keys() & {"history", "trajectory", "attempts"}), _swe_agent, _SWE),
    Format("staged", lambda record: "calls" in record, _staged, _known("calls", _DATASET)),
    Format("tokens", lambda record: "tokens" in record, _tokens, _known(
        "tokens num_prompt_tail namespace output_id"
    )),
    Format(
        "openai",
        lambda record: bool(record.keys() & {"prompt", *REQUESTS, *ANSWERS}),
        _pair,
        _PAIR | _LITELLM | _HELICONE | _OPENHANDS,
    ),
    Format("log", _is_program_log, _program_log, _known(_LOG_LEVELS, _LOG_TEXTS)),
)  # fmt: skip
"""Every format, the first that matches is taken."""
