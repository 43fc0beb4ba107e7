"""Registers the algorithm `AGENTSPEC` with SGLang and makes SGLang create our worker for it.

SGLang compares the algorithm's name in some forty places, and a foreign name works in only some of them. So the name is
rewritten to a built-in base algorithm while SGLang handles its arguments, and a hook replaces the worker that SGLang
creates. The base's schedule, memory and graph handling fit agentspec. Without a draft model the base is NGRAM. With a
draft model it is EAGLE, EAGLE3 or STANDALONE, depending on the draft model.

    command line:   ServerArgs.from_cli_args     sets the base's name before the record exists, notes the settings on it
    sglang.Engine:  validate_server_args         does the same while SGLang resolves the record
    both:           SpeculativeAlgorithm.handle_server_args   sets the verified shape, after the attention backends
    scheduler:      SpeculativeAlgorithm.create_worker        creates our worker if the record asks for agentspec

With a draft model, --speculative-num-steps and --speculative-eagle-topk ask for the shape of the draft model's drafts
(`compat.draft_shape`). --speculative-num-draft-tokens is the width of a verify step, which suffix drafts fill too; its
default is in graph_sizes.py. SGLang ties the three together: with topk 1 it resets the width to steps + 1, and its
attention backends read no tree mask. So the arguments that SGLang itself gets describe the verify step:

    trees    speculative_eagle_topk = max(2, asked), speculative_num_steps as asked, num_draft_tokens = width
    chains   speculative_eagle_topk = 1, speculative_num_steps = width - 1, num_draft_tokens = width

SGLang reserves max(steps * topk, width) KV slots a step. In both cases this is enough for the draft model.
"""

from __future__ import annotations

import argparse
import contextvars
import inspect
import logging
import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from agentspec.errors import ConfigError, UnsupportedError
from agentspec.integrations.sglang import arguments, compat, setting_sources, settings
from agentspec.integrations.sglang.admin import wire
from agentspec.integrations.sglang.admin.wire import JsonObject
from agentspec.integrations.sglang.attention_backends import tree_obstacle, verify_obstacle
from agentspec.integrations.sglang.draft_model_checkpoint import (
    AUTO,
    BASE_FLAG,
    DRAFT_FLAG,
    drafter_base,
    has_next_token_layers,
)
from agentspec.integrations.sglang.predictions import hooks as prediction_hooks
from agentspec.integrations.sglang.predictions import option as prediction_option
from agentspec.integrations.sglang.refusals import check_request, refuse_unsupported
from agentspec.integrations.sglang.replay import hooks as replay_hooks
from agentspec.integrations.sglang.replay import setting as replay_setting
from agentspec.integrations.sglang.sglang_types import (
    AbortReq,
    Algorithm,
    GenerateReqInput,
    InternalStateComponent,
    InternalStateReply,
    ModelRunner,
    Req,
    Scheduler,
    ServerArgs,
    TokenizerManager,
)
from agentspec.integrations.sglang.store_setup import check_store, served_scope
from agentspec.integrations.sglang.widths import graph_sizes

if TYPE_CHECKING:
    from agentspec.integrations.sglang.drafting.suffix_drafter import SuffixDrafter

logger = logging.getLogger("agentspec")

# The settings of the command line while SGLang makes its record. Some releases resolve the record at once, before the
# settings can be noted on it.
_launched: contextvars.ContextVar[settings.Settings | None] = contextvars.ContextVar("agentspec_launched", default=None)
# Whether SGLang is capturing the graphs of draft-extend.
_captures_draft_extend: contextvars.ContextVar[bool] = contextvars.ContextVar("agentspec_draft_extend", default=False)


