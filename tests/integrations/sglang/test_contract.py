"""Everything that the plugin uses of SGLang exists in every supported release, with the parameters that it passes.

Releases other than the installed one are unpacked and read, never imported here. `test_old_release` runs the oldest.
"""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import pytest
from every import every
from releases import releases

pytestmark = [pytest.mark.sglang, pytest.mark.parametrize("release", releases())]


@cache
def module(release: Path, name: str) -> ast.Module:
    path = release / "sglang" / "srt" / Path(*name.split("."))
    for candidate in (path.with_suffix(".py"), path / "__init__.py"):
        if candidate.is_file():
            return ast.parse(candidate.read_text(encoding="utf-8"))
    pytest.fail(f"{name} is not in {release}; `make test-all` unpacks the other releases")


Definition = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def find(release: Path, name: str, path: str) -> Definition:
    body: list[ast.stmt] = module(release, name).body
    found: Definition | None = None
    for part in path.split("."):
        found = next((n for n in body if isinstance(n, Definition) and n.name == part), None)
        assert found is not None, f"{name}:{path} is missing"
        body = found.body
    assert found is not None
    return found


def source(release: Path, name: str, path: str = "") -> str:
    return ast.unparse(find(release, name, path) if path else module(release, name))


def parameters(function: Definition) -> set[str]:
    assert isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
    arguments = function.args
    return {a.arg for a in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)}


