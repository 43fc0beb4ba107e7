"""Puts recordings in the place of CUDA graphs in every process of a server; SGLang calls register() in each."""

from __future__ import annotations

from typing import Any


def register() -> None:
    """Has SGLang capture graphs on a CPU, by its own graph runners for CUDA; imports SGLang."""
    import torch
    from sglang.srt.layers.attention import attention_registry
    from sglang.srt.model_executor import model_runner
    from sglang.srt.model_executor.forward_batch_info import ForwardMode
    from sglang.srt.model_executor.model_runner_components import cuda_graph_setup
    from sglang.srt.model_executor.runner_backend import utils

    from recorded_graphs.attention import RecordedAttention
    from recorded_graphs.backend import RecordedGraphs

    utils.FullCudaGraphBackend = RecordedGraphs
    for name in ("torch_native", "intel_amx"):
        attention_registry.ATTENTION_BACKENDS[name] = RecordedAttention
    # SGLang's runner for graphs on a CPU captures plain decoding only.
    ForwardMode.is_cpu_graph = ForwardMode.is_cuda_graph
    for module in (cuda_graph_setup, model_runner):
        module.capture_decode_graph = _capture_decode_graph
    # There are no streams to capture from.
    torch.cpu.is_current_stream_capturing = lambda: False  # type: ignore[attr-defined]


def _capture_decode_graph(*, model_runner: Any) -> Any:
    """SGLang's function of this name, but for the device."""
    from sglang.srt.model_executor.cuda_graph_config import Backend, Phase, check_cuda_graph_backend
    from sglang.srt.model_executor.model_runner_components.cuda_graph_setup import GraphCapture

    runner = None
    if not check_cuda_graph_backend(Phase.DECODE, Backend.DISABLED):
        runner = model_runner._decode_cuda_graph_runner_cls()(model_runner)
    return GraphCapture(runner=runner, memory_phase="target_verify", memory_usage_gb=0.0, capture_time=0.0)
