"""Everything of a running SGLang that differs between supported releases. It is found by probing, never by version.

The supported releases are 0.5.17 to 0.5.23. They differ in:

* the settings of the running process: `server_args` itself, or the namespaces of `runtime_context`;
* where `/server_info` is filled: `Scheduler.get_internal_state`, or `InternalStateComponent._add_speculative`;
* where the verification of sampled answers finds its kernels;
* what ends an answer that reaches max_tokens and a stop in the same step: max_tokens, or the stop.

How the record of server arguments is read is in arguments.py.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from agentspec.errors import UnsupportedError
from agentspec.integrations.sglang import arguments
from agentspec.integrations.sglang.sglang_types import (
    DraftWorker,
    ForwardBatch,
    GraphRunner,
    HttpApplication,
    ModelRunner,
    ProcessGroup,
    Req,
    ServerArgs,
    TokenizerManager,
)

if TYPE_CHECKING:
    from torch import Tensor

# Attribute of a ServerArgs record for what was asked of a draft model; see arguments.SETTINGS_ATTRIBUTE.
SHAPE_ATTRIBUTE = "_agentspec_asked_shape"
DRAFT_SHAPE_FIELDS = ("speculative_num_steps", "speculative_eagle_topk")
# Default number of steps of a draft model; the most steps on a CPU, where a draft can stop early; and the number of
# tokens that each step continues with.
DRAFT_STEPS = 4
MOST_DRAFT_STEPS = 8
DRAFT_TOPK = 2
# Attribute of a model runner that verifies each row with its own nodes alone. SGLang's own runners have none.
_UNPADDED = "verifies_unpadded"


@dataclass(frozen=True, slots=True)
class DraftShape:
    """The shape of the tree that a draft model proposes in a step. It does not depend on the verified width."""

    steps: int
    """Number of passes of the draft model, >= 1. The first one is draft-extend."""
    topk: int
    """Number of tokens that each pass continues with, >= 1; 1 makes chains."""


def note_asked_shape(server_args: ServerArgs) -> None:
    """Notes on the record which draft shape the operator asked for, before SGLang's arguments are replaced."""
    if asked_shape(server_args) is None:
        asked = {name: arguments.setting(server_args, name) for name in DRAFT_SHAPE_FIELDS}
        setattr(server_args, SHAPE_ATTRIBUTE, asked)


def asked_shape(server_args: ServerArgs) -> dict[str, int | None] | None:
    """The `DRAFT_SHAPE_FIELDS` that the operator asked for, each None if left to agentspec. None if not noted yet."""
    noted = getattr(server_args, SHAPE_ATTRIBUTE, None)
    return noted if isinstance(noted, dict) else None


def draft_shape(server_args: ServerArgs) -> DraftShape:
    """The shape of a draft model's drafts, from a resolved record with agentspec's arguments.

    The operator asks for it with `--speculative-num-steps` and `--speculative-eagle-topk`. SGLang itself gets the shape
    of the verify step under these names; see registration.py.
    """
    trees = int(arguments.setting(server_args, "speculative_eagle_topk") or 1) > 1
    return asked_draft_shape(server_args, trees=trees)


def asked_draft_shape(server_args: ServerArgs, *, trees: bool) -> DraftShape:
    """Like draft_shape(), before SGLang's arguments are replaced. `trees`: whether trees are verified."""
    asked = asked_shape(server_args) or {}
    is_cpu = arguments.setting(server_args, "device") == "cpu"
    steps = asked.get("speculative_num_steps") or (MOST_DRAFT_STEPS if is_cpu else DRAFT_STEPS)
    topk = (asked.get("speculative_eagle_topk") or DRAFT_TOPK) if trees else 1
    # A draft that is longer than a verified row would be cut anyway.
    longest = int(arguments.setting(server_args, "speculative_num_draft_tokens")) - 1
    return DraftShape(min(int(steps), longest), int(topk))