NGRAM = "speculative.ngram_worker"
EAGLE = "speculative.eagle_worker_v2"
OPENAI = "entrypoints.openai"
GRAPHS = "model_executor.runner.decode_cuda_graph_runner"
# Module, function or class, and the parameters that the plugin passes or reads.
USED = [
    ("plugins.hook_registry", "HookRegistry.register", "target hook hook_type"),
    ("speculative.spec_info", "SpeculativeAlgorithm.register", "name supports_overlap validate_server_args spec_class"),
    ("speculative.spec_info", "SpeculativeAlgorithm.create_worker", "server_args"),
    ("speculative.spec_info", "SpeculativeAlgorithm.handle_server_args", "server_args"),
    ("speculative.spec_registry", "CustomSpecAlgo.handle_server_args", "server_args"),
    ("server_args", "ServerArgs.add_cli_args", "parser"),
    ("server_args", "ServerArgs.from_cli_args", "args"),
    ("managers.scheduler", "Scheduler.abort_request", "recv_req"),
    ("managers.scheduler", "Scheduler._abort_on_queued_limit", "recv_req"),
    ("managers.scheduler", "Scheduler.on_idle", ""),
    ("managers.scheduler", "Scheduler.get_internal_state", "recv_req"),
    ("managers.schedule_batch", "Req.update_finish_state", "new_accepted_len"),
    ("managers.schedule_batch", "Req.finished", ""),
    ("managers.schedule_batch", "ScheduleBatch.grammar_needs_sync", ""),
    ("mem_cache.memory_pool", "ReqToTokenPool.__init__", "max_context_len"),
    ("managers.tokenizer_manager", "TokenizerManager.__init__", "server_args"),
    ("managers.tokenizer_manager", "TokenizerManager._validate_one_request", "obj input_ids"),
    ("managers.tokenizer_manager", "TokenizerManager._wait_one_response", "obj"),
    ("managers.tokenizer_manager", "TokenizerManager._calculate_spec_decoding_metrics", "meta_info recv_obj i"),
    ("managers.tokenizer_manager", "TokenizerManager.auto_create_handle_loop", ""),
    ("managers.tp_worker", "TpModelWorker.forward_batch_generation", "batch forward_batch"),
    (f"{OPENAI}.serving_chat", "OpenAIServingChat._convert_to_internal_request", "request raw_request"),
    (f"{OPENAI}.serving_base", "OpenAIServingBase.create_error_response", "message param"),
    (f"{OPENAI}.usage_processor", "UsageProcessor.calculate_token_usage", "prompt_tokens completion_tokens"),
    ("utils.auth", "auth_level", "level"),
    (NGRAM, "NGRAMWorker.__init__", "server_args"),
    (NGRAM, "NGRAMWorker.forward_batch_generation", "batch on_publish"),
    (NGRAM, "NGRAMWorker._prepare_for_speculative_decoding", "batch"),
    (NGRAM, "NGRAMWorker._update_ngram_corpus", "batch"),
    (NGRAM, "NGRAMWorker.clear_cache_pool", ""),
    (NGRAM, "NGRAMWorker.on_verify_complete_cpu", "num_correct_drafts_per_req batch_size"),
    ("speculative.ngram_info", "NgramVerifyInput.__init__",
     "draft_token draft_token_num custom_mask positions retrieve_index retrieve_next_token retrieve_next_sibling"),
    ("speculative.ngram_info", "NgramVerifyInput.__init__", "accept_tokens accept_lens"),
    ("speculative.base_spec_worker", "BaseSpecWorker.note_request_finished", "rid natural_stop"),
    ("speculative.base_spec_worker", "BaseSpecWorker.init_cuda_graphs", ""),
    (EAGLE, "EAGLEWorkerV2.__init__", "server_args"),
    (EAGLE, "EAGLEWorkerV2.forward_batch_generation", "batch on_publish grammar_barrier"),
    (EAGLE, "EAGLEWorkerV2.verify", "batch grammar_barrier"),
    (EAGLE, "EagleDraftWorker.draft", "batch"),
    (EAGLE, "EagleDraftWorker.draft_forward", "forward_batch"),
    (EAGLE, "EagleDraftWorker._draft_extend_for_prefill", "batch next_token_ids"),
    (EAGLE, "EagleDraftWorker._draft_extend_for_decode", "batch batch_result"),
    (EAGLE, "EagleDraftWorker.init_attention_backends", ""),
    (EAGLE, "EagleDraftWorker.init_attention_backend", ""),
    (EAGLE, "EagleDraftWorker.init_cuda_graphs", ""),
    (EAGLE, "EagleDraftWorker._capture_cuda_graphs", ""),
    ("speculative.eagle_utils", "get_draft_recurrent_hidden_state_spec", "model_runner"),
    ("speculative.eagle_utils", "eagle_sample", "verify_input batch"),
    ("speculative.eagle_worker_common", "_compact_accept_to_front", "x accept_index bs num_draft_tokens"),
    ("observability.trace", "TraceReqContext.trace_set_thread_attrs", "attrs"),
    ("speculative.standalone_worker_v2", "StandaloneDraftWorker", ""),
    ("speculative.standalone_worker_v2", "StandaloneWorkerV2", ""),
    ("speculative.spec_utils", "select_top_k_tokens", "i topk_p topk_index hidden_states scores topk"),
    ("model_executor.forward_context", "forward_context", ""),
    # Graphs of several widths, as SGLang's adaptive speculation keeps them.
    (GRAPHS, "DecodeCudaGraphRunner.__init__",
     "model_runner attn_backend speculative_num_steps speculative_num_draft_tokens"),
    ("model_executor.runner.base_cuda_graph_runner", "get_batch_sizes_to_capture", "model_runner captured_req_width"),
    ("speculative.eagle_draft_extend_cuda_graph_runner", "EAGLEDraftExtendCudaGraphRunner.__init__", "eagle_worker"),
    ("model_executor.model_runner", "ModelRunner.forward", "forward_batch"),
    ("model_executor.model_runner", "ModelRunner.max_decode_logits_rows", ""),
    ("model_executor.model_runner", "ModelRunner._get_attention_backend", "init_new_workspace"),
    ("utils.common", "get_device_memory_capacity", "device"),
    ("utils.common", "get_available_gpu_memory", "device gpu_id"),
    ("configs.hybrid_arch", "mambaish_config", "model_config"),
    ("configs.hybrid_arch", "hybrid_lightning_config", "model_config"),
    ("distributed.parallel_state", "GroupCoordinator.all_gather_object", "obj"),
    ("runtime_context", "RuntimeContext.override", "source"),
    # The streaming parsers of the HTTP process.
    ("function_call.function_call_parser", "FunctionCallParser.parse_stream_chunk", "chunk_text"),
    ("function_call.json_array_parser", "JsonArrayParser.parse_streaming_increment", "new_text tools"),
    (f"{OPENAI}.serving_chat", "OpenAIServingChat._process_reasoning_stream",
     "index delta reasoning_parser_dict content request finish_reason_type"),
    (f"{OPENAI}.serving_chat", "OpenAIServingChat._process_tool_call_stream",
     "index delta parser_dict content request"),
    ("utils.patch_tokenizer", "decode_without_hf_kwargs", "tokenizer token_ids skip_special_tokens"),
    *(("entrypoints.ollama.serving", f"OllamaServing._stream_{kind}_response", "gen_request raw_request") for kind in
     ("chat", "generate")),
    (f"{OPENAI}.serving_responses", "OpenAIServingResponses.responses_stream_generator_non_harmony",
     "request sampling_params result_generator"),
]  # fmt: skip


