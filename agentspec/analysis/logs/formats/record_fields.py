"""The fields that records of each format may have. What is not in these lists is reported as not understood."""

from __future__ import annotations

from collections.abc import Sequence

from agentspec.analysis.logs.calls import LABEL_FIELDS
from agentspec.analysis.logs.formats import fields
from agentspec.analysis.logs.formats.answers import ANSWERS, PROMPTS, REQUESTS, SYSTEMS


def known(*lists: Sequence[str] | frozenset[str] | str) -> frozenset[str]:
    """The names of several lists, and those that any record may have."""
    parts = [fields.names(one) if isinstance(one, str) else frozenset(one) for one in lists]
    return COMMON.union(*parts)


# Fields of any record: who called, when, which model, what it cost, how it ended.
COMMON = LABEL_FIELDS | fields.names(
    """
    id uuid name model model_name model_id version type object status error error_str error_message exception usage cost
    latency latency_ms duration duration_ms seconds tokens_used num_tokens input_tokens output_tokens total_tokens
    prompt_tokens completion_tokens finish_reason stop_reason end_time endTime ended completed_at updated_at updatedAt
    request_id requestId call_id run task run_id task_id reward score seed temperature top_p max_tokens stream tags
    language source split index idx environment level provider system_fingerprint service_tier host pid logger
    num_turns turn success resolved passed exit exit_status category
    """
)

PAIR = known(ANSWERS, REQUESTS, PROMPTS, SYSTEMS, "body custom_id").union(fields.ANSWER_IGNORED) | {
    "tools",
    "functions",
    "kwargs",
    "raw_response",
}  # fmt: skip

LITELLM = fields.names(
    """
    call_type trace_id saved_cache_cost response_cost response_cost_failure_debug_info status_fields custom_llm_provider
    completionStartTime response_time model_map_information model_group api_base end_user requester_ip_address
    requester_custom_headers cache_hit cache_key request_tags hidden_params model_parameters guardrail_information
    standard_built_in_tools_params cost_breakdown error_information litellm_call_id litellm_params spend
    proxy_server_request api_key team_id organization_id session_id user_agent mcp_namespaced_tool_name agent_id
    request_duration_ms optional_params additional_args log_event_type original_response stream_options
    """
)

OPENHANDS = fields.names(
    """
    args context_window latency_sec fncall_messages fncall_response usage_summary accumulated_cost llm_metrics log_id
    """
)

HELICONE = fields.names(
    """
    request_created_at response_created_at response_id response_status request_path request_properties properties
    request_user_id response_delay_ms prompt_id feedback_rating country_code scores helicone_user provider_request_id
    """
)

STAGED_CALL = known("stage output messages began seconds attempt candidate finish")

SWE_AGENT_STEP = fields.names(
    """
    response observation action thought state query messages extra_info execution_time cost info llm_latency
    tool_calls tool_call_ids thinking_blocks reasoning
    """
)

SWE = known(
    "history trajectory info attempts replay_config environment trajectory_format instance_id run_id metadata best_attempt",
    "review_results",
)

LOG_LEVELS = fields.names("level levelname log_level severity lvl loglevel")

LOG_TEXTS = fields.names("message msg event log textPayload")

DATASET = fields.names(
    """
    info trajectory_format tools patch model_patch git_patch generated_patch eval_logs eval_result target resolved
    traj_id instance_id repo test_result report instruction problem_statement base_commit dataset
    conversation_hash conversation_id turn redacted toxic openai_moderation detailed_moderation hashed_ip header state
    country system system_prompt tstamp judge winner exit traj_reward agent_cost user_cost termination_reason
    reward_info start_time end_time trial task_id id seed hints review chat_template_kwargs reference ground_truth
    gold gold_sql sql db db_id evaluation difficulty
    """
)