def extra_row_slots() -> int:
    """The most slots that a row of the token table needs beyond its text; 0 if the server does not run agentspec."""
    try:
        context = importlib.import_module("sglang.srt.runtime_context")
        if not arguments.wants_agentspec(context.get_context().server_args):
            return 0
        spec = context.get_spec()
        width, drafted = spec.speculative_num_draft_tokens, spec.speculative_num_steps * spec.speculative_eagle_topk
    except Exception:
        # No configuration is published in this process, so nothing speculates in it.
        return 0
    return max(int(width), int(drafted))


def tp_rank(worker: object) -> int:
    with contextlib.suppress(ImportError, AttributeError):
        return int(importlib.import_module("sglang.srt.runtime_context").get_parallel().tp_rank)
    return int(getattr(worker, "tp_rank", 0))


def data_parallel_rank() -> int | None:
    """Which replica of `--dp-size` this process is of; None without replicas, and in releases that do not tell."""
    with contextlib.suppress(ImportError, AttributeError):
        rank = importlib.import_module("sglang.srt.runtime_context").get_parallel().dp_rank
        return None if rank is None else int(rank)
    return None


def tensor_parallel_group() -> ProcessGroup | None:
    """The group whose ranks must verify the same trees; None if there is only one rank."""
    with contextlib.suppress(ImportError, AttributeError):
        group: ProcessGroup = importlib.import_module("sglang.srt.runtime_context").get_parallel().tp_group
        return group if group.world_size > 1 else None
    group = importlib.import_module("sglang.srt.distributed").get_tp_group()
    return group if group.world_size > 1 else None


def draft_model_path(server_args: ServerArgs) -> str:
    """The path of the draft model; empty if there is none."""
    return str(arguments.setting(server_args, "speculative_draft_model_path") or "")


def verify_graphs(model_runner: ModelRunner) -> GraphRunner | None:
    """The graphs that SGLang captured for verify steps of a target; None if it captured none."""
    graphs: GraphRunner | None = getattr(model_runner, "decode_cuda_graph_runner", None)
    mode = getattr(graphs, "capture_forward_mode", None)
    return graphs if mode is not None and mode.is_target_verify() else None


def target_graphs(model_runner: ModelRunner) -> tuple[object, GraphRunner] | None:
    """The attention backend and the captured graphs of a target's verify steps; None if none were captured."""
    graphs = verify_graphs(model_runner)
    return None if graphs is None else (model_runner.attn_backend, graphs)


def has_adapters(model_runner: ModelRunner) -> bool:
    """Whether requests may ask for adapters (LoRA). The older release lacks the attribute if LoRA is off."""
    return getattr(model_runner, "lora_manager", None) is not None


def loaded_adapters(model_runner: ModelRunner) -> Mapping[str, Any]:
    """The adapters (LoRA) that SGLang has loaded, by id; none if LoRA is off."""
    manager = getattr(model_runner, "lora_manager", None)
    return {} if manager is None else manager.loras


def batch_sizes_to_capture(model_runner: ModelRunner, width: int) -> tuple[int, ...]:
    """The batch sizes, ascending, for which SGLang would capture verify steps of `width` tokens per row."""
    module = importlib.import_module("sglang.srt.model_executor.runner.base_cuda_graph_runner")
    return tuple(module.get_batch_sizes_to_capture(model_runner, width)[0])


def captured_batch_sizes(graphs: GraphRunner) -> tuple[int, ...]:
    """The batch sizes, ascending, for which graphs were captured. Batches of other sizes are padded to the next one."""
    return tuple(graphs.capture_bs)


def free_memory(model_runner: ModelRunner) -> float:
    """GB that are free on this rank's device. Ranks may call this at different times."""
    utils = importlib.import_module("sglang.srt.utils")
    return float(utils.get_available_gpu_memory(model_runner.device, model_runner.gpu_id))


def graph_memory(model_runner: ModelRunner, draft_worker: DraftWorker | None) -> float:
    """GB of SGLang's own graphs of verify steps and, with a draft worker, of draft-extend."""
    extend = getattr(draft_worker, "_specialized_graph_memory_usage", {})
    return float(model_runner.graph_memory_usage.get("target_verify", 0.0) + extend.get("draft_extend", 0.0))