@every(("name", "path", "wanted"), USED)
def test_what_is_called_exists_with_its_parameters(release: Path, name: str, path: str, wanted: str) -> None:
    found = find(release, name, path)
    missing = set(wanted.split()) - parameters(found) if wanted else set()
    assert not missing, f"{path} lacks {sorted(missing)}"


# Module, function or class ("" for the whole module), and the code that the plugin relies on.
RELIED_ON: list[tuple[str, str, tuple[str, ...]]] = [
    # The base worker reads the width and the host tree that are set, and uses names that the plugin replaces.
    (NGRAM, "NGRAMWorker.forward_batch_generation", ("self.draft_token_num", "self.speculative_num_draft_tokens",
     "self.grammar_tree_host", "self._prepare_for_speculative_decoding(batch)",
     "move_accept_tokens_to_target_kvcache")),
    (NGRAM, "", ("assign_extend_cache_locs_func", "prepare_mamba_track_for_verify", "NgramCorpus")),
    # The target and draft-extend run with the graphs and the backends that their runners hold.
    ("model_executor.model_runner", "ModelRunner._forward_raw", ("self.decode_cuda_graph_runner", "self.attn_backend")),
    (EAGLE, "EAGLEWorkerV2.apply_runtime_state", ("model_runner.attn_backend = ",
     "model_runner.decode_cuda_graph_runner = ", "dw.speculative_num_draft_tokens = ",
     "dw.draft_extend_attn_backend = ", "dw.draft_runner.attn_backend = ", "dw.cuda_graph_runner_for_draft_extend = ")),
    (EAGLE, "EagleDraftWorker._capture_cuda_graphs", ("if self.speculative_num_steps > 1",)),
    # One function decides which batch sizes are captured. Another one sizes the logits buffer that all graphs share.
    (GRAPHS, "DecodeCudaGraphRunner.__init__", ("self.capture_bs, ", "get_batch_sizes_to_capture(model_runner")),
    ("speculative.eagle_draft_extend_cuda_graph_runner", "EAGLEDraftExtendCudaGraphRunner.__init__",
     ("self.capture_bs, ", "get_batch_sizes_to_capture(model_runner")),
    ("model_executor.model_runner", "ModelRunner.max_decode_logits_rows", ("get_batch_sizes_to_capture(",)),
    # A step whose width differs from the graphs' width runs without graphs.
    (GRAPHS, "DecodeCudaGraphRunner.can_run_graph", ("captured_req_width",)),
    # Names that are replaced while a draft model is made or drafts.
    (EAGLE, "EAGLEWorkerV2.__init__", ("EagleDraftWorker(",)),
    (EAGLE, "EagleDraftWorker.draft", ("build_eagle_verify_input(",)),
    ("speculative.standalone_worker_v2", "StandaloneWorkerV2.__init__", ("StandaloneDraftWorker(",)),
    # The rows of verification and of draft-extend are as wide as the step.
    (EAGLE, "EAGLEWorkerV2.verify", ("self.speculative_num_draft_tokens",)),
    (EAGLE, "EagleDraftWorker._draft_extend_for_decode", ("self.speculative_num_draft_tokens",
     "next_draft_input.topk_p", "next_draft_input.topk_index", "next_draft_input.hidden_states")),
    ("speculative.eagle_info", "", ("draft_token:", "custom_mask:", "positions:", "retrieve_index:",
     "retrieve_next_token:", "retrieve_next_sibling:", "retrieve_cum_len:", "spec_steps:", "topk:", "draft_token_num:",
     "seq_lens_sum:", "topk_p:", "topk_index:", "hidden_states:", "bonus_tokens:", "num_tokens_for_logprob_per_req:")),
    ("managers.schedule_batch", "", ("self.origin_input_ids", "self.origin_input_ids_unpadded", "self.output_ids",
     "self.extra_key", "self.finished_len", "self.sampling_params", "seq_lens_cpu", "req_pool_idx")),
    # Penalties are counted once a step and added to all nodes of a row.
    ("speculative.eagle_utils", "eagle_prepare_for_decode", ("batch.cumulate_penalty_output_tokens()",)),
    ("managers.schedule_batch", "ScheduleBatch.cumulate_penalty_output_tokens", ("req.output_ids[-1]",)),
    ("speculative.eagle_utils", "eagle_sample",
     (*(f"sampling_info.{name}, verify_input.draft_token_num" for name in ("acc_additive_penalties", "logit_bias")),
     "sampling_info.acc_scaling_penalties, verify_input.draft_token_num",
     *(f"sampling_info.{name}" for name in ("need_top_k_sampling", "need_top_p_sampling", "is_all_greedy")))),
    ("sampling.sampling_batch_info", "", ("need_min_p_sampling:", "min_ps:")),
    # Mamba layers tell the kernel how wide a step is, not how much room a row has.
    ("layers.attention.mamba.mamba", "", ("intermediate_states_buffer=layer_cache.intermediate_ssm",
     "cache_steps=draft_token_num")),
    # The launcher's hooks of a replay.
    ("managers.tokenizer_manager", "", ("async def generate_request(self, obj", "ServerStatus.Starting",
     "self._validate_one_request(obj, input_ids)")),
    # A forward's logits are those that are sampled and verified.
    ("managers.tp_worker", "TpModelWorker.forward_batch_generation", ("out.logits_output",)),
    ("model_executor.model_runner", "", ("self.is_draft_worker", "class ModelRunnerOutput", "logits_output:",
     "self.server_args", "req_to_token_pool")),
    ("model_executor.forward_batch_info", "", ("req_pool_indices:", "seq_lens:", "positions:", "spec_info:",
     "def is_target_verify", "def is_extend")),
    # A step tells a request how many tokens it accepted, and its result carries the drafted number of each row.
    ("managers.schedule_batch", "Req", ("self.finished_reason", "self.finished_len", "self.to_finish",
     "self.output_ids", "self.grammar")),
    ("managers.scheduler_components.batch_result_processor", "", ("req.update_finish_state(new_accept_len)",)),
    ("managers.utils", "GenerationBatchResult", ("cap_lens", "next_draft_input", "speculative_num_draft_tokens")),
    # The message that carries an administrator's commands; clients cannot choose its id.
    ("managers.io_struct", "BaseReq", ("rid: Optional[str]",)),
    ("managers.io_struct", "GetInternalStateReq", ("(BaseReq",)),
    ("managers.io_struct", "GetInternalStateReqOutput", ("internal_state: Dict[str, Any]",)),
    ("managers.tokenizer_control_mixin", "", ("async def get_internal_state(self",
     "('get_internal_state', GetInternalStateReqOutput)", "req = GetInternalStateReq()")),
    ("entrypoints.http_server", "", ("app = FastAPI(", "from sglang.srt.utils.auth import", "admin_api_key")),
    ("utils.auth", "AuthLevel", ("ADMIN_OPTIONAL",)),
    # The hooks of predicted outputs.
    *((f"{OPENAI}.protocol", name, ("usage: UsageInfo",)) for name in ("CompletionResponse", "ChatCompletionResponse")),
    (f"{OPENAI}.protocol", "CompletionStreamResponse", ("usage: Optional[UsageInfo] = None",)),
    (f"{OPENAI}.protocol", "ChatCompletionStreamResponse", ("usage: Optional[UsageInfo] = None",)),
    (f"{OPENAI}.serving_base", "",
     ("async def handle_request(self, request: OpenAIServingRequest, raw_request: Request)",)),
    (f"{OPENAI}.usage_processor", "UsageProcessor", ("sum(completion_tokens.values())",
     "sum((r['meta_info'].get('completion_tokens', 0) for r in responses))")),
    ("managers.tokenizer_manager", "TokenizerManager", ("state = self.rid_to_state[obj.rid]",
     "state.output_ids.extend(delta_output_ids)")),
]  # fmt: skip


