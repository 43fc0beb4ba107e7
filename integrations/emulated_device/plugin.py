"""Installs the emulation in SGLang. SGLang calls register() in each process; most hooks act in the scheduler's process.

    the launcher's arguments     graphs count as captured, so that defaults are those of a GPU
    the launcher's requests      requests that need logits are refused
    before Scheduler.__init__    sets up clock and device, replaces torch's streams and events, intercepts torch calls
    while weights are loaded     no call is intercepted
    after Scheduler.__init__     wraps kernels and the parts of a step, because all modules are loaded by then

No code of agentspec or SGLang knows of the emulation.
"""

from __future__ import annotations

import atexit
import functools
import inspect
import logging
import os
from collections.abc import Mapping
from typing import Any

from agentspec.integrations.emulated_device import setting

logger = logging.getLogger("agentspec")

DEFAULT_ACCEPTANCE = 0.7
"""Acceptance probability of each drafted token if SIMULATED_HEAD_ACCEPTANCE is not set."""

_emulation: Any = None
# Sampling parameters that read or change logits, each with the values that leave logits alone.
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "frequency_penalty": (None, 0),
    "presence_penalty": (None, 0),
    "repetition_penalty": (None, 1),
    "min_new_tokens": (None, 0),
    "logit_bias": (None, {}),
    "json_schema": (None,),
    "regex": (None,),
    "ebnf": (None,),
    "structural_tag": (None,),
}


def register() -> None:
    """Registers the hooks of an emulated server; does nothing if the environment requests no emulation."""
    times = setting.chosen()
    if times is None:
        return
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    from agentspec.integrations.sglang import arguments, compat

    if not times.blocking:
        arguments.captures_graphs = lambda server_args: True
    HookRegistry.register("sglang.srt.managers.scheduler.Scheduler.__init__", _around_scheduler, HookType.AROUND)
    HookRegistry.register("sglang.srt.managers.scheduler.Scheduler.on_idle", _on_idle, HookType.AROUND)
    manager = "sglang.srt.managers.tokenizer_manager.TokenizerManager"
    HookRegistry.register(f"{manager}._validate_one_request", _before_validation, HookType.BEFORE)
    path, gets_state = compat.internal_state_hook()
    HookRegistry.register(path, _describe_into if gets_state else _describe_in_reply, HookType.AFTER)