def install() -> None:
    """Registers the name and the hooks. The plugin calls it once in each process."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType
    from sglang.srt.speculative.spec_info import SpeculativeAlgorithm
    from sglang.srt.speculative.spec_registry import CustomSpecAlgo

    # Calls that may fail come first, because hooks cannot be removed.
    path, gets_state = compat.internal_state_hook()

    class Umbrella(CustomSpecAlgo):  # type: ignore[misc]
        """The algorithm that AGENTSPEC resolves to until the name is rewritten to the base algorithm."""

        def handle_server_args(self, server_args: ServerArgs) -> None:
            _handle_base_arguments(server_args)

        def is_ngram(self) -> bool:
            return True

    @SpeculativeAlgorithm.register(  # type: ignore[untyped-decorator]
        arguments.ALGORITHM, supports_overlap=True, validate_server_args=_rewrite_late, spec_class=Umbrella
    )
    def _worker(server_args: ServerArgs) -> type:
        return _worker_class(arguments.setting(server_args, "speculative_algorithm"))

    record = "sglang.srt.server_args.ServerArgs"
    HookRegistry.register(f"{record}.add_cli_args", _add_cli_args, HookType.AFTER)
    HookRegistry.register(f"{record}.from_cli_args", _from_cli_args, HookType.AROUND)
    algorithm = "sglang.srt.speculative.spec_info.SpeculativeAlgorithm"
    HookRegistry.register(f"{algorithm}.handle_server_args", _handle_server_args, HookType.AROUND)
    HookRegistry.register(f"{algorithm}.create_worker", _create_worker, HookType.AROUND)
    scheduler = "sglang.srt.managers.scheduler.Scheduler"
    HookRegistry.register(f"{scheduler}.abort_request", _after_abort, HookType.AFTER)
    HookRegistry.register(f"{scheduler}._abort_on_queued_limit", _at_full_queue, HookType.AROUND)
    HookRegistry.register(f"{scheduler}.on_idle", _on_idle, HookType.BEFORE)
    pool = "sglang.srt.mem_cache.memory_pool.ReqToTokenPool"
    HookRegistry.register(f"{pool}.__init__", _roomier_pool, HookType.AROUND)
    runners = "sglang.srt.model_executor.runner.base_cuda_graph_runner"
    HookRegistry.register(f"{runners}.get_batch_sizes_to_capture", _bounded_batch_sizes, HookType.AFTER)
    runner = "sglang.srt.model_executor.model_runner.ModelRunner"
    HookRegistry.register(f"{runner}.max_decode_logits_rows", _logits_rows, HookType.AFTER)
    extend = "sglang.srt.speculative.eagle_draft_extend_cuda_graph_runner.EAGLEDraftExtendCudaGraphRunner"
    HookRegistry.register(f"{extend}.__init__", _capture_draft_extend, HookType.AROUND)
    manager = "sglang.srt.managers.tokenizer_manager.TokenizerManager"
    HookRegistry.register(f"{manager}._validate_one_request", _before_validation, HookType.BEFORE)
    HookRegistry.register(f"{manager}._calculate_spec_decoding_metrics", _after_draft_figures, HookType.AFTER)
    HookRegistry.register(path, _describe_into if gets_state else _describe_in_reply, HookType.AFTER)
    replay_hooks.install()
    # In some releases _describe_in_reply hooks the same method. This hook is registered later and so is the outer one.
    HookRegistry.register(f"{scheduler}.get_internal_state", _answer_administrator, HookType.AROUND)
    # SGLang adds no more hooks to a method after the hooks were applied to it.
    HookRegistry.register(f"{manager}.__init__", _after_manager, HookType.AFTER)


def _is_ours(name: object) -> bool:
    return isinstance(name, str) and name.upper() == arguments.ALGORITHM


def _add_cli_args(result: object, parser: argparse.ArgumentParser) -> object:
    setting_sources.add_flags(parser)
    return result


def _from_cli_args(
    original: Callable[[type, argparse.Namespace], ServerArgs], cls: type, args: argparse.Namespace
) -> ServerArgs:
    flags = setting_sources.pop_flags(args)
    if not _is_ours(getattr(args, "speculative_algorithm", None)):
        if flags:
            names = ", ".join(map(settings.flag_of, flags))
            raise ConfigError(f"{names} need --speculative-algorithm {arguments.ALGORITHM}")
        server_args = original(cls, args)
        replay_hooks.activate(setting_sources.resolve({}, replay_setting.variables(os.environ)), server_args)
        return server_args
    chosen = setting_sources.resolve(flags, os.environ)
    for name, value in _base_settings(args, chosen).items():
        setattr(args, name, value)
    launched = _launched.set(chosen)
    try:
        server_args = original(cls, args)
    finally:
        _launched.reset(launched)
    refuse_unsupported(server_args)
    check_store(chosen, served_scope(chosen, server_args))
    arguments.mark(server_args, chosen.as_dict())
    replay_hooks.activate(chosen, server_args)
    return server_args


def _rewrite_late(server_args: ServerArgs) -> None:
    """Does the work of `_from_cli_args` for `sglang.Engine(speculative_algorithm="AGENTSPEC")`."""
    record = arguments.record_of(server_args)
    chosen = setting_sources.resolve({}, os.environ)
    refuse_unsupported(record)
    check_store(chosen, served_scope(chosen, record))
    arguments.mark(record, chosen.as_dict())
    replaced = _base_settings(record, chosen)
    # The name stays AGENTSPEC until `Umbrella` handles the arguments.
    del replaced["speculative_algorithm"]
    arguments.decide(record, **replaced)


def _handle_base_arguments(server_args: ServerArgs) -> None:
    from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

    record = arguments.record_of(server_args)
    base, _ = _base(record, settings.Settings(**(arguments.marked_settings(record) or {})))
    arguments.decide(record, speculative_algorithm=base)
    SpeculativeAlgorithm[base].handle_server_args(record)


def _handle_server_args(
    original: Callable[[Algorithm, ServerArgs], object], algorithm: Algorithm, server_args: ServerArgs
) -> object:
    """Sets the verified shape. At this point SGLang has already chosen the attention backends and the page size."""
    marked = arguments.marked_settings(server_args)
    chosen = _launched.get() if marked is None else settings.Settings(**marked)
    if chosen is not None:
        base = str(algorithm.name)
        if base not in (arguments.BASE_ALGORITHM, *arguments.DRAFTER_ALGORITHMS):
            raise UnsupportedError(
                f"agentspec does not draft with the draft model {compat.draft_model_path(server_args)}, for which SGLang "
                f"chose the algorithm {base}; serve it with --speculative-algorithm {base}, or choose another draft model"
            )
        # Checked again because SGLang sets some arguments itself, depending on the model.
        refuse_unsupported(server_args)
        if obstacle := verify_obstacle(server_args):
            raise UnsupportedError(f"--speculative-algorithm {arguments.ALGORITHM} cannot run: {obstacle}")
        if arguments.setting(server_args, "speculative_num_draft_tokens") is None:
            width = graph_sizes.default_width(server_args, chosen.widths)
            arguments.decide(server_args, speculative_num_draft_tokens=width)
        arguments.decide(server_args, **_verified_shape(server_args, chosen, base))
        if arguments.captures_graphs(server_args):
            arguments.note_graph_limits(server_args, graph_sizes.limits(server_args))
    return original(algorithm, server_args)


def _verified_shape(server_args: ServerArgs, chosen: settings.Settings, base: str) -> dict[str, object]:
    """SGLang's arguments that describe a verify step, see the module's docstring. Raises ConfigError if the settings
    ask for trees, but only chains can be verified."""
    has_draft_model = base != arguments.BASE_ALGORITHM
    obstacle = tree_obstacle(server_args, has_draft_model=has_draft_model)
    if chosen.mode == "tree" and obstacle:
        raise ConfigError(
            f"{settings.FLAG_PREFIX}mode tree needs a server that verifies trees: {obstacle}, or set mode auto"
        )
    chains = chosen.mode == "chain" or bool(obstacle)
    if not has_draft_model:
        # NGRAM passes its breadth to the attention backends as topk, and they use topk to tell trees from chains.
        return {"speculative_ngram_min_bfs_breadth": 1, "speculative_ngram_max_bfs_breadth": 1 if chains else 2}
    compat.note_asked_shape(server_args)
    asked = compat.asked_shape(server_args) or {}
    topk = asked["speculative_eagle_topk"]
    if chains and (topk or 1) > 1:
        why = obstacle or f"{settings.FLAG_PREFIX}mode is chain"
        raise ConfigError(
            f"--speculative-eagle-topk {topk} makes trees, and only chains are verified: {why}; or drop it"
        )
    width = int(arguments.setting(server_args, "speculative_num_draft_tokens"))
    if chains:
        return {"speculative_eagle_topk": 1, "speculative_num_steps": width - 1}
    shape = compat.asked_draft_shape(server_args, trees=True)
    return {"speculative_eagle_topk": max(2, shape.topk), "speculative_num_steps": shape.steps}


def _base(args: ServerArgs | argparse.Namespace, chosen: settings.Settings) -> tuple[str, str | None]:
    """The built-in algorithm that agentspec builds on, and the draft model's path. Raises ConfigError if the draft
    model is not supported by SGLang, or does not fit the target."""
    path = arguments.setting(args, "speculative_draft_model_path")
    target = str(arguments.setting(args, "model_path") or arguments.setting(args, "model"))
    if not path:
        if chosen.base == AUTO:
            return arguments.BASE_ALGORITHM, None
        if chosen.base.upper() not in ("EAGLE", "NEXTN") or not has_next_token_layers(target):
            raise ConfigError(
                f"{BASE_FLAG} {chosen.base} needs a draft model, and there is none; pass {DRAFT_FLAG} or drop the flag. "
                f"Only a target with next-token layers drafts for itself, with {BASE_FLAG} EAGLE"
            )
        path = target
    return drafter_base(str(path), target, chosen.base), str(path)


def _base_settings(args: ServerArgs | argparse.Namespace, chosen: settings.Settings) -> dict[str, object]:
    """The base algorithm and its arguments that SGLang may read before it handles them."""
    base, draft_model = _base(args, chosen)
    wanted: dict[str, object] = {"speculative_algorithm": base}
    if draft_model is None:
        return wanted
    if not arguments.setting(args, "speculative_draft_model_path"):
        wanted["speculative_draft_model_path"] = draft_model
        wanted["speculative_draft_model_revision"] = arguments.setting(args, "revision")
    return wanted


def _worker_class(name: object) -> type:
    """The class of our worker for a base algorithm."""
    if name == "STANDALONE":
        from agentspec.integrations.sglang.workers.hybrid import HybridStandaloneWorker

        return HybridStandaloneWorker
    if name in arguments.DRAFTER_ALGORITHMS:
        from agentspec.integrations.sglang.workers.hybrid import HybridEagleWorker

        return HybridEagleWorker
    from agentspec.integrations.sglang.workers.suffix import AgentspecWorker

    return AgentspecWorker


def _create_worker(
    original: Callable[[Algorithm, ServerArgs], type], algorithm: Algorithm, server_args: ServerArgs
) -> type:
    if arguments.wants_agentspec(server_args):
        return _worker_class(getattr(algorithm, "name", None))
    return original(algorithm, server_args)


def _roomier_pool(original: Callable[..., None], pool: object, *args: object, **kwargs: object) -> None:
    """Widens the rows of the token table if the server runs agentspec. A draft model shares the target's table.

    Each decode step reserves slots for two steps ahead, but SGLang's rows end one step's width past the context. So a
    request that decodes up to the context's end would otherwise write past its row.
    """
    call = inspect.signature(original).bind(pool, *args, **kwargs)
    call.arguments["max_context_len"] += compat.extra_row_slots()
    original(*call.args, **call.kwargs)


def _bounded_batch_sizes(
    result: tuple[list[int], list[int]], model_runner: ModelRunner, captured_req_width: int = 1, **rest: object
) -> tuple[list[int], list[int]]:
    """Keeps only the batch sizes whose verify steps are small enough to capture; see graph_sizes.py."""
    del rest
    # Draft-extend reads the rows of a verify step, but its runner calls without a width.
    width = arguments.verify_width(model_runner.server_args) if _captures_draft_extend.get() else captured_req_width
    sizes = graph_sizes.bounded(result[0], width, model_runner)
    return sizes, [size for size in result[1] if size in sizes]


def _logits_rows(rows: int, model_runner: ModelRunner) -> int:
    """Number of rows of the logits buffer. The graphs of all widths share it; SGLang counts only the greatest width."""
    widths = graph_sizes.captured_widths(model_runner)
    sizes = {width: compat.batch_sizes_to_capture(model_runner, width) for width in widths}
    return max([rows, *(width * batch_sizes[-1] for width, batch_sizes in sizes.items() if batch_sizes)])


def _capture_draft_extend(original: Callable[..., None], *args: object, **kwargs: object) -> None:
    capturing = _captures_draft_extend.set(True)
    try:
        original(*args, **kwargs)
    finally:
        _captures_draft_extend.reset(capturing)


def _before_validation(manager: TokenizerManager, obj: GenerateReqInput, input_ids: Sequence[int] | None) -> None:
    if arguments.wants_agentspec(manager.server_args):
        # Some bases refuse prompts that leave less room in the context than one draft. Our rows are wide enough.
        manager.num_reserved_tokens = 0
        prediction_option.before_validation(manager, obj)
        deterministic = bool(arguments.setting(manager.server_args, "enable_deterministic_inference", False))
        check_request(obj, input_ids, int(manager.model_config.vocab_size), is_deterministic=deterministic)
    replay_hooks.before_validation(manager, obj, input_ids)


def _after_draft_figures(
    result: object, manager: TokenizerManager, meta_info: JsonObject, recv_obj: Any, i: int
) -> object:
    """SGLang counts all drafts of a request as ones of the greatest width, of which few have so many tokens."""
    if arguments.wants_agentspec(manager.server_args) and "spec_num_proposed_drafts" in meta_info:
        drafted = int(recv_obj.spec_num_cap_tokens[i])
        meta_info["spec_num_proposed_drafts"] = drafted
        meta_info["spec_accept_rate"] = meta_info["spec_num_correct_drafts"] / drafted if drafted else 0.0
    return result


def _after_abort(result: object, scheduler: Scheduler, recv_req: AbortReq) -> object:
    if (drafter := _drafter(scheduler)) is not None:
        drafter.abort(recv_req.rid or "", bool(recv_req.abort_all))
    return result


def _at_full_queue(original: Callable[[Scheduler, Req], bool], scheduler: Scheduler, recv_req: Req) -> bool:
    """A full queue drops the new request or, by priority, one that waits. Either may have run before, until it was
    retracted."""
    drafter, most = _drafter(scheduler), scheduler.max_queued_requests
    if drafter is None or most is None or len(scheduler.waiting_queue) < most:
        return original(scheduler, recv_req)
    waiting = set(scheduler.waiting_queue)
    is_dropped = original(scheduler, recv_req)
    for request in [recv_req] if is_dropped else waiting.difference(scheduler.waiting_queue):
        drafter.dropped(request)
    return is_dropped


def _on_idle(scheduler: Scheduler) -> None:
    if (drafter := _drafter(scheduler)) is not None:
        drafter.idle()


def _drafter(scheduler: Scheduler) -> SuffixDrafter | None:
    """The scheduler's SuffixDrafter; None if the server does not run agentspec."""
    drafter: SuffixDrafter | None = getattr(scheduler.draft_worker, "suffix", None)
    return drafter