@every(("name", "path", "wanted"), RELIED_ON)
def test_code_that_is_relied_on(release: Path, name: str, path: str, wanted: tuple[str, ...]) -> None:
    text = source(release, name, path)
    assert not [code for code in wanted if code not in text]


# Module, function, and code that must come in this order.
ORDERS = [
    # A step with a draft model drafts, verifies and extends.
    (EAGLE, "EAGLEWorkerV2.forward_batch_generation", ("self.draft_worker.draft(batch)", "self.verify(", "on_publish(",
     "_draft_extend_for_decode(")),
    # Two kernels decide what is kept of a distribution.
    ("speculative.eagle_utils", "eagle_sample", ("target_probs = top_k_renorm_prob(target_probs, ",
     "target_probs = top_p_renorm_prob(target_probs, ")),
    ("managers.tp_worker", "TpModelWorker.forward_batch_generation", ("self.model_runner.forward(forward_batch",
     "self.model_runner.sample(")),
]  # fmt: skip


@every(("name", "path", "steps"), ORDERS)
def test_code_that_is_relied_on_comes_in_this_order(
    release: Path, name: str, path: str, steps: tuple[str, ...]
) -> None:
    text, place = source(release, name, path), 0
    for step in steps:
        place = text.index(step, place)


# Module, function or class, and what it must not have, because agentspec does it or assumes that nothing else does.
ABSENT = [
    # No other endpoint has streaming parsers of its own.
    ("entrypoints.anthropic.serving", "", "parse_stream"),
    ("entrypoints.ollama.serving", "", "parse_stream"),
    # docs/operations.md says that these endpoints read no field that names a tenant.
    *((f"entrypoints.{api}.serving", "", field) for api in ("anthropic", "ollama") for field in ("extra_key", "cache_salt")),
    # Verification does not apply these two.
    ("speculative.eagle_utils", "eagle_sample", "custom_logit_processor"),
    ("speculative.eagle_utils", "eagle_sample", "min_ps"),
    # No endpoint that takes a prediction has a way around the hooks.
    *((f"{OPENAI}.{name}", "", "def handle_request") for name in ("serving_chat", "serving_completions")),
    *((f"{OPENAI}.{name}", "", "UsageInfo(") for name in ("serving_chat", "serving_completions")),
]  # fmt: skip