def graph_seconds(model_runner: ModelRunner, draft_worker: DraftWorker | None) -> float:
    """Seconds that SGLang took to capture the graphs that graph_memory() counts."""
    extend = getattr(draft_worker, "_specialized_graph_time_usage", {})
    own = getattr(model_runner, "graph_time_usage", {})
    return float(own.get("target_verify", 0.0) + extend.get("draft_extend", 0.0))


def verifies_unpadded(model_runner: ModelRunner) -> bool:
    """Whether rows of a verify step may differ in width at no cost. SGLang's own runners pad them; another may not."""
    return bool(getattr(model_runner, _UNPADDED, False))


def verify_padded(model_runner: ModelRunner) -> None:
    """Makes a runner that does not need padding pad the rows of verify steps to one width nevertheless."""
    if verifies_unpadded(model_runner):
        setattr(model_runner, _UNPADDED, False)


def padding_skipped(model_runner: ModelRunner) -> int:
    """Number of padding tokens that a runner without padding has saved so far."""
    return int(getattr(model_runner, "padding_skipped", 0))


@contextlib.contextmanager
def configured(record: ServerArgs | None = None, **values: object) -> Iterator[None]:
    """Gives SGLang's configuration of speculation these values while attention backends and graphs are made. `record`:
    the server arguments that a model runner keeps. Older releases read some of the values from it."""
    context = importlib.import_module("sglang.srt.runtime_context")
    spec = context.get_spec()
    kept = {name: getattr(spec, name) for name in values}
    recorded = {name: getattr(record, name, None) for name in values}
    context.get_context().override("agentspec.capture", **values)
    _override_record(record, "agentspec.capture", values)
    try:
        yield
    finally:
        context.get_context().override("agentspec.captured", **kept)
        _override_record(record, "agentspec.captured", recorded)


def _override_record(record: Any, source: str, values: dict[str, object]) -> None:
    """Sets fields of a published record. The oldest release has a method for that, and the next one only a guard against
    it. Where the record is no dataclass, nothing reads these fields."""
    override = getattr(record, "override", None)
    if override is not None:
        override(source, **values)
    elif dataclasses.is_dataclass(record):
        for name, value in values.items():
            object.__setattr__(record, name, value)


def capture_verify_graphs(
    model_runner: ModelRunner, width: int, *, topk: int | None = None
) -> tuple[object, GraphRunner]:
    """Makes an attention backend and captures graphs for verify steps of `width` tokens per row. Existing ones stay.

    `topk`: SGLang's `speculative_eagle_topk` for these steps; None: that of the server.
    """
    widest, new_workspace = verify_graphs(model_runner), model_runner.init_new_workspace
    assert widest is not None
    steps = max(width - 1, 1)
    shape = {"speculative_num_draft_tokens": width, "speculative_num_steps": steps}
    if topk is not None:
        shape["speculative_eagle_topk"] = topk
    # Backends size their buffers by the published configuration. The older release reads topk from the record.
    with configured(None if topk is None else model_runner.server_args, **shape):
        try:
            backend = model_runner._get_attention_backend(init_new_workspace=True)
            make: Callable[..., GraphRunner] = type(widest)
            graphs = make(
                model_runner,
                attn_backend=backend,
                speculative_num_steps=steps,
                speculative_num_draft_tokens=width,
            )
        finally:
            model_runner.init_new_workspace = new_workspace
    return backend, graphs


# The attributes of a draft worker and of its model runner that are set when its attention backends and graphs are made.
_MADE_BY_DRAFT_WORKER = (
    "speculative_num_steps", "speculative_num_draft_tokens", "draft_attn_backend", "draft_extend_attn_backend",
    "cuda_graph_runner", "cuda_graph_runner_for_draft_extend",
)  # fmt: skip
_MADE_FOR_DRAFT_RUNNER = ("attn_backend", "draft_attn_backend")