def _answer_administrator(
    original: Callable[[Scheduler, object], object], scheduler: Scheduler, recv_req: object
) -> object:
    command = wire.command_in(recv_req)
    if command is None:
        return original(scheduler, recv_req)
    drafter = _drafter(scheduler)
    return wire.reply(wire.NO_DESK if drafter is None else drafter.administer(command))


def _after_manager(result: object, manager: TokenizerManager, *args: object, **kwargs: object) -> object:
    del args, kwargs
    replay_hooks.manager_made(manager)
    if arguments.wants_agentspec(manager.server_args):
        from agentspec.integrations.sglang import stream_parsers
        from agentspec.integrations.sglang.admin import endpoints

        endpoints.serve(manager)
        prediction_hooks.install()
        if manager.tokenizer is not None:
            stream_parsers.install(manager.tokenizer)
    return result


def _describe_into(result: object, component: InternalStateComponent, state: JsonObject) -> object:
    _describe_worker(component.scheduler.draft_worker, state)
    return result


def _describe_in_reply(reply: InternalStateReply, scheduler: Scheduler, recv_req: object) -> InternalStateReply:
    del recv_req
    _describe_worker(scheduler.draft_worker, reply.internal_state)
    return reply


def _describe_worker(worker: object, state: JsonObject) -> None:
    describe = getattr(worker, "describe", None)
    if describe is not None:
        state["agentspec"] = describe()
    replay_hooks.describe_into(state)