@every(("name", "path", "unwanted"), ABSENT)
def test_code_that_must_not_be_there(release: Path, name: str, path: str, unwanted: str) -> None:
    assert unwanted not in source(release, name, path)


@every("endpoint", ["serving_chat", "serving_responses"])
def test_endpoints_stream_through_the_parsers_that_get_single_tokens(release: Path, endpoint: str) -> None:
    text = source(release, f"{OPENAI}.{endpoint}")
    assert all(f"{parser}(" in text for parser in ("FunctionCallParser", "JsonArrayParser", "ReasoningParser"))
    # No endpoint asks a detector by itself, or the detector's method of the same name.
    assert text.count(".parse_stream_chunk(delta)") == 2
    streamed = [line for line in text.splitlines() if ".parse_streaming_increment(" in line]
    assert streamed and all("parser.parse_streaming_increment(" in line for line in streamed)


def test_verification_finds_its_kernels_where_they_are_replaced(release: Path) -> None:
    """compat.renorm_kernels() knows these places. Those of AMD's GPUs and of NPUs are left out."""
    imports = [
        node for node in ast.walk(module(release, "speculative.eagle_utils")) if isinstance(node, ast.ImportFrom)
    ]
    names = {(node.module, alias.name): alias.asname or alias.name for node in imports for alias in node.names}
    found = {place for place, name in names.items() if name == "top_k_renorm_prob"}
    found -= {("sgl_kernel_npu.sample", "top_k_renorm_prob")}
    found -= {("sglang.kernels.ops.sampling.renorm_triton", "top_k_renorm_probs_triton")}
    of_sglang, of_library = (
        ("sglang.kernels.ops.sampling.renorm", "top_k_renorm_prob"),
        ("sgl_kernel", "top_k_renorm_prob"),
    )
    assert found in ({of_sglang}, {of_library}, {of_library, ("flashinfer.sampling", "top_k_renorm_probs")})


