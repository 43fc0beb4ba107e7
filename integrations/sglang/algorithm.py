"""Makes `AGENTSPEC` a name that SGLang accepts, and our worker the one that it creates.

SGLang compares the algorithm's name in some forty places, so a foreign name works in some of them only. Hence the
name is an umbrella: while arguments are handled it is rewritten to a built-in base, whose schedule, memory and graph
handling fit, and the one place that creates the worker is hooked. Without a draft model the base is NGRAM; with one it
is EAGLE, EAGLE3 or STANDALONE, whichever the draft model is for.

    command line:   ServerArgs.from_cli_args     rewritten before the record exists, settings noted on the record
    sglang.Engine:  validate_server_args         rewritten during resolution; the raw input still says AGENTSPEC
    scheduler:      SpeculativeAlgorithm.create_worker -> our worker, where the record says so
"""

from __future__ import annotations

import argparse
import inspect
import logging
import os
from typing import Any

from agentspec.errors import ConfigError
from agentspec.integrations.sglang import compat, replay_hooks, replay_setting, setting_sources, settings
from agentspec.integrations.sglang.admin import wire
from agentspec.integrations.sglang.drafter_checkpoint import AUTO, BASE_FLAG, DRAFT_FLAG, inspect_drafter
from agentspec.integrations.sglang.refusals import refuse_unsupported
from agentspec.integrations.sglang.request_checks import check_request
from agentspec.integrations.sglang.store_setup import check_store, served_scope

logger = logging.getLogger("agentspec")

# Tokens verified in a row, root included.
DEFAULT_WIDTH = 16


