"""What the fields of messages, of their blocks and of answers mean: one row for a type, one list of names for a use.

A name is in one of four lists. It holds text that is read; or it is ignored, because it holds no text of a prompt or an
answer; or it is left out and counted, because it stands for content that has no text, such as an image. A name that is
in none of them is not known, and is counted as that. A new format mostly needs a row here and no code.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["text", "reasoning", "call", "result", "none"]
"""What a model wrote as its answer, before its answer, or to call a tool; what a tool answered; what has no text."""


def names(text: str) -> frozenset[str]:
    return frozenset(text.split())


@dataclass(frozen=True, slots=True)
class Block:
    """A type of block of a message's content, of item of the Responses API, or of part of an OpenTelemetry message."""

    kind: Kind
    text: tuple[str, ...] = ()
    """The fields that may hold its text or the arguments of a call. The first that is there is read."""
    name: tuple[str, ...] = ()
    """The fields that may hold the name of the tool that is called."""
    tool: str = ""
    """The name of the tool where no field tells it."""
    results: tuple[str, ...] = ()
    """The fields of a call with what the tool answered."""
    left_out: frozenset[str] = frozenset()

    @property
    def known(self) -> frozenset[str]:
        return BLOCK_IGNORED.union(self.text, self.name, self.results, self.left_out)


BLOCK_IGNORED = names(
    """
    type id index status role cache_control cacheControl cachePoint signature thoughtSignature thought_signature call_id
    tool_use_id tool_call_id toolCallId toolUseId annotations logprobs citations is_error isError namespace caller extras
    providerOptions providerMetadata provider_options format server_label server_url approval_request_id approve
    created_by phase finish_reason thought state max_output_length environment execution container_id
    pending_safety_checks acknowledged_safety_checks detail retrieved_at page_age return_code mode partial
    """
)
_SEARCH_RESULT = Block("result", ("content", "title", "url"), left_out=names("encrypted_content title url source"))

BLOCKS: dict[str, Block] = {}
"""By type."""


def _add(types: str, block: Block) -> None:
    BLOCKS.update(dict.fromkeys(types.split(), block))


_add("text input_text output_text", Block("text", ("text", "content", "value")))
_add("refusal", Block("text", ("refusal", "text")))
_add("message", Block("text", ("content",)))
_add("thinking reasoning_text reasoning.text", Block("reasoning", ("thinking", "text", "content")))
# A summary of the reasoning is written by another model.
_add(
    "reasoning", Block("reasoning", ("content", "text", "reasoning"), left_out=names("summary encrypted_content data"))
)
# LangChain leaves the streamed arguments in a field of their own.
_add(
    "tool_use server_tool_use mcp_tool_use",
    Block("call", ("partial_json", "input"), ("name",), left_out=names("server_name")),
)
_add(
    "tool_call tool-call function_call custom_tool_call mcp_approval_request",
    Block("call", ("arguments", "args", "input"), ("name", "toolName")),
)
_add("mcp_call", Block("call", ("arguments",), ("name",), results=("output", "error")))
_add("local_shell_call", Block("call", ("action",), tool="local_shell"))
_add("shell_call", Block("call", ("action",), tool="shell"))
_add("apply_patch_call", Block("call", ("operation",), tool="apply_patch"))
_add("computer_call", Block("call", ("action", "actions"), tool="computer"))
_add("web_search_call", Block("call", ("action",), tool="web_search"))
_add("tool_search_call", Block("call", ("arguments",), tool="tool_search"))
_add("file_search_call", Block("call", ("queries",), tool="file_search", results=("results",)))
_add("code_interpreter_call", Block("call", ("code",), tool="code_interpreter", results=("outputs",)))
_add(
    """
    tool_result web_search_tool_result web_fetch_tool_result code_execution_tool_result bash_code_execution_tool_result
    text_editor_code_execution_tool_result mcp_tool_result tool_search_tool_result tool-result tool_call_response
    function_response function_call_output custom_tool_call_output computer_call_output local_shell_call_output
    shell_call_output apply_patch_call_output tool_search_output
    """,
    Block("result", ("content", "output", "response", "result"), left_out=names("name toolName tools")),
)
_add("web_search_result search_result web_fetch_result", _SEARCH_RESULT)
_add(
    "code_execution_result bash_code_execution_result logs",
    Block("result", ("stdout", "content", "logs"), left_out=names("stderr")),
)
_add(
    """
    image image_url input_image output_image image_file image_generation_call document input_file file file_data audio
    input_audio output_audio video video_url input_video blob uri media redacted_thinking reasoning.encrypted
    reasoning.summary compaction context_compaction item_reference mcp_list_tools mcp_approval_response
    container_upload computer_screenshot tool_reference step-start source source-url source-document
    """,
    Block("none"),
)