def capture_draft_extend(draft_worker: DraftWorker, width: int) -> tuple[object, GraphRunner]:
    """Makes an attention backend and captures graphs for draft-extend over rows of `width` tokens. Existing ones stay.

    The graphs of the draft model's passes do not depend on the width and are not captured again.
    """
    runner = draft_worker.draft_runner
    kept: list[tuple[object, str, object]] = []
    kept += [(draft_worker, name, getattr(draft_worker, name)) for name in _MADE_BY_DRAFT_WORKER]
    kept += [(runner, name, getattr(runner, name)) for name in _MADE_FOR_DRAFT_RUNNER]
    shape = {"speculative_num_steps": draft_worker.speculative_num_steps, "speculative_eagle_topk": draft_worker.topk}
    with (
        configured(runner.server_args, speculative_num_draft_tokens=width, **shape),
        draft_model_context(draft_worker),
    ):
        try:
            draft_worker.speculative_num_draft_tokens = width
            # A draft of one step has no further passes, so only draft-extend is captured.
            draft_worker.speculative_num_steps = 1
            draft_worker.init_attention_backend()
            draft_worker._capture_cuda_graphs()
            graphs = draft_worker.cuda_graph_runner_for_draft_extend
            assert graphs is not None
            return draft_worker.draft_extend_attn_backend, graphs
        finally:
            for owner, name, value in kept:
                setattr(owner, name, value)


@contextlib.contextmanager
def draft_model_context(draft_worker: DraftWorker) -> Iterator[None]:
    """The contexts that SGLang's workers enter around each forward of their draft model."""
    module = importlib.import_module("sglang.srt.speculative.eagle_worker_v2")
    # The newer release has a layout of the draft model's ranks, and the older one their group.
    layout = getattr(draft_worker, "parallel_layout", None)
    with contextlib.ExitStack() as stack:
        own = getattr(draft_worker, "draft_tp_context", None)
        if layout is not None:
            stack.enter_context(module.draft_tp_context(layout))
        elif own is not None:
            stack.enter_context(own(draft_worker.draft_runner.tp_group))
        stack.enter_context(module.speculative_moe_backend_context())
        stack.enter_context(module.speculative_moe_a2a_backend_context())
        yield


def is_capturing() -> bool:
    """Whether this process is capturing a graph, or runs a forward to warm up for it."""
    # A process that captures has loaded this module.
    module = sys.modules.get("sglang.srt.model_executor.runner_utils.capture_mode")
    return module is not None and bool(module.get_is_capture_mode())


def http_application() -> HttpApplication | None:
    """The application whose routes this process serves; None if it serves none."""
    app: HttpApplication | None = getattr(sys.modules.get("sglang.srt.entrypoints.http_server"), "app", None)
    return app


def has_rust_server() -> bool:
    """Whether SGLang's server in Rust would take the requests, instead of the HTTP process. Older releases have none."""
    # A process that handles server arguments has loaded the module.
    variables = getattr(sys.modules.get("sglang.srt.environ"), "envs", None)
    flag = getattr(variables, "SGLANG_RUST_SERVER", None)
    return flag is not None and bool(flag.get())


def mark_admin_endpoint(endpoint: Callable[..., object]) -> None:
    """Tells SGLang's middleware, if there is one, that an endpoint takes the admin key instead of the clients' key."""
    # The process that serves the endpoint has loaded the module of its middleware.
    auth = sys.modules.get("sglang.srt.utils.auth")
    if auth is not None:
        auth.auth_level(auth.AuthLevel.ADMIN_OPTIONAL)(endpoint)


def internal_state_hook() -> tuple[str, bool]:
    """The dotted path of the method to hook for `/server_info`, and whether it takes the state dict or returns it."""
    with contextlib.suppress(ImportError):
        module = importlib.import_module("sglang.srt.managers.scheduler_components.internal_state")
        for name, member in vars(module).items():
            if isinstance(member, type) and "_add_speculative" in vars(member):
                return f"{module.__name__}.{name}._add_speculative", True
    return "sglang.srt.managers.scheduler.Scheduler.get_internal_state", False


def is_target_verify(forward_batch: ForwardBatch) -> bool:
    return bool(forward_batch.forward_mode.is_target_verify())