def install() -> None:
    """Registers the name and the hooks; to be called once in each process, by the plugin."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType
    from sglang.srt.speculative.spec_info import SpeculativeAlgorithm
    from sglang.srt.speculative.spec_registry import CustomSpecAlgo

    class Umbrella(CustomSpecAlgo):  # type: ignore[misc]
        """What AGENTSPEC resolves to until it is rewritten to the base algorithm."""

        def handle_server_args(self, server_args: Any) -> None:
            _handle_base_arguments(server_args)

        def is_ngram(self) -> bool:
            return True

    @SpeculativeAlgorithm.register(  # type: ignore[untyped-decorator]
        compat.ALGORITHM, supports_overlap=True, validate_server_args=_rewrite_late, spec_class=Umbrella
    )
    def _worker(server_args: Any) -> type:
        return _worker_class(compat.server_args_setting(server_args, "speculative_algorithm"))

    record = "sglang.srt.server_args.ServerArgs"
    HookRegistry.register(f"{record}.add_cli_args", _add_cli_args, HookType.AFTER)
    HookRegistry.register(f"{record}.from_cli_args", _from_cli_args, HookType.AROUND)
    algorithm = "sglang.srt.speculative.spec_info.SpeculativeAlgorithm"
    HookRegistry.register(f"{algorithm}.create_worker", _create_worker, HookType.AROUND)
    scheduler = "sglang.srt.managers.scheduler.Scheduler"
    HookRegistry.register(f"{scheduler}.abort_request", _after_abort, HookType.AFTER)
    pool = "sglang.srt.mem_cache.memory_pool.ReqToTokenPool"
    HookRegistry.register(f"{pool}.__init__", _roomier_pool, HookType.AROUND)
    manager = "sglang.srt.managers.tokenizer_manager.TokenizerManager"
    HookRegistry.register(f"{manager}._validate_one_request", _before_validation, HookType.BEFORE)
    path, gets_state = compat.internal_state_hook()
    HookRegistry.register(path, _describe_into if gets_state else _describe_in_reply, HookType.AFTER)
    replay_hooks.install()
    # Where both are on one method this one, which comes later, is the outer.
    HookRegistry.register(f"{scheduler}.get_internal_state", _answer_administrator, HookType.AROUND)
    # A method that was hooked once takes no more hooks later.
    HookRegistry.register(f"{manager}.__init__", _after_manager, HookType.AFTER)


def _is_ours(name: Any) -> bool:
    return isinstance(name, str) and name.upper() == compat.ALGORITHM


def _add_cli_args(result: Any, parser: argparse.ArgumentParser) -> Any:
    setting_sources.add_flags(parser)
    return result


def _from_cli_args(original: Any, cls: Any, args: argparse.Namespace) -> Any:
    flags = setting_sources.pop_flags(args)
    if not _is_ours(getattr(args, "speculative_algorithm", None)):
        foreign = [name for name in flags if name not in replay_setting.SETTINGS]
        if foreign:
            names = ", ".join(settings.FLAG_PREFIX + name.replace("_", "-") for name in foreign)
            raise ConfigError(f"{names} need --speculative-algorithm {compat.ALGORITHM}")
        server_args = original(cls, args)
        replay_hooks.activate(setting_sources.resolve(flags, replay_setting.variables(os.environ)), server_args)
        return server_args
    chosen = setting_sources.resolve(flags, os.environ)
    for name, value in _base_settings(args, chosen).items():
        setattr(args, name, value)
    server_args = original(cls, args)
    refuse_unsupported(server_args)
    check_store(chosen, served_scope(chosen, server_args))
    compat.mark(server_args, chosen.as_dict())
    replay_hooks.activate(chosen, server_args)
    return server_args


def _rewrite_late(server_args: Any) -> None:
    """For `sglang.Engine(speculative_algorithm="AGENTSPEC")`, which has no command line."""
    chosen = setting_sources.resolve({}, os.environ)
    refuse_unsupported(server_args)
    check_store(chosen, served_scope(chosen, server_args))
    # Where resolution works on a stand-in, the note is lost with it, and the record's raw input says the same.
    compat.mark(server_args, chosen.as_dict())
    for name, value in _base_settings(server_args, chosen).items():
        # The name stays ours until the umbrella handles the arguments.
        if name != "speculative_algorithm":
            setattr(server_args, name, value)


def _handle_base_arguments(server_args: Any) -> None:
    from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

    base = _base(server_args, setting_sources.resolve({}, os.environ))
    server_args.speculative_algorithm = base
    SpeculativeAlgorithm[base].handle_server_args(server_args)


def _base(args: Any, chosen: settings.Settings) -> str:
    """The built-in algorithm that agentspec takes the place of.

    Raises:
        ConfigError: The draft model is none that SGLang could run, or does not fit the target.
    """
    path = getattr(args, "speculative_draft_model_path", None)
    if not path:
        if chosen.base != AUTO:
            raise ConfigError(
                f"{BASE_FLAG} {chosen.base} needs a draft model, and there is none; pass {DRAFT_FLAG} or drop the flag"
            )
        return compat.BASE_ALGORITHM
    target = getattr(args, "model_path", None) or getattr(args, "model", None)
    return inspect_drafter(str(path), str(target), chosen.base).base


def _base_settings(args: Any, chosen: settings.Settings) -> dict[str, Any]:
    """The base algorithm and its arguments that follow from ours."""
    base = _base(args, chosen)
    wanted: dict[str, Any] = {"speculative_algorithm": base}
    if getattr(args, "speculative_num_draft_tokens", None) is None:
        wanted["speculative_num_draft_tokens"] = DEFAULT_WIDTH
    backend = getattr(args, "attention_backend", None)
    paged_chain = (getattr(args, "page_size", None) or 1) > 1 and backend != "flashinfer"
    chains = chosen.mode == "chain" or (
        chosen.mode == "auto" and (paged_chain or backend in compat.CHAIN_ONLY_BACKENDS)
    )
    if base != compat.BASE_ALGORITHM:
        if not getattr(args, "disable_overlap_schedule", False):
            logger.warning(
                "agentspec beside a draft model does not support the overlap schedule yet: it is switched off. "
                "Without a draft model it stays on"
            )
            wanted["disable_overlap_schedule"] = True
        for name, value in (
            (
                "speculative_num_steps",
                compat.MOST_DRAFT_STEPS if getattr(args, "device", None) == "cpu" else compat.DRAFT_STEPS,
            ),
            ("speculative_eagle_topk", 1 if chains else compat.DRAFT_TOPK),
        ):
            if getattr(args, name, None) is None:
                wanted[name] = value
    elif chains:
        # A breadth of one is how NGRAM tells backends that drafts are chains.
        wanted["speculative_ngram_min_bfs_breadth"] = 1
        wanted["speculative_ngram_max_bfs_breadth"] = 1
    return wanted


def _worker_class(name: Any) -> type:
    """The worker over a base algorithm."""
    if name == "STANDALONE":
        from agentspec.integrations.sglang.hybrid_worker import HybridStandaloneWorker

        return HybridStandaloneWorker
    if name in compat.DRAFTER_ALGORITHMS:
        from agentspec.integrations.sglang.hybrid_worker import HybridEagleWorker

        return HybridEagleWorker
    from agentspec.integrations.sglang.worker import AgentspecWorker

    return AgentspecWorker


def _create_worker(original: Any, algorithm: Any, server_args: Any) -> Any:
    if compat.wants_agentspec(server_args):
        return _worker_class(getattr(algorithm, "name", None))
    return original(algorithm, server_args)


def _roomier_pool(original: Any, pool: Any, *args: Any, **kwargs: Any) -> None:
    """Widens the rows of the token table for speculation by NGRAM or agentspec.

    Each decode step reserves slots for two steps ahead, and rows end one step's width past the context: a request
    that decodes up to the context's end would write past its row.
    """
    call = inspect.signature(original).bind(pool, *args, **kwargs)
    call.arguments["max_context_len"] += compat.speculative_width(compat.BASE_ALGORITHM, *compat.DRAFTER_ALGORITHMS)
    original(*call.args, **call.kwargs)


def _before_validation(manager: Any, obj: Any, input_ids: Any) -> None:
    if compat.wants_agentspec(manager.server_args):
        # Some bases refuse prompts that end less than a draft before the context does. Our rows are wide enough.
        manager.num_reserved_tokens = 0
        check_request(obj, input_ids, int(manager.model_config.vocab_size))
    replay_hooks.before_validation(manager, obj, input_ids)


def _after_abort(result: Any, scheduler: Any, recv_req: Any) -> Any:
    note_abort = getattr(getattr(scheduler, "draft_worker", None), "note_abort", None)
    if note_abort is not None:
        note_abort(recv_req.rid or "", bool(recv_req.abort_all))
    return result


def _answer_administrator(original: Any, scheduler: Any, recv_req: Any) -> Any:
    command = wire.command_in(recv_req)
    if command is None:
        return original(scheduler, recv_req)
    drafter = getattr(scheduler.draft_worker, "suffix", None)
    return wire.reply(wire.NO_DESK if drafter is None else drafter.administer(command))


def _after_manager(result: Any, manager: Any, *args: Any, **kwargs: Any) -> Any:
    del args, kwargs
    replay_hooks.manager_made(manager)
    if compat.wants_agentspec(manager.server_args):
        from agentspec.integrations.sglang.admin import endpoints

        endpoints.serve(manager)
    return result


def _describe_into(result: Any, component: Any, state: dict[str, Any]) -> Any:
    describe = getattr(component.scheduler.draft_worker, "describe", None)
    if describe is not None:
        state["agentspec"] = describe()
    replay_hooks.describe_into(state)
    return result


def _describe_in_reply(reply: Any, scheduler: Any, recv_req: Any) -> Any:
    del recv_req
    describe = getattr(scheduler.draft_worker, "describe", None)
    if describe is not None:
        reply.internal_state["agentspec"] = describe()
    replay_hooks.describe_into(reply.internal_state)
    return reply
