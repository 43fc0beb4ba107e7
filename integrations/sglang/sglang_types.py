"""What agentspec uses of SGLang's objects, for the type checker. SGLang itself is not typed here.

Each protocol has the name of SGLang's class, or of what it stands for, and only the attributes that are read or set.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import torch


class ModelConfig(Protocol):
    """The configuration of a model."""

    vocab_size: int
    context_len: int
    hidden_size: int
    num_attention_heads: int
    kv_lora_rank: int
    """Only models with MLA have it."""
    hf_config: Any
    hf_text_config: Any
    is_encoder_decoder: bool
    has_attention_sinks: bool


class ServerArgs(Protocol):
    """The record of server arguments. All other fields are read by `arguments.setting`."""

    model_path: str
    speculative_num_draft_tokens: int

    def get_model_config(self) -> ModelConfig: ...

    def use_mla_backend(self) -> bool: ...


class FinishReason(Protocol):
    """Why a request ended."""

    def to_json(self) -> Mapping[str, Any]: ...


class TraceContext(Protocol):
    """A request's spans in one process."""

    tracing_enable: bool

    def trace_set_thread_attrs(self, attrs: dict[str, Any]) -> None: ...


class TimeStats(Protocol):
    """The times of a request, and its spans."""

    trace_ctx: TraceContext


class Req(Protocol):
    """A request in a scheduler process."""

    rid: str
    origin_input_ids: Sequence[int]
    output_ids: Sequence[int]
    sampling_params: object
    to_finish: object
    finished_reason: FinishReason | None
    time_stats: TimeStats

    def finished(self) -> bool: ...


class EndingReq(Req, Protocol):
    """A request with the attributes that say where its answer ends."""

    grammar: object
    finished_len: int | None
    reasoning_tokens: int


class SessionNode(Protocol):
    """A turn of a session."""

    req: EndingReq


class Session(Protocol):
    """The turns that a client continues with session_params."""

    req_nodes: dict[str, SessionNode]


class ForwardMode(Protocol):
    """What a batch is run for."""

    def is_decode(self) -> bool: ...

    def is_extend(self) -> bool: ...

    def is_target_verify(self) -> bool: ...


class ReqToTokenPool(Protocol):
    """The token table: a row of KV slots for each request."""

    req_to_token: torch.Tensor


class NgramDraftInput(Protocol):
    """What a verify step of NGRAM relays to the next step."""

    accept_tokens: torch.Tensor
    accept_lens: torch.Tensor
    draft_token_num: int
    num_tokens_per_req: int
    num_tokens_for_logprob_per_req: int


class EagleState(Protocol):
    """The state (`EagleDraftInput`) with which the next draft of a draft model begins."""

    topk_p: torch.Tensor
    topk_index: torch.Tensor
    hidden_states: torch.Tensor


class ScheduleBatch(Protocol):
    """A batch on its way to a worker."""

    reqs: list[Req]
    forward_mode: ForwardMode
    extend_lens: list[int]
    prefix_lens: list[int]
    has_grammar: bool
    input_ids: torch.Tensor
    out_cache_loc: torch.Tensor
    req_pool_indices: torch.Tensor
    req_to_token_pool: ReqToTokenPool
    seq_lens: torch.Tensor
    seq_lens_cpu: torch.Tensor | None
    seq_lens_sum: int
    spec_info: Any
    """The relayed state of the step before, then the input of this verification."""


class LogitsOutput(Protocol):
    """The logits of a forward."""

    next_token_logits: torch.Tensor | None


class BatchResult(Protocol):
    """What a worker returns for a batch (`GenerationBatchResult`)."""

    next_token_ids: torch.Tensor
    accept_lens: torch.Tensor
    new_seq_lens: torch.Tensor
    cap_lens: torch.Tensor
    next_draft_input: Any
    """The relayed state for the next step, of the kind of the worker."""


class ForwardOutput(Protocol):
    """What a model runner returns for a forward."""

    logits_output: LogitsOutput


class ForwardBatch(Protocol):
    """A batch on its way through a model."""

    forward_mode: ForwardMode
    req_pool_indices: torch.Tensor
    seq_lens: torch.Tensor
    positions: torch.Tensor
    spec_info: object
    capture_hidden_mode: object


class GraphRunner(Protocol):
    """The captured graphs of one kind of forward."""

    capture_bs: Sequence[int]


