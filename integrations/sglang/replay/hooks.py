"""The hooks of a replay into SGLang. Without the setting `replay`, none of them is installed.

    launcher    TokenizerManager.__init__                        reads the recordings, warns (by a hook of registration.py)
                OpenAIServingChat._convert_to_internal_request   matches chats
                TokenizerManager._validate_one_request           matches other requests (by a hook of registration.py)
                TokenizerManager.generate_request                marks responses
                TokenizerManager.get_internal_state              adds the launcher's part to /server_info
    scheduler   TpModelWorker.forward_batch_generation           learns which request has which slot
                ModelRunner.forward                              overwrites logits

The launcher passes the setting to the schedulers in environment variables, which they inherit.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any

from agentspec.errors import UnsupportedError
from agentspec.integrations.sglang import arguments, compat
from agentspec.integrations.sglang.replay.setting import REQUESTS, UNMATCHED_VARIABLE, VARIABLE
from agentspec.integrations.sglang.sglang_types import (
    ChatRequest,
    ForwardBatch,
    ForwardOutput,
    GenerateReqInput,
    ModelRunner,
    ScheduleBatch,
    ServerArgs,
    TokenizerManager,
    TpWorker,
)
from agentspec.integrations.sglang.tenants import OPTIONS_KEY, REPLAY_KEY

if TYPE_CHECKING:
    from agentspec.integrations.sglang.replay.front import ReplayFront
    from agentspec.integrations.sglang.replay.target import ReplayTarget
    from agentspec.integrations.sglang.settings import Settings

# The supported values. With others, requests pass through processes without these hooks, or come without a prefill.
_FITTING: dict[str, tuple[object, ...]] = {
    "tokenizer_worker_num": (None, 1),
    "pp_size": (None, 1),
    "disaggregation_mode": (None, "null"),
    "dllm_algorithm": (None, ""),
    "enable_pdmux": (None, False),
}

Converted = tuple[object, ...]
"""SGLang's own request, and the client's."""

_front: ReplayFront | None = None
_target: ReplayTarget | None = None
_installed: set[str] = set()


def install() -> None:
    """Registers the hooks that this process needs, if the environment asks for a replay."""
    if os.environ.get(VARIABLE):
        # A scheduler that was forked has inherited the hooks of the launcher. One that was spawned needs no front.
        _install_target()
        if multiprocessing.parent_process() is None:
            _install_front()


def activate(chosen: Settings, server_args: ServerArgs) -> None:
    """Turns the replay on in the launcher and all processes that it starts, if the settings ask for it. Raises
    UnsupportedError if the server has a feature with which requests could bypass the replay."""
    if not chosen.replay:
        return
    problems = [
        f"{name}={value!r}"
        for name, fitting in _FITTING.items()
        if (value := arguments.setting(server_args, name)) not in fitting
    ]
    if problems:
        raise UnsupportedError(f"{VARIABLE} cannot run with {', '.join(problems)}: drop these arguments")
    os.environ[VARIABLE], os.environ[UNMATCHED_VARIABLE] = chosen.replay, chosen.replay_unmatched
    install()
    # Plugins were loaded, and hooks applied, before the arguments were known.
    from sglang.srt.plugins.hook_registry import HookRegistry

    HookRegistry.apply_hooks()


def manager_made(manager: TokenizerManager) -> None:
    """Called once the launcher's tokenizer manager exists. Reads the recordings if there is a replay."""
    global _front
    if not os.environ.get(VARIABLE):
        return
    from agentspec.integrations.sglang.replay.front import ReplayFront, end_token

    config = manager.model_config
    end = end_token(manager.tokenizer, getattr(config, "hf_eos_token_id", None))
    unmatched = os.environ.get(UNMATCHED_VARIABLE) or "refuse"
    _front = ReplayFront(os.environ[VARIABLE], unmatched, manager.tokenizer, end, int(config.vocab_size))
    if arguments.metrics_enabled(manager.server_args):
        _front.counts.export({"model_name": arguments.served_model_name(manager.server_args)})
    _front.warn_for_ever()