class Emulation:
    """The emulation in one scheduler process."""

    def __init__(self) -> None:
        from agentspec.integrations.emulated_device.device.trace import ChromeTrace
        from agentspec.integrations.emulated_device.device.work import Work
        from agentspec.integrations.emulated_device.models.model import Forwards
        from agentspec.integrations.emulated_device.spans import Steps
        from agentspec.integrations.emulated_device.torch_calls.calls import Calls

        times, path = setting.chosen(), setting.trace_path()
        assert times is not None
        trace = None if path is None else ChromeTrace(path)
        if trace is not None:
            atexit.register(trace.close)
        self.work = Work(times, setting.made_clock(), trace)
        self.calls = Calls(self.work)
        self.steps = Steps(self.work)
        self.forwards = Forwards(self.work)

    def begin(self) -> None:
        """Runs before the scheduler creates anything."""
        import torch
        from sglang.srt import runtime_context

        from agentspec.integrations.emulated_device.device.tensors import DeviceName, name_backend
        from agentspec.integrations.emulated_device.torch_calls.calls import seconds_of_a_call

        if not self.work.steps.blocking:
            self.work.replace_torch(torch.cpu)
            name_backend(torch.cpu)
            runtime_context.get_device()._set("device", DeviceName("cpu"))
            self._emulate_platform()
        self._replace_forwards()
        self.calls.overhead = seconds_of_a_call(self.work.clock.wall)
        self.calls.__enter__()  # type: ignore[no-untyped-call]

    def end(self, scheduler: Any) -> None:
        """Runs once the scheduler is complete."""
        from agentspec.integrations.emulated_device.device.clock import use_emulated_time
        from agentspec.integrations.emulated_device.spans import wrap_spans
        from agentspec.integrations.emulated_device.torch_calls.kernels import wrap_kernels

        measured = use_emulated_time(self.work.clock)
        kernels = wrap_kernels(self.work)
        missing = wrap_spans(self.work, self.steps, scheduler.model_worker)
        for name in missing:
            logger.warning("the emulated device's trace has no part for %s, which is not there", name)
        logger.info("agentspec EMULATES A DEVICE, %s: forwards compute nothing", self.work.steps.name)
        logger.debug("modules that measure emulated time: %s", ", ".join(measured))
        logger.debug("functions that count as one kernel: %s", ", ".join(kernels))

    def describe(self) -> dict[str, Any]:
        """The block `emulated` of `/server_info`."""
        totals = {**self.work.totals(), **self.steps.totals()}
        return {
            **totals,
            "steps_by_rows": {str(rows): sums for rows, sums in sorted(self.steps.by_rows.items())},
            "mixed_operations": dict(self.calls.mixed),
            "unordered_operations": dict(self.work.unordered),
            "torch_call_seconds": self.calls.overhead,
        }

    def _emulate_platform(self) -> None:
        from sglang.srt.layers.attention import intel_amx_backend
        from sglang.srt.managers import overlap_utils
        from sglang.srt.platforms import current_platform
        from sglang.srt.speculative import eagle_utils, eagle_worker_v2, ngram_worker

        # On a GPU, masks cover the prefix. EAGLE's masks keep the CPU layout, because a CPU kernel builds them.
        assert eagle_worker_v2.default_tree_mask_mode is not None
        full = eagle_utils.TreeMaskMode.FULL_MASK
        eagle_utils.default_tree_mask_mode = lambda: full
        ngram_worker._is_cpu = False
        # On a GPU, FlashAttention 3 and Triton serve these models. They verify and extend without lengths on the host.
        intel_amx_backend.IntelAMXAttnBackend.needs_cpu_seq_lens = False
        intel_amx_backend.IntelAMXMultiStepDraftBackend.needs_cpu_seq_lens = False
        # Tensors of the emulated device accept the call that CPU tensors refuse, so the original method works.
        relay = overlap_utils.FutureMap
        relay._resolve_spec_extras = inspect.unwrap(relay._resolve_spec_extras)
        type(current_platform).is_pin_memory_available = lambda self, device=None: (
            str(device) != "cpu" or _named(device)
        )

    def _replace_forwards(self) -> None:
        from sglang.srt.model_executor import model_runner
        from sglang.srt.model_executor.model_runner_components import cuda_graph_setup
        from sglang.srt.speculative.eagle_worker_v2 import EagleDraftWorker

        from agentspec.integrations.emulated_device.models.model import DraftGraphs, ExtendGraphs, TargetGraphs
        from agentspec.integrations.emulated_device.models.simulated_head import VARIABLE, Acceptance, SimulatedHead
        from agentspec.integrations.sglang.drafting.stop_rule import DraftStop
        from agentspec.integrations.sglang.replay.target import ReplayTarget

        runner, forwards, work, calls = model_runner.ModelRunner, self.forwards, self.work, self.calls

        def forward(self: Any, forward_batch: Any, *args: Any, **kwargs: Any) -> Any:
            return forwards.forward(self, forward_batch)

        load = runner.load_model

        @functools.wraps(load)
        def load_model(self: Any, *args: Any, **kwargs: Any) -> Any:
            calls.suspended = True
            try:
                return load(self, *args, **kwargs)
            finally:
                calls.suspended = False

        runner.forward, runner.load_model = forward, load_model
        for name in ("admit", "sweep"):
            setattr(ReplayTarget, name, _left_out(work, getattr(ReplayTarget, name)))
        head = SimulatedHead(Acceptance.parse(os.environ.get(VARIABLE) or str(DEFAULT_ACCEPTANCE)))
        draft = EagleDraftWorker.draft

        def drafted(self: Any, batch: Any, *args: Any, **kwargs: Any) -> Any:
            found = draft(self, batch, *args, **kwargs)
            with work.left_out():
                return head.rewritten(found, batch)

        EagleDraftWorker.draft = drafted
        DraftStop.is_over = lambda self, scores, num_passes, rows=None: False  # type: ignore[method-assign]
        if work.steps.blocking:
            return
        runner.verifies_unpadded = False

        def capture_decode_graph(*, model_runner: Any) -> Any:
            graphs = TargetGraphs(model_runner)
            phase = "target_verify" if graphs.capture_forward_mode.is_target_verify() else "decode"
            return cuda_graph_setup.GraphCapture(
                runner=graphs, memory_phase=phase, memory_usage_gb=0.0, capture_time=0.0
            )

        for module in (cuda_graph_setup, model_runner):
            module.capture_decode_graph = capture_decode_graph

        def capture_cuda_graphs(self: Any) -> None:
            self.cuda_graph_runner = DraftGraphs(forwards, self) if self.speculative_num_steps > 1 else None
            self.cuda_graph_runner_for_draft_extend = ExtendGraphs(forwards, self)

        EagleDraftWorker._capture_cuda_graphs = capture_cuda_graphs


def _left_out(work: Any, function: Any) -> Any:
    @functools.wraps(function)
    def left_out(*args: Any, **kwargs: Any) -> Any:
        with work.left_out():
            return function(*args, **kwargs)

    return left_out


def _named(device: Any) -> bool:
    from agentspec.integrations.emulated_device.device.tensors import DeviceName

    return isinstance(device, DeviceName)


def _before_validation(manager: Any, obj: Any, *args: Any, **kwargs: Any) -> None:
    check_request(getattr(obj, "sampling_params", None), getattr(obj, "return_logprob", None))


def _around_scheduler(original: Any, scheduler: Any, *args: Any, **kwargs: Any) -> None:
    global _emulation
    _emulation = Emulation()
    _emulation.begin()
    original(scheduler, *args, **kwargs)
    _emulation.end(scheduler)


def _on_idle(original: Any, scheduler: Any, *args: Any, **kwargs: Any) -> Any:
    if _emulation is None:
        return original(scheduler, *args, **kwargs)
    result = original(scheduler, *args, **kwargs)
    _emulation.work.timeline.nothing_to_do()
    return result


def _describe_into(result: Any, component: Any, state: dict[str, Any]) -> Any:
    if _emulation is not None:
        state["emulated"] = _emulation.describe()
    return result


def _describe_in_reply(reply: Any, scheduler: Any, recv_req: Any) -> Any:
    if _emulation is not None:
        reply.internal_state["emulated"] = _emulation.describe()
    return reply


def check_request(sampling: Any, return_logprob: Any) -> None:
    """Raises ValueError unless a request can be answered. `return_logprob`: whether the request asks for log
    probabilities."""
    if not isinstance(sampling, Mapping):
        return
    temperature = sampling.get("temperature")
    # SGLang samples by default.
    if sampling.get("top_k") != 1 and (temperature is None or temperature > 0):
        raise ValueError(
            f"an emulated device decodes greedily, and temperature is {temperature}: set it to 0, or top_k to 1"
        )
    if return_logprob:
        raise ValueError("an emulated device has no logits: drop return_logprob (logprobs)")
    for name, neutral in _NEUTRAL.items():
        if sampling.get(name) not in neutral:
            raise ValueError(f"an emulated device has no logits: drop {name}, which is {sampling[name]!r}")
