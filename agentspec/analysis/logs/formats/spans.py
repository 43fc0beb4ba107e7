"""Spans of tracing programs (OpenTelemetry, OpenInference, Langfuse, LangSmith) as records of a request and its answer.

A trace has many kinds of spans, and only those of model calls are outputs: an agent's span repeats them, and a tool's
answer is no model's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from agentspec.analysis.logs.account import Account, type_name
from agentspec.analysis.logs.calls import NoAnswerError, from_text
from agentspec.analysis.logs.formats import fields
from agentspec.analysis.logs.formats.messages import is_message

LANGFUSE_TYPES = fields.names(
    "GENERATION SPAN EVENT AGENT TOOL CHAIN RETRIEVER EVALUATOR EMBEDDING GUARDRAIL GENERAL"
)  # fmt: skip
_SPANS = ("spanId", "span_id")
_PARENTS = ("parentSpanId", "parent_span_id", "parent_id", "parentId", "parentObservationId", "parent_run_id")
_MODEL_OPERATIONS = ("chat", "text_completion", "generate_content", "completion", "message")
_GEN_AI_KNOWN = fields.names(
    """
    system provider operation request response usage input output prompt completion system_instructions tool agent
    conversation token choice message openai data_source evaluation orchestrator workflow span framework cost
    """
)


def langfuse_pair(record: Mapping[str, Any], account: Account) -> dict[str, Any]:
    """An observation of Langfuse. Raises NoAnswerError if it is no model call or has no answer."""
    kind = str(record.get("type", "")).upper()
    if kind != "GENERATION":
        raise NoAnswerError(f"a span of the type {type_name(kind)}, which is no model call")
    return _pair(record, record.get("input"), record.get("output"), account)


def langsmith_pair(record: Mapping[str, Any], account: Account) -> dict[str, Any]:
    """A run of LangSmith. Raises NoAnswerError if it is no model call or has no answer."""
    kind = record.get("run_type")
    if kind != "llm":
        raise NoAnswerError(f"a run of the type {type_name(kind)}, which is no model call")
    return _pair(record, record.get("inputs"), record.get("outputs"), account)


def opentelemetry_pair(record: Mapping[str, Any], account: Account) -> dict[str, Any]:
    """A span of OpenTelemetry, with attributes of its conventions for models, or of OpenInference. Raises NoAnswerError
    if it is no model call, or its texts were not recorded."""
    tree = _tree(dict(_attributes(record.get("attributes"))))
    ai, llm = _object(tree.get("gen_ai")), _object(tree.get("llm"))
    span = _object(_object(tree.get("openinference")).get("span")).get("kind")
    operation = _object(ai.get("operation")).get("name")
    if operation is not None and operation not in _MODEL_OPERATIONS:
        raise NoAnswerError(f"a span of the operation {type_name(operation)}, which is no model call")
    if span is not None and span != "LLM":
        raise NoAnswerError(f"a span of the kind {type_name(span)}, which is no model call")
    inputs, outputs = [*_event_messages(record, "prompt")], [*_event_messages(record, "output")]
    asked = _first(_object(ai.get("input")).get("messages"), ai.get("prompt"), llm.get("input_messages")) or inputs
    answer = _first(_object(ai.get("output")).get("messages"), ai.get("completion"), llm.get("output_messages"))
    if not ai and not llm and not outputs:
        raise NoAnswerError("a span without attributes of a model call")
    for key in ai.keys() - _GEN_AI_KNOWN:
        account.note_unknown("record", f"opentelemetry.gen_ai.{type_name(key)}", ai[key])
    answer = answer or outputs
    if not answer:
        raise NoAnswerError("a span of a model call without its messages, which its program did not record")
    made = _pair(record, _listed(asked), _listed(answer), account)
    system = ai.get("system_instructions")
    if system:
        made["system"] = from_text(system)
    return made


def _pair(record: Mapping[str, Any], asked: Any, answer: Any, account: Account) -> dict[str, Any]:
    if answer in (None, "", {}, []):
        raise NoAnswerError("a span of a model call without an answer")
    # A framework and the client that it calls may both be traced.
    context = _object(record.get("context"))
    trace = _first(record.get("traceId"), record.get("trace_id"), context.get("trace_id"))
    own = _first(*map(record.get, _SPANS), context.get("span_id"), record.get("id"))
    if account.note_span(trace, own, _first(*map(record.get, _PARENTS))):
        raise NoAnswerError("a span of a model call in another one, which has its answer too")
    labels = {
        key: record[key]
        for key in ("sessionId", "traceId", "trace_id", "startTime", "start_time", "metadata", "userId")
        if record.get(key) is not None
    }
    return {**labels, "input": asked, "response": answer}


def _attributes(value: Any) -> Iterator[tuple[str, Any]]:
    """Attributes as an object, or as the list of keys and typed values that the protocol has."""
    if isinstance(value, dict):
        yield from ((str(key), inner) for key, inner in value.items())
    elif isinstance(value, list):
        for pair in value:
            if isinstance(pair, dict) and isinstance(pair.get("key"), str):
                yield pair["key"], _typed_value(pair.get("value"))


def _typed_value(value: Any) -> Any:
    if not isinstance(value, dict) or len(value) != 1:
        return value
    ((kind, inner),) = value.items()
    if kind == "arrayValue" and isinstance(inner, dict):
        return [_typed_value(element) for element in inner.get("values") or []]
    if kind == "kvlistValue" and isinstance(inner, dict):
        return dict(_attributes(inner.get("values")))
    return inner if kind.endswith("Value") else value


def _tree(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Attributes with dots in their names as objects in objects: gen_ai.prompt.0.role is in gen_ai, prompt, 0."""
    root: dict[str, Any] = {}
    for key, value in attributes.items():
        *above, last = key.split(".")
        place = root
        for name in above:
            inner = place.get(name)
            if not isinstance(inner, dict):
                # gen_ai.system and gen_ai.system.x may be there together.
                inner = place[name] = {}
            place = inner
        if not (isinstance(place.get(last), dict) and not isinstance(value, dict)):
            place[last] = _tree(value) if isinstance(value, dict) else value
    return root