UNTYPED_BLOCKS = {
    "text": "text", "functionCall": "tool_call", "function_call": "tool_call",
    "functionResponse": "tool_call_response", "function_response": "tool_call_response", "toolUse": "tool_use",
    "toolResult": "tool_result", "reasoningContent": "reasoning", "inlineData": "blob", "fileData": "file",
    "image": "image", "document": "document", "video": "video", "cachePoint": "step-start",
}  # fmt: skip
"""Blocks of Gemini and Bedrock have no type, and one of these fields instead."""

ROLES = {
    other: role
    for role, others in {
        "assistant": "ai AIMessage AIMessageChunk model gpt bot bing chatgpt bard function_call function-call tool_call",
        "user": "human HumanMessage HumanMessageChunk",
        "system": "SystemMessage",
        "tool": "ToolMessage observation function_response function-response tool_response tool_result",
        "function": "FunctionMessage",
    }.items()
    for other in others.split()
}
"""Other names of roles."""
KNOWN_ROLES = names("assistant user system developer tool function") | ROLES.keys()

MESSAGE_TEXT = ("content", "value", "text", "parts", "contents", "system_prompt")
"""The fields that may hold the content of a message. The first that is not empty is read."""
MESSAGE_REASONING = (
    "reasoning_content", "reasoning", "thinking", "thinking_blocks", "reasoning_details", "tool_plan",
)  # fmt: skip
"""Text that a model wrote before its answer, which most logs keep in a field of its own. The first is read."""
MESSAGE_CALLS = ("tool_calls", "function_call", "invalid_tool_calls")
MESSAGE_NESTED = ("additional_kwargs", "provider_specific_fields")
"""Fields in which clients keep further fields of the message."""
MESSAGE_IGNORED = names(
    """
    role from type id name agent ts timestamp time created created_at createdAt object model usage stop_reason
    stop_sequence stop_details finish_reason finishReason logprobs index weight train mask cutoff_date
    tool_call_id tool_call_ids toolCallId tool_use_id call_id is_demo message_type cache_control annotations error
    response_metadata usage_metadata lc example artifact status is_error turn_idx cost tags raw_data uuid parentUuid
    extra requestor container context_management diagnostics metadata recipient channel condenser_metadata
    state is_input execution_time phase matched_stop hidden_states input_tokens output_tokens
    generation_time_seconds response_id
    """
)
MESSAGE_LEFT_OUT = names("audio image images video videos files attachments")
MESSAGE_KNOWN = MESSAGE_IGNORED | MESSAGE_LEFT_OUT | {
    *MESSAGE_TEXT,
    *MESSAGE_REASONING,
    *MESSAGE_CALLS,
    *MESSAGE_NESTED,
    "refusal",
}  # fmt: skip
TOOL_CALL_KNOWN = names(
    """
    id type index call_id function custom name toolName arguments args input parameters requestor extra_content
    toolCallId cache_control error status thought_signature provider_specific_fields
    """
)
NESTED_KNOWN = names("refusal parsed annotations thought_signatures citations thinking_blocks reasoning_details") | {
    *MESSAGE_REASONING,
    *MESSAGE_CALLS,
}

ANSWER_IGNORED = names(
    """
    id object created created_at completed_at createTime model modelVersion role type usage usage_metadata usageMetadata
    system_fingerprint service_tier stop_reason stop_sequence stop_details stopReason finish_reason finishReason
    native_finish_reason index logprobs prompt_logprobs token_ids prompt_token_ids prompt_text meta_info output_ids
    avgLogprobs status status_code statusCode headers error incomplete_details background metadata metrics
    moderation instructions max_output_tokens max_tool_calls parallel_tool_calls previous_response_id prompt
    prompt_cache_key prompt_cache_retention prompt_filter_results content_filter_results content_filter_result
    matched_stop hidden_states safety_identifier store temperature tool_choice tools top_k top_logprobs top_p
    truncation user conversation response_id responseId request_id _request_id provider citations search_results
    safetyRatings groundingMetadata citationMetadata promptFeedback llm_output run generation_info
    response_metadata _hidden_params _response_headers response_ms ResponseMetadata kv_transfer_params lc
    additionalModelResponseFields trace performanceConfig container context_management input_tokens output_tokens
    sglext done done_reason context total_duration load_duration prompt_eval_count prompt_eval_duration eval_count
    eval_duration
    """
)
"""Fields of a response's body and of its choices that hold no text which the model wrote."""

REDACTED = (
    r"\W*((the |this )?(content|message|prompt|completion|response|output|text|input|answer)s?\W+((is|was|has been) )?)?"
    r"(redacted|masked|removed|filtered|scrubbed)([ _-]*(by|for|due to)[ _-]+[\w -]{1,40})?[\W_]*"
    r"|\*{3,}"
)
"""What programs write in place of a text that they do not log, as a pattern of the whole text."""