class ModelRunner(Protocol):
    """Runs a model in a scheduler process."""

    server_args: ServerArgs
    model_config: ModelConfig
    req_to_token_pool: ReqToTokenPool
    is_draft_worker: bool
    device: str
    gpu_id: int
    attn_backend: object
    init_new_workspace: bool
    tp_group: ProcessGroup
    graph_memory_usage: dict[str, float]

    def _get_attention_backend(self, *, init_new_workspace: bool) -> object: ...


class TpWorker(Protocol):
    """The worker of a model (`TpModelWorker`)."""

    model_runner: ModelRunner


class DraftWorker(Protocol):
    """The worker of a draft model."""

    draft_runner: ModelRunner
    topk: int
    speculative_num_steps: int
    speculative_num_draft_tokens: int
    draft_extend_attn_backend: object
    cuda_graph_runner_for_draft_extend: GraphRunner | None

    def init_attention_backend(self) -> None: ...

    def _capture_cuda_graphs(self) -> None: ...


class ProcessGroup(Protocol):
    """The ranks that share a model (`GroupCoordinator`)."""

    world_size: int

    def all_gather_object(self, obj: object) -> list[Any]: ...

    def broadcast_object(self, obj: Any, src: int) -> Any: ...

    def broadcast(self, input_: torch.Tensor, src: int) -> torch.Tensor:
        """Broadcasts a tensor of the device, in the order of each rank's current stream."""
        ...


class Tokenizer(Protocol):
    """The served model's tokenizer, of transformers."""

    def __hash__(self) -> int: ...

    def encode(self, text: str, *, add_special_tokens: bool, split_special_tokens: bool) -> list[int]: ...

    def decode(self, token_ids: list[int], *, skip_special_tokens: bool) -> str: ...

    def apply_chat_template(
        self, conversation: Sequence[object], *, tokenize: bool, add_generation_prompt: bool = False
    ) -> str: ...


class InternalStateReply(Protocol):
    """A scheduler's answer to a question about its state (`GetInternalStateReqOutput`)."""

    internal_state: dict[str, Any]


class TokenizerManager(Protocol):
    """What the HTTP process hands requests to."""

    server_args: ServerArgs
    model_config: ModelConfig
    tokenizer: Tokenizer | None
    num_reserved_tokens: int
    rid_to_state: dict[str, ReqState]
    get_internal_state_communicator: Callable[[object], Awaitable[list[InternalStateReply]]]

    def auto_create_handle_loop(self) -> None: ...


class ReqState(Protocol):
    """What the HTTP process knows of a running request."""

    output_ids: list[int]


class OpenAIServing(Protocol):
    """Answers the requests of one of OpenAI's endpoints."""

    tokenizer_manager: TokenizerManager

    def create_error_response(self, message: str, *, param: str | None = None) -> object: ...


class Usage(Protocol):
    """OpenAI's usage of a response, a pydantic model."""

    def model_dump(self) -> dict[str, Any]: ...


class GenerateReqInput(Protocol):
    """A request in the HTTP process; the other fields are looked for and may be missing."""

    rid: str
    sampling_params: Any


class ChatMessage(Protocol):
    """A message of a chat, a model of pydantic."""

    def model_dump(self, *, exclude_none: bool) -> dict[str, Any]: ...


class ChatRequest(Protocol):
    """A client's chat (`ChatCompletionRequest`)."""

    messages: list[ChatMessage]


class ToolCallItem(Protocol):
    """A part of a tool call, a model of pydantic: a call's name, or some of its arguments, or both."""

    tool_index: int
    name: str | None
    parameters: str

    def model_copy(self, *, update: dict[str, Any]) -> ToolCallItem: ...


class AbortReq(Protocol):
    """Asks a scheduler to abort requests."""

    rid: str | None
    abort_all: bool


class Scheduler(Protocol):
    """A scheduler process."""

    draft_worker: object
    waiting_queue: list[Req]
    max_queued_requests: int | None


class InternalStateComponent(Protocol):
    """The part of a newer scheduler that tells its state."""

    scheduler: Scheduler


class Algorithm(Protocol):
    """A member of `SpeculativeAlgorithm`."""

    name: str


class HttpApplication(Protocol):
    """The application of the HTTP process, of Starlette."""

    def add_route(
        self, path: str, route: Callable[..., Any], methods: list[str] | None = None, *, include_in_schema: bool = True
    ) -> None: ...