def logit_positions(forward_batch: ForwardBatch, rows: int) -> tuple[Tensor, Tensor]:
    """The request slot and the position of each row of a target's logits, int[rows] each.

    The rows are the last token of each request or, in a verify step, all nodes of its tree.
    """
    slots = forward_batch.req_pool_indices
    if not is_target_verify(forward_batch):
        return slots[:rows], forward_batch.seq_lens[:rows] - 1
    positions: Tensor | None = getattr(forward_batch.spec_info, "positions", None)
    if positions is None:
        positions = forward_batch.positions
    return slots.repeat_interleave(rows // slots.shape[0]), positions[:rows]


def request_slot(request: Req) -> int:
    """The row of a scheduled request in the token table."""
    holder = getattr(request, "kv", None)
    slot = getattr(holder, "req_pool_idx", None)
    if slot is None:
        slot = getattr(request, "req_pool_idx", None)
    return int(slot)  # type: ignore[arg-type]


def is_starting(manager: TokenizerManager) -> bool:
    """Whether a server has not reported yet that it is ready. Until then it sends itself requests to warm up."""
    return getattr(getattr(manager, "server_status", None), "name", "") == "Starting"


@contextlib.contextmanager
def draft_workers(eagle: type, standalone: type) -> Iterator[None]:
    """Replaces SGLang's draft worker classes by these while a worker with a draft model is made."""
    places = [
        (importlib.import_module("sglang.srt.speculative.eagle_worker_v2"), "EagleDraftWorker", eagle),
        (importlib.import_module("sglang.srt.speculative.standalone_worker_v2"), "StandaloneDraftWorker", standalone),
    ]
    originals = [getattr(module, name) for module, name, _ in places]
    for module, name, ours in places:
        setattr(module, name, ours)
    try:
        yield
    finally:
        for (module, name, _), original in zip(places, originals, strict=True):
            setattr(module, name, original)


@contextlib.contextmanager
def draft_configuration(draft_runner: ModelRunner, shape: DraftShape) -> Iterator[None]:
    """Gives SGLang's configuration the shape of the drafts while a draft model's backends and graphs are made.

    At any other time the configuration has the shape of the verify step.
    """
    with configured(draft_runner.server_args, speculative_num_steps=shape.steps, speculative_eagle_topk=shape.topk):
        yield


def draft_step_context(backend: object, forward_batch: ForwardBatch) -> AbstractContextManager[object]:
    """The context of one step of the drafting loop. The newer release needs the batch for it."""
    module = importlib.import_module("sglang.srt.model_executor.forward_context")
    known = inspect.signature(module.forward_context).parameters
    rest = {"forward_batch": forward_batch} if "forward_batch" in known else {}
    context: AbstractContextManager[object] = module.forward_context(
        module.ForwardContext(attn_backend=backend), **rest
    )
    return context


def capture_last_hidden(forward_batch: ForwardBatch) -> None:
    """Makes the forward return the draft model's hidden states, also for a standalone draft model."""
    module = importlib.import_module("sglang.srt.model_executor.forward_batch_info")
    forward_batch.capture_hidden_mode = module.CaptureHiddenMode.LAST


def full_mask_by_default() -> bool:
    """Whether tree masks cover the prefix too on SGLang's device."""
    mode = importlib.import_module("sglang.srt.speculative.eagle_utils").default_tree_mask_mode()
    return bool(mode.name == "FULL_MASK")


def wants_full_mask(backend: object) -> bool:
    """Whether the tree mask of an attention backend covers the prefix too. Raises UnsupportedError if the attention
    backend needs another layout of the mask."""
    mode = getattr(getattr(backend, "verify_mask", None), "mode", None)
    if mode is None:
        return full_mask_by_default()
    if mode.name not in ("FULL_MASK", "QLEN_ONLY"):
        raise UnsupportedError(
            f"masks must be of the mode FULL_MASK or QLEN_ONLY, the attention backend {type(backend).__name__} has "
            f"{mode.name}; choose --attention-backend triton or flashinfer"
        )
    return bool(mode.name == "FULL_MASK")


def leave_lengths_to_worker(model_runner: ModelRunner) -> bool:
    """Makes the scheduler of this process prepare the next step without waiting for the accepted tokens.

    For NGRAM, SGLang would always read the lengths of the texts back to the host, whether or not the attention backend
    needs them. After this call, a worker finds None as the lengths of a batch on the host, as with EAGLE on a GPU, and
    must set them itself.

    Call it before the scheduler's relay is made. Returns False and changes nothing if other parts of SGLang read the
    lengths too: if batches are split in two, if forward passes are reported, and for layers that keep states.
    """
    readers = ("enable_two_batch_overlap", "enable_forward_pass_metrics")
    read = any(arguments.setting(model_runner.server_args, name) for name in readers)
    if read or arguments.has_token_states(model_runner.model_config):
        return False
    name = "decide_needs_cpu_seq_lens"
    modules = [importlib.import_module(f"sglang.srt.managers.{module}") for module in ("overlap_utils", "scheduler")]
    for module in modules:
        if hasattr(module, name):
            setattr(module, name, lambda *unused: False)
    return True


def renorm_kernels() -> tuple[Any, str, str]:
    """Where SGLang's verification finds the kernels of top_k and top_p: the module, and their names in it."""
    verification: Any = importlib.import_module("sglang.srt.speculative.eagle_utils")
    own, of_flashinfer = ("top_k_renorm_prob", "top_p_renorm_prob"), ("top_k_renorm_probs", "top_p_renorm_probs")
    if hasattr(verification, own[0]):
        return verification, *own
    # Older releases import them each time, and some of those import FlashInfer's on a GPU.
    names = inspect.unwrap(verification.eagle_sample).__code__.co_names
    if verification._is_cuda and of_flashinfer[0] in names:
        return importlib.import_module("flashinfer.sampling"), *of_flashinfer
    return importlib.import_module("sgl_kernel"), *own


@functools.cache
def hook_around(function: str, hook: Callable[..., Any]) -> None:
    """Calls `hook` in place of a function of SGLang in this process, with that function as its first argument. A second
    call changes nothing. `function`: its module and name."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    HookRegistry.register(function, hook, HookType.AROUND)
    HookRegistry.apply_hooks()


def verify_mask(backend: object, mask: Tensor, rows: int) -> Tensor:
    """The tree mask of a verify step, copied to the attention backend's own buffer if it has one that graphs read.

    Backends copy what they are given to that buffer. Of a buffer for the longest context they should get no more than
    the step's own part. A backend whose steps are chains reads no mask.
    """
    own = getattr(backend, "verify_mask", None)
    if own is None or not own.is_read or not own.fits(rows):
        return mask
    buffer: Tensor = own.buffer
    return buffer.view(-1)[: mask.numel()].copy_(mask)


@contextlib.contextmanager
def without_ngram_corpus() -> Iterator[None]:
    """Keeps `NGRAMWorker.__init__` from building its own trie, which can take gigabytes."""
    module: Any = importlib.import_module("sglang.srt.speculative.ngram_worker")
    original = module.NgramCorpus
    module.NgramCorpus = NoCorpus
    try:
        yield
    finally:
        module.NgramCorpus = original


class NoCorpus:
    """Replaces the trie of NGRAMWorker. agentspec's engine drafts instead, so it keeps nothing."""

    def __init__(self, **settings: object) -> None:
        del settings

    def reset(self) -> None:
        """Does nothing, because nothing is kept."""

    def synchronize(self) -> None:
        """Does nothing, because nothing is inserted in the background."""

    def erase_match_state(self, request_ids: list[str]) -> None:
        """Does nothing, because the scheduler's events end requests, not their absence from a batch."""

    def list_external_corpora(self) -> dict[str, int]:
        return {}

    def load_external_corpus_named(self, corpus_id: str, token_chunks: list[list[int]]) -> int:
        raise NotImplementedError(
            f"corpus {corpus_id!r} was refused: external corpora belong to SGLang's NGRAM; "
            "agentspec learns from finished outputs"
        )

    def commit_external_corpus_load(self, corpus_id: str, loaded_token_count: int) -> None:
        """Never called, because loading is refused."""

    def remove_external_corpus(self, corpus_id: str) -> None:
        raise KeyError(f"there is no corpus {corpus_id!r}")