def before_validation(manager: TokenizerManager, obj: GenerateReqInput, input_ids: Sequence[int] | None) -> None:
    """Called for every request of every server. Raises ValueError if a request brings an answer and must not."""
    if _front is not None:
        _front.before_validation(obj, input_ids, compat.is_starting(manager))
        return
    sampling = getattr(obj, "sampling_params", None)
    custom = sampling.get("custom_params") if isinstance(sampling, dict) else None
    options = custom.get(OPTIONS_KEY) if isinstance(custom, dict) else None
    if isinstance(options, dict) and REPLAY_KEY in options:
        raise ValueError(
            f"custom_params.{OPTIONS_KEY}.{REPLAY_KEY} needs a server that was started with {VARIABLE}={REQUESTS}; "
            "this one answers by itself"
        )


def describe_into(state: dict[str, Any]) -> None:
    """Adds the block `agentspec.replay` to a scheduler's state, even if agentspec does not draft."""
    if _target is not None:
        state.setdefault("agentspec", {"active": False})["replay"] = _target.describe()


def _install_front() -> None:
    manager = "sglang.srt.managers.tokenizer_manager.TokenizerManager"
    _register(f"{manager}.generate_request", _marked, "AROUND")
    _register(f"{manager}.get_internal_state", _completed_state, "AROUND")
    chat = "sglang.srt.entrypoints.openai.serving_chat.OpenAIServingChat"
    _register(f"{chat}._convert_to_internal_request", _matched_chat, "AROUND")


def _install_target() -> None:
    global _target
    from agentspec.integrations.sglang.replay.target import ReplayTarget

    _target = _target or ReplayTarget()
    _register("sglang.srt.managers.tp_worker.TpModelWorker.forward_batch_generation", _admit, "BEFORE")
    _register("sglang.srt.model_executor.model_runner.ModelRunner.forward", _force, "AFTER")


def _register(target: str, hook: Callable[..., object], kind: str) -> None:
    if target in _installed:
        return
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    _installed.add(target)
    HookRegistry.register(target, hook, HookType[kind])


def _matched_chat(
    original: Callable[..., Converted], serving: object, request: ChatRequest, *args: object, **kwargs: object
) -> Converted:
    # A copy as the client sent them, because SGLang may change them for the chat template.
    messages = [message.model_dump(exclude_none=True) for message in request.messages]
    result = original(serving, request, *args, **kwargs)
    sampling = getattr(result[0], "sampling_params", None)
    if _front is not None and isinstance(sampling, dict):
        _front.match_chat(sampling, messages)
    return result


async def _marked(
    original: Callable[..., AsyncGenerator[object, None]], *args: object, **kwargs: object
) -> AsyncIterator[object]:
    async with contextlib.aclosing(original(*args, **kwargs)) as responses:
        async for response in responses:
            for one in response if isinstance(response, list) else [response]:
                if _front is not None and isinstance(one, dict) and isinstance(one.get("meta_info"), dict):
                    _front.mark(one["meta_info"])
            yield response


async def _completed_state(
    original: Callable[..., Awaitable[list[dict[str, Any]]]], *args: object, **kwargs: object
) -> list[dict[str, Any]]:
    states = await original(*args, **kwargs)
    for state in states:
        block = state.setdefault("agentspec", {"active": False})
        if _front is not None:
            block["replay"] = {**_front.describe(), **block.get("replay", {})}
    return states


def _admit(worker: TpWorker, batch: ScheduleBatch | None, *args: object, **kwargs: object) -> None:
    del args, kwargs
    if _target is not None:
        _target.admit(worker, batch)


def _force(
    output: ForwardOutput, runner: ModelRunner, forward_batch: ForwardBatch, *args: object, **kwargs: object
) -> ForwardOutput:
    del args, kwargs
    if _target is not None:
        _target.force(runner, output, forward_batch)
    return output
