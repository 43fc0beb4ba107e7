"""Replaces CUDA graphs by recordings in every process of a server. SGLang calls register() in each process."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from recorded_graphs import CHECKS_VARIABLE, TOKENS_VARIABLE


def register() -> None:
    """Makes SGLang capture graphs on a CPU with its own graph runners for CUDA. It imports SGLang."""
    import torch
    from sglang.srt.layers.attention import intel_amx_backend
    from sglang.srt.model_executor import model_runner
    from sglang.srt.model_executor.forward_batch_info import ForwardMode
    from sglang.srt.model_executor.model_runner_components import cuda_graph_setup
    from sglang.srt.model_executor.runner import decode_cuda_graph_runner
    from sglang.srt.model_executor.runner_backend import utils
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType
    from sglang.srt.speculative import eagle_worker_v2

    from agentspec.integrations.sglang import arguments
    from agentspec.integrations.sglang.widths import graph_sizes, tiers
    from recorded_graphs.attention import RecordedAttention, RecordedDraftAttention
    from recorded_graphs.backend import RecordedGraphs

    # The launcher uses this to decide how wide steps may be.
    arguments.captures_graphs = lambda server_args: True
    # RecordedAttention takes the place of flash attention here.
    tiers.chains_cost_less = lambda server_args: True
    if tokens := os.environ.get(TOKENS_VARIABLE):
        graph_sizes.MOST_TOKENS = int(tokens)
    utils.FullCudaGraphBackend = RecordedGraphs
    intel_amx_backend.IntelAMXAttnBackend = RecordedAttention
    intel_amx_backend.IntelAMXMultiStepDraftBackend = RecordedDraftAttention
    # SGLang's own graph runner for CPUs captures plain decoding only.
    ForwardMode.is_cpu_graph = ForwardMode.is_cuda_graph
    for module in (cuda_graph_setup, model_runner):
        module.capture_decode_graph = _capture_decode_graph
    eagle_worker_v2._is_cpu = False
    eagle_worker_v2._select_spec_graph_runner_cls = _draft_graph_runner
    scheduler = "sglang.srt.managers.scheduler.Scheduler"
    HookRegistry.register(f"{scheduler}.init_all_cuda_graphs", _check, HookType.AFTER)
    # Garbage collections before and after each capture would take most of its time.
    decode_cuda_graph_runner.freeze_gc = contextlib.nullcontext
    # A CPU has no streams to capture from.
    torch.cpu.is_current_stream_capturing = lambda: False  # type: ignore[attr-defined]


def _capture_decode_graph(*, model_runner: Any) -> Any:
    """Does the same as SGLang's function of this name, regardless of the device."""
    from sglang.srt.model_executor.cuda_graph_config import Backend, Phase, check_cuda_graph_backend
    from sglang.srt.model_executor.model_runner_components.cuda_graph_setup import GraphCapture

    runner = None
    if not check_cuda_graph_backend(Phase.DECODE, Backend.DISABLED):
        runner = model_runner._decode_cuda_graph_runner_cls()(model_runner)
    return GraphCapture(runner=runner, memory_phase="target_verify", memory_usage_gb=0.0, capture_time=0.0)


def _draft_graph_runner(*, builtin_runner_cls: Callable[[], Any], oot_runner_cls: Callable[[], Any]) -> Any:
    """Does the same as SGLang's function of this name on a platform that captures the graphs of draft models with
    SGLang's own runners."""
    from sglang.srt.speculative import eagle_worker_v2

    platform = eagle_worker_v2.current_platform
    eagle_worker_v2.current_platform = _GraphPlatform()
    try:
        return oot_runner_cls()
    finally:
        eagle_worker_v2.current_platform = platform


class _GraphPlatform:
    def get_speculative_graph_runner_cls(self, algorithm: str, phase: str) -> Any:
        from sglang.srt.speculative import eagle_worker_v2

        return {
            "draft_decode": eagle_worker_v2.EAGLEDraftCudaGraphRunner,
            "draft_extend": eagle_worker_v2.EAGLEDraftExtendCudaGraphRunner,
        }[phase]


def _check(result: Any, scheduler: Any) -> Any:
    """Runs the checks in a scheduler after it has captured its graphs, if a file for their results is set."""
    path = os.environ.get(CHECKS_VARIABLE)
    if path:
        from recorded_graphs import checks

        checks.run(scheduler, Path(path))
    return result
