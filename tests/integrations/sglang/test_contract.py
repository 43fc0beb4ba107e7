"""Everything that the plugin uses of SGLang exists in every supported release, with the parameters that it passes.

Releases other than the installed one are unpacked and read, never imported here. `test_old_release` runs the oldest.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest
from every import every
from releases import releases

pytestmark = [pytest.mark.sglang, pytest.mark.parametrize("release", releases())]


@cache
def module(release: Path, name: str) -> ast.Module:
    path = release / Path(*name.split("."))
    for candidate in (path.with_suffix(".py"), path / "__init__.py"):
        if candidate.is_file():
            return ast.parse(candidate.read_text(encoding="utf-8"))
    pytest.fail(f"{name} is not in {release}; `make test-all` unpacks the other releases")


Definition = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def find(release: Path, name: str, *path: str) -> Definition:
    body: list[ast.stmt] = module(release, name).body
    found: Definition | None = None
    for part in path:
        found = next((n for n in body if isinstance(n, Definition) and n.name == part), None)
        assert found is not None, f"{name}:{'.'.join(path)} is missing"
        body = found.body
    assert found is not None
    return found


def parameters(function: Definition) -> set[str]:
    assert isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
    arguments = function.args
    return {a.arg for a in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)}


@dataclass(frozen=True)
class Uses:
    """A function or method of SGLang and the parameters it must have."""

    name: str
    path: tuple[str, ...]
    parameters: frozenset[str] = frozenset()


NGRAM = "sglang.srt.speculative.ngram_worker"
EAGLE = "sglang.srt.speculative.eagle_worker_v2"
USED = [
    Uses("sglang.srt.plugins.hook_registry", ("HookRegistry", "register"), frozenset({"target", "hook", "hook_type"})),
    Uses(
        "sglang.srt.speculative.spec_info",
        ("SpeculativeAlgorithm", "register"),
        frozenset({"name", "supports_overlap", "validate_server_args", "spec_class"}),
    ),
    Uses("sglang.srt.speculative.spec_info", ("SpeculativeAlgorithm", "create_worker"), frozenset({"server_args"})),
    Uses(
        "sglang.srt.speculative.spec_info", ("SpeculativeAlgorithm", "handle_server_args"), frozenset({"server_args"})
    ),
    Uses("sglang.srt.speculative.spec_registry", ("CustomSpecAlgo", "handle_server_args"), frozenset({"server_args"})),
    Uses("sglang.srt.server_args", ("ServerArgs", "add_cli_args"), frozenset({"parser"})),
    Uses("sglang.srt.server_args", ("ServerArgs", "from_cli_args"), frozenset({"args"})),
    Uses("sglang.srt.managers.scheduler", ("Scheduler", "abort_request"), frozenset({"recv_req"})),
    Uses("sglang.srt.managers.scheduler", ("Scheduler", "on_idle"), frozenset()),
    Uses("sglang.srt.managers.schedule_batch", ("Req", "update_finish_state"), frozenset({"new_accepted_len"})),
    Uses("sglang.srt.mem_cache.memory_pool", ("ReqToTokenPool", "__init__"), frozenset({"max_context_len"})),
    Uses(
        "sglang.srt.managers.tokenizer_manager",
        ("TokenizerManager", "_validate_one_request"),
        frozenset({"obj", "input_ids"}),
    ),
    Uses("sglang.srt.managers.tokenizer_manager", ("TokenizerManager", "__init__"), frozenset({"server_args"})),
    Uses(
        "sglang.srt.entrypoints.openai.serving_chat",
        ("OpenAIServingChat", "_convert_to_internal_request"),
        frozenset({"request", "raw_request"}),
    ),
    Uses(
        "sglang.srt.entrypoints.openai.serving_base",
        ("OpenAIServingBase", "create_error_response"),
        frozenset({"message", "param"}),
    ),
    Uses(
        "sglang.srt.entrypoints.openai.usage_processor",
        ("UsageProcessor", "calculate_token_usage"),
        frozenset({"prompt_tokens", "completion_tokens"}),
    ),
    Uses("sglang.srt.managers.tokenizer_manager", ("TokenizerManager", "_wait_one_response"), frozenset({"obj"})),
    Uses(
        "sglang.srt.managers.tp_worker",
        ("TpModelWorker", "forward_batch_generation"),
        frozenset({"batch", "forward_batch"}),
    ),
    Uses("sglang.srt.model_executor.model_runner", ("ModelRunner", "forward"), frozenset({"forward_batch"})),
    Uses("sglang.srt.managers.tokenizer_manager", ("TokenizerManager", "auto_create_handle_loop")),
    Uses("sglang.srt.managers.scheduler", ("Scheduler", "get_internal_state"), frozenset({"recv_req"})),
    Uses("sglang.srt.utils.auth", ("auth_level",), frozenset({"level"})),
    Uses(NGRAM, ("NGRAMWorker", "__init__"), frozenset({"server_args"})),
    Uses(NGRAM, ("NGRAMWorker", "forward_batch_generation"), frozenset({"batch", "on_publish"})),
    Uses(NGRAM, ("NGRAMWorker", "_prepare_for_speculative_decoding"), frozenset({"batch"})),
    Uses(NGRAM, ("NGRAMWorker", "_update_ngram_corpus"), frozenset({"batch"})),
    Uses(NGRAM, ("NGRAMWorker", "clear_cache_pool")),
    Uses(NGRAM, ("NGRAMWorker", "on_verify_complete_cpu"), frozenset({"num_correct_drafts_per_req", "batch_size"})),
    Uses(
        "sglang.srt.speculative.base_spec_worker",
        ("BaseSpecWorker", "note_request_finished"),
        frozenset({"rid", "natural_stop"}),
    ),
    Uses(
        "sglang.srt.speculative.ngram_info",
        ("NgramVerifyInput", "__init__"),
        frozenset(
            {
                "draft_token",
                "custom_mask",
                "positions",
                "retrieve_index",
                "retrieve_next_token",
                "retrieve_next_sibling",
                "draft_token_num",
                "accept_tokens",
                "accept_lens",
            }
        ),
    ),
    Uses(EAGLE, ("EAGLEWorkerV2", "__init__"), frozenset({"server_args"})),
    Uses(EAGLE, ("EAGLEWorkerV2", "forward_batch_generation"), frozenset({"batch", "on_publish", "grammar_barrier"})),
    Uses(EAGLE, ("EAGLEWorkerV2", "verify"), frozenset({"batch", "grammar_barrier"})),
    Uses(EAGLE, ("EagleDraftWorker", "draft"), frozenset({"batch"})),
    Uses(EAGLE, ("EagleDraftWorker", "draft_forward"), frozenset({"forward_batch"})),
    Uses(EAGLE, ("EagleDraftWorker", "_draft_extend_for_prefill"), frozenset({"batch", "next_token_ids"})),
    Uses(EAGLE, ("EagleDraftWorker", "_draft_extend_for_decode"), frozenset({"batch", "batch_result"})),
    Uses(EAGLE, ("EagleDraftWorker", "init_attention_backends")),
    Uses(EAGLE, ("EagleDraftWorker", "init_cuda_graphs")),
    Uses(
        "sglang.srt.speculative.eagle_utils",
        ("get_draft_recurrent_hidden_state_spec",),
        frozenset({"model_runner"}),
    ),
    Uses("sglang.srt.speculative.standalone_worker_v2", ("StandaloneDraftWorker",)),
    Uses("sglang.srt.speculative.standalone_worker_v2", ("StandaloneWorkerV2",)),
    Uses(
        "sglang.srt.speculative.spec_utils",
        ("select_top_k_tokens",),
        frozenset({"i", "topk_p", "topk_index", "hidden_states", "scores", "topk"}),
    ),
    Uses("sglang.srt.model_executor.forward_context", ("forward_context",)),
    # Graphs of several widths, as SGLang's adaptive speculation keeps them.
    Uses("sglang.srt.speculative.base_spec_worker", ("BaseSpecWorker", "init_cuda_graphs")),
    Uses(
        "sglang.srt.model_executor.runner.decode_cuda_graph_runner",
        ("DecodeCudaGraphRunner", "__init__"),
        frozenset({"model_runner", "attn_backend", "speculative_num_steps", "speculative_num_draft_tokens"}),
    ),
    Uses(
        "sglang.srt.model_executor.runner.base_cuda_graph_runner",
        ("get_batch_sizes_to_capture",),
        frozenset({"model_runner", "captured_req_width"}),
    ),
    Uses("sglang.srt.model_executor.model_runner", ("ModelRunner", "max_decode_logits_rows")),
    Uses(
        "sglang.srt.speculative.eagle_draft_extend_cuda_graph_runner",
        ("EAGLEDraftExtendCudaGraphRunner", "__init__"),
        frozenset({"eagle_worker"}),
    ),
    Uses("sglang.srt.utils.common", ("get_device_memory_capacity",), frozenset({"device"})),
    Uses("sglang.srt.configs.hybrid_arch", ("mambaish_config",), frozenset({"model_config"})),
    Uses(
        "sglang.srt.model_executor.model_runner",
        ("ModelRunner", "_get_attention_backend"),
        frozenset({"init_new_workspace"}),
    ),
    Uses("sglang.srt.distributed.parallel_state", ("GroupCoordinator", "all_gather_object"), frozenset({"obj"})),
    Uses("sglang.srt.utils.common", ("get_available_gpu_memory",), frozenset({"device", "gpu_id"})),
    Uses(EAGLE, ("EagleDraftWorker", "init_attention_backend")),
    Uses(EAGLE, ("EagleDraftWorker", "_capture_cuda_graphs")),
    Uses("sglang.srt.runtime_context", ("RuntimeContext", "override"), frozenset({"source"})),
    Uses("sglang.srt.managers.schedule_batch", ("ScheduleBatch", "grammar_needs_sync")),
    Uses("sglang.srt.managers.schedule_batch", ("Req", "finished")),
    # The streaming parsers of the HTTP process.
    Uses(
        "sglang.srt.function_call.function_call_parser",
        ("FunctionCallParser", "parse_stream_chunk"),
        frozenset({"chunk_text"}),
    ),
    Uses(
        "sglang.srt.function_call.json_array_parser",
        ("JsonArrayParser", "parse_streaming_increment"),
        frozenset({"new_text", "tools"}),
    ),
    Uses("sglang.srt.parser.reasoning_parser", ("ReasoningParser", "parse_stream_chunk"), frozenset({"chunk_text"})),
    Uses("sglang.srt.speculative.eagle_utils", ("eagle_sample",), frozenset({"verify_input", "batch"})),
]


@every("used", USED)
def test_what_is_called_exists_with_its_parameters(release: Path, used: Uses) -> None:
    missing = used.parameters - parameters(find(release, used.name, *used.path)) if used.parameters else set()
    find(release, used.name, *used.path)
    assert not missing, f"{'.'.join(used.path)} lacks {sorted(missing)}"


def source(release: Path, name: str, *path: str) -> str:
    return ast.unparse(find(release, name, *path))


def test_the_base_worker_reads_the_width_and_the_host_tree_that_are_set(release: Path) -> None:
    forward = source(release, NGRAM, "NGRAMWorker", "forward_batch_generation")
    for attribute in ("self.draft_token_num", "self.speculative_num_draft_tokens", "self.grammar_tree_host"):
        assert attribute in forward
    assert "self._prepare_for_speculative_decoding(batch)" in forward
    assert "move_accept_tokens_to_target_kvcache" in forward


def test_the_target_runs_with_the_graphs_and_the_backend_that_its_runner_holds(release: Path) -> None:
    forward = source(release, "sglang.srt.model_executor.model_runner", "ModelRunner", "_forward_raw")
    assert "self.decode_cuda_graph_runner" in forward and "self.attn_backend" in forward
    swapped = source(release, EAGLE, "EAGLEWorkerV2", "apply_runtime_state")
    assert "model_runner.attn_backend = " in swapped and "model_runner.decode_cuda_graph_runner = " in swapped
    # It does the same for draft-extend.
    for place in (
        *("dw.speculative_num_draft_tokens = ", "dw.draft_extend_attn_backend = ", "dw.draft_runner.attn_backend = "),
        "dw.cuda_graph_runner_for_draft_extend = ",
    ):
        assert place in swapped
    assert "if self.speculative_num_steps > 1" in source(release, EAGLE, "EagleDraftWorker", "_capture_cuda_graphs")
    # One function decides which batch sizes are captured. Another one sizes the logits buffer that all graphs share.
    runners = (
        ("sglang.srt.model_executor.runner.decode_cuda_graph_runner", "DecodeCudaGraphRunner"),
        ("sglang.srt.speculative.eagle_draft_extend_cuda_graph_runner", "EAGLEDraftExtendCudaGraphRunner"),
    )
    for name, runner in runners:
        assert "self.capture_bs, " in (made := source(release, name, runner, "__init__"))
        assert "get_batch_sizes_to_capture(model_runner" in made
    rows = source(release, "sglang.srt.model_executor.model_runner", "ModelRunner", "max_decode_logits_rows")
    assert "get_batch_sizes_to_capture(" in rows
    # A step whose width differs from the graphs' width runs without graphs.
    can_run = source(
        release, "sglang.srt.model_executor.runner.decode_cuda_graph_runner", "DecodeCudaGraphRunner", "can_run_graph"
    )
    assert "captured_req_width" in can_run


def test_names_that_the_worker_takes_from_the_base_module(release: Path) -> None:
    text = ast.unparse(module(release, NGRAM))
    for name in ("assign_extend_cache_locs_func", "prepare_mamba_track_for_verify", "NgramCorpus"):
        assert name in text


def test_names_that_are_replaced_while_a_drafter_is_made_or_drafts(release: Path) -> None:
    worker = source(release, EAGLE, "EAGLEWorkerV2", "__init__")
    assert "EagleDraftWorker(" in worker
    assert "build_eagle_verify_input(" in source(release, EAGLE, "EagleDraftWorker", "draft")
    standalone = source(release, "sglang.srt.speculative.standalone_worker_v2", "StandaloneWorkerV2", "__init__")
    assert "StandaloneDraftWorker(" in standalone


def test_a_step_with_a_draft_model_drafts_verifies_and_extends_in_this_order(release: Path) -> None:
    forward = source(release, EAGLE, "EAGLEWorkerV2", "forward_batch_generation")
    decode = forward[forward.index("self.draft_worker.draft(batch)") :]
    places = [
        decode.index(text)
        for text in ("self.draft_worker.draft(batch)", "self.verify(", "on_publish(", "_draft_extend_for_decode(")
    ]
    assert places == sorted(places)
    # The rows of verification and of draft-extend are as wide as the step.
    assert "self.speculative_num_draft_tokens" in source(release, EAGLE, "EAGLEWorkerV2", "verify")
    extend = source(release, EAGLE, "EagleDraftWorker", "_draft_extend_for_decode")
    assert "self.speculative_num_draft_tokens" in extend
    for field in ("topk_p", "topk_index", "hidden_states"):
        assert f"next_draft_input.{field}" in extend


def test_fields_of_verify_and_draft_inputs(release: Path) -> None:
    inputs = ast.unparse(module(release, "sglang.srt.speculative.eagle_info"))
    for field in (
        *("draft_token:", "custom_mask:", "positions:", "retrieve_index:", "retrieve_next_token:"),
        *("retrieve_next_sibling:", "retrieve_cum_len:", "spec_steps:", "topk:", "draft_token_num:", "seq_lens_sum:"),
        *("topk_p:", "topk_index:", "hidden_states:", "bonus_tokens:", "num_tokens_for_logprob_per_req:"),
    ):
        assert field in inputs


def test_attributes_of_requests_and_batches(release: Path) -> None:
    text = ast.unparse(module(release, "sglang.srt.managers.schedule_batch"))
    for attribute in (
        "self.origin_input_ids",
        "self.origin_input_ids_unpadded",
        "self.output_ids",
        "self.extra_key",
        "self.finished_len",
        "self.sampling_params",
        "seq_lens_cpu",
    ):
        assert attribute in text


@every(
    ("endpoint", "parsers"),
    [
        ("serving_chat", ("FunctionCallParser", "JsonArrayParser", "ReasoningParser")),
        ("serving_responses", ("FunctionCallParser", "JsonArrayParser", "ReasoningParser")),
    ],
)
def test_endpoints_stream_through_the_parsers_that_are_hooked(
    release: Path, endpoint: str, parsers: tuple[str, ...]
) -> None:
    text = ast.unparse(module(release, f"sglang.srt.entrypoints.openai.{endpoint}"))
    assert all(f"{parser}(" in text for parser in parsers)
    # No endpoint asks a detector by itself, or the detector's method of the same name.
    assert text.count(".parse_stream_chunk(delta)") == 2
    streamed = [line for line in text.splitlines() if ".parse_streaming_increment(" in line]
    assert streamed and all("parser.parse_streaming_increment(" in line for line in streamed)


@every("endpoint", ["anthropic.serving", "ollama.serving"])
def test_other_endpoints_have_no_streaming_parsers_of_their_own(release: Path, endpoint: str) -> None:
    text = ast.unparse(module(release, f"sglang.srt.entrypoints.{endpoint}"))
    assert "parse_stream" not in text


def test_penalties_are_counted_once_a_step_and_added_to_all_nodes_of_a_row(release: Path) -> None:
    prepared = source(release, "sglang.srt.speculative.eagle_utils", "eagle_prepare_for_decode")
    assert "batch.cumulate_penalty_output_tokens()" in prepared
    counted = source(release, "sglang.srt.managers.schedule_batch", "ScheduleBatch", "cumulate_penalty_output_tokens")
    assert "req.output_ids[-1]" in counted
    verified = source(release, "sglang.srt.speculative.eagle_utils", "eagle_sample")
    for added in ("acc_additive_penalties", "acc_scaling_penalties", "logit_bias"):
        assert f"sampling_info.{added}, verify_input.draft_token_num" in verified
    # It does not apply these two.
    assert "custom_logit_processor" not in verified and "min_ps" not in verified


def test_what_is_kept_of_a_distribution_is_decided_by_two_kernels(release: Path) -> None:
    verified = source(release, "sglang.srt.speculative.eagle_utils", "eagle_sample")
    places = [
        verified.index(f"target_probs = {name}(target_probs, ") for name in ("top_k_renorm_prob", "top_p_renorm_prob")
    ]
    assert places == sorted(places)
    for name in ("need_top_k_sampling", "need_top_p_sampling", "is_all_greedy"):
        assert f"sampling_info.{name}" in verified
    information = ast.unparse(module(release, "sglang.srt.sampling.sampling_batch_info"))
    assert "need_min_p_sampling:" in information and "min_ps:" in information


def test_what_the_launcher_s_hooks_of_a_replay_need(release: Path) -> None:
    text = ast.unparse(module(release, "sglang.srt.managers.tokenizer_manager"))
    assert "async def generate_request(self, obj" in text
    assert "ServerStatus.Starting" in text
    assert "self._validate_one_request(obj, input_ids)" in text
    control = ast.unparse(module(release, "sglang.srt.managers.tokenizer_control_mixin"))
    assert "async def get_internal_state(self" in control


def test_a_forward_s_logits_are_those_that_are_sampled_and_verified(release: Path) -> None:
    worker = source(release, "sglang.srt.managers.tp_worker", "TpModelWorker", "forward_batch_generation")
    forward = worker.index("self.model_runner.forward(forward_batch")
    assert "out.logits_output" in worker and forward < worker.index("self.model_runner.sample(")
    runner = ast.unparse(module(release, "sglang.srt.model_executor.model_runner"))
    for name in (
        "self.is_draft_worker",
        "class ModelRunnerOutput",
        "logits_output:",
        "self.server_args",
        "req_to_token_pool",
    ):
        assert name in runner
    batch = ast.unparse(module(release, "sglang.srt.model_executor.forward_batch_info"))
    for name in ("req_pool_indices:", "seq_lens:", "positions:", "spec_info:", "def is_target_verify", "def is_extend"):
        assert name in batch
    requests = ast.unparse(module(release, "sglang.srt.managers.schedule_batch"))
    assert "req_pool_idx" in requests


def test_a_step_tells_a_request_how_many_tokens_it_accepted(release: Path) -> None:
    request = source(release, "sglang.srt.managers.schedule_batch", "Req")
    for attribute in ("finished_reason", "finished_len", "to_finish", "output_ids", "grammar"):
        assert f"self.{attribute}" in request
    steps = ast.unparse(module(release, "sglang.srt.managers.scheduler_components.batch_result_processor"))
    assert "req.update_finish_state(new_accept_len)" in steps


def test_results_carry_the_drafted_number_per_row(release: Path) -> None:
    result = source(release, "sglang.srt.managers.utils", "GenerationBatchResult")
    for attribute in ("cap_lens", "next_draft_input", "speculative_num_draft_tokens"):
        assert attribute in result


def test_the_server_s_internal_state_can_be_extended(release: Path) -> None:
    try:
        text = (release / "sglang/srt/managers/scheduler_components/internal_state.py").read_text(encoding="utf-8")
    except FileNotFoundError:
        find(release, "sglang.srt.managers.scheduler", "Scheduler", "get_internal_state")
    else:
        assert "def _add_speculative(self, state" in text


def test_the_message_that_carries_an_administrator_s_commands(release: Path) -> None:
    messages = "sglang.srt.managers.io_struct"
    base = source(release, messages, "BaseReq")
    assert "rid: Optional[str]" in base
    assert "(BaseReq" in source(release, messages, "GetInternalStateReq")
    assert "internal_state: Dict[str, Any]" in source(release, messages, "GetInternalStateReqOutput")
    control = ast.unparse(module(release, "sglang.srt.managers.tokenizer_control_mixin"))
    # Clients cannot choose the request's id.
    assert "('get_internal_state', GetInternalStateReqOutput)" in control and "req = GetInternalStateReq()" in control


def test_the_server_s_application_and_its_admin_key(release: Path) -> None:
    text = ast.unparse(module(release, "sglang.srt.entrypoints.http_server"))
    assert "app = FastAPI(" in text and "from sglang.srt.utils.auth import" in text
    assert "admin_api_key" in text
    assert "ADMIN_OPTIONAL" in source(release, "sglang.srt.utils.auth", "AuthLevel")


OPENAI = "sglang.srt.entrypoints.openai"


def test_what_the_hooks_of_predicted_outputs_need(release: Path) -> None:
    for name in ("CompletionRequest", "ChatCompletionRequest"):
        source = ast.unparse(find(release, f"{OPENAI}.protocol", name))
        assert "custom_params: Optional[Dict] = None" in source
        # If a release kept the field, it might also do something with it.
        assert "prediction" not in source.replace("_prediction", "")
    for name in ("CompletionResponse", "ChatCompletionResponse"):
        assert "usage: UsageInfo" in ast.unparse(find(release, f"{OPENAI}.protocol", name))
        stream = name.replace("Response", "StreamResponse")
        assert "usage: Optional[UsageInfo] = None" in ast.unparse(find(release, f"{OPENAI}.protocol", stream))
    base = ast.unparse(module(release, f"{OPENAI}.serving_base"))
    assert "async def handle_request(self, request: OpenAIServingRequest, raw_request: Request)" in base
    # No endpoint that takes a prediction has a way around the hooks.
    for name in ("serving_chat", "serving_completions"):
        source = ast.unparse(module(release, f"{OPENAI}.{name}"))
        assert "def handle_request" not in source
        assert "UsageInfo(" not in source
        assert "['meta_info'].get('completion_tokens', 0)" in source
    usage = ast.unparse(find(release, f"{OPENAI}.usage_processor", "UsageProcessor"))
    assert "sum(completion_tokens.values())" in usage
    assert "sum((r['meta_info'].get('completion_tokens', 0) for r in responses))" in usage
    # calculate_token_usage makes the usage of the two others.
    assert usage.count("UsageInfo(") == 1
    assert usage.count("UsageProcessor.calculate_token_usage(") == 2
    manager = ast.unparse(find(release, "sglang.srt.managers.tokenizer_manager", "TokenizerManager"))
    assert "state = self.rid_to_state[obj.rid]" in manager
    assert "state.output_ids.extend(delta_output_ids)" in manager
    # A list that lies deeper than one level is not among the values of custom_params.
    values = (release / "sglang/srt/sampling/sampling_params.py").read_text(encoding="utf-8")
    assert "List[_JsonScalar],\n    Dict[str, _JsonScalar]," in values