def _listed(value: Any) -> Any:
    """Messages as a list. Attributes may have them under their indexes, or as JSON in a string."""
    value = from_text(value)
    if isinstance(value, dict) and value and all(str(key).isdigit() for key in value):
        value = [value[key] for key in sorted(value, key=int)]
        return [_listed_fields(inner) for inner in value]
    return value


def _listed_fields(message: Any) -> Any:
    """A message whose lists are objects with indexes, as a message with lists."""
    if not isinstance(message, dict):
        return message
    if isinstance(message.get("message"), dict):
        message = message["message"]
    made = {}
    for key, value in message.items():
        listed = _listed(value) if isinstance(value, dict) else value
        if key == "tool_calls" and isinstance(listed, list):
            listed = [call.get("tool_call", call) if isinstance(call, dict) else call for call in listed]
        made[key] = listed
    return made


def _event_messages(record: Mapping[str, Any], which: str) -> Iterator[Any]:
    """The messages that older conventions put into events of the span."""
    events = record.get("events")
    for event in events if isinstance(events, list) else []:
        if not isinstance(event, dict):
            continue
        name = str(event.get("name", ""))
        body = {**dict(_attributes(event.get("attributes"))), **_object(from_text(event.get("body")))}
        if name == "gen_ai.client.inference.operation.details":
            found = body.get("gen_ai.input.messages" if which == "prompt" else "gen_ai.output.messages")
            yield from found if isinstance(found := from_text(found), list) else []
        elif name in ("gen_ai.choice", "gen_ai.content.completion"):
            if which == "output":
                text = body.get("message", body.get("gen_ai.completion", body.get("content")))
                text = from_text(text)
                yield text if is_message(text) or not isinstance(text, dict) else {"role": "assistant", **text}
        elif name.startswith("gen_ai.") and name.endswith(".message") and which == "prompt":
            yield {"role": name.split(".")[1], **{key: body[key] for key in ("content", "tool_calls") if key in body}}


def _object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _first(*values: Any) -> Any:
    return next((value for value in values if value not in (None, "", {}, [])), None)