def test_the_server_s_internal_state_can_be_extended(release: Path) -> None:
    try:
        text = (release / "sglang/srt/managers/scheduler_components/internal_state.py").read_text(encoding="utf-8")
    except FileNotFoundError:
        find(release, "managers.scheduler", "Scheduler.get_internal_state")
    else:
        assert "def _add_speculative(self, state" in text


def test_what_the_hooks_of_predicted_outputs_need(release: Path) -> None:
    for name in ("CompletionRequest", "ChatCompletionRequest"):
        text = source(release, f"{OPENAI}.protocol", name)
        assert "custom_params: Optional[Dict] = None" in text
        # If a release kept the field, it might also do something with it.
        assert "prediction" not in text.replace("_prediction", "")
    for name in ("serving_chat", "serving_completions"):
        assert "['meta_info'].get('completion_tokens', 0)" in source(release, f"{OPENAI}.{name}")
    usage = source(release, f"{OPENAI}.usage_processor", "UsageProcessor")
    # calculate_token_usage makes the usage of the two others.
    assert usage.count("UsageInfo(") == 1
    assert usage.count("UsageProcessor.calculate_token_usage(") == 2
    # A list that lies deeper than one level is not among the values of custom_params.
    values = (release / "sglang/srt/sampling/sampling_params.py").read_text(encoding="utf-8")
    assert "List[_JsonScalar],\n    Dict[str, _JsonScalar]," in values


def test_what_is_refused_is_lacking_in_sglang(release: Path) -> None:
    """If this fails, SGLang has learned one of these, and refusals.py may support it."""
    if not (release / "sglang" / "srt" / "arg_groups" / "speculative_hook.py").is_file():
        pytest.skip("an earlier release checks these arguments elsewhere")
    # Attention data parallelism.
    for handler in ("_handle_ngram", "_handle_eagle_family"):
        assert "does not support dp attention" in source(release, "arg_groups.speculative_hook", handler)
    # A decode server of disaggregated prefill.
    handed = source(release, "speculative.spec_info", "SpeculativeAlgorithm.build_disagg_draft_input")
    assert "is_ngram" not in handed and "is_standalone" not in handed
    plugins = find(release, "speculative.spec_registry", "CustomSpecAlgo.build_disagg_draft_input")
    assert ast.unparse(plugins.body[-1]) == "return None"
