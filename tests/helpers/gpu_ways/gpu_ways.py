"""An SGLang plugin that makes a server on a CPU behave like servers on a GPU, so that tests cover this behaviour.

Put this folder on PYTHONPATH and name the switches in the variable GPU_WAYS, separated by commas:

    no-host-lengths      The attention backend needs no copy of the sequence lengths in host memory, like FlashAttention
                         3 and Triton: `seq_lens_cpu` and `seq_lens_sum` are None in decode steps with overlap.
    reused-outputs       The target's logits and hidden states are views of buffers that the next forward overwrites,
                         like the outputs of a captured graph.
    fixed-relay          The first prefill decides which fields the relay between steps carries, as in SGLang 0.5.17. A
                         later step with fewer fields is an error; additional fields are dropped.
    checked-relay        Reading a row of the relay twice, or before it was written, is an error, as in SGLang's own CI.
    failing-steps        Of the launches of steps in stream order, some fail, and some steps fail in their host function.

If GPU_WAYS_STEPS names a folder, each rank writes a checksum of the inputs of every forward there. A server that
emulates a device can have the last switch and this log.
"""

from __future__ import annotations

import os
import zlib
from pathlib import Path
from typing import Any

SWITCHES = ("no-host-lengths", "reused-outputs", "fixed-relay", "checked-relay", "failing-steps")
_OUTPUTS = ("next_token_logits", "hidden_states")


def register() -> None:
    """Installs the switches. SGLang calls this in each of its processes.

    Raises:
        ValueError: GPU_WAYS names an unknown switch.
    """
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    wanted = {name for name in os.environ.get("GPU_WAYS", "").split(",") if name}
    if not wanted <= set(SWITCHES):
        raise ValueError(f"GPU_WAYS takes {', '.join(SWITCHES)}, separated by commas; got {', '.join(sorted(wanted))}")
    forward = "sglang.srt.model_executor.model_runner.ModelRunner.forward"
    relay = "sglang.srt.managers.overlap_utils.FutureMap"
    if "no-host-lengths" in wanted:
        backend = "sglang.srt.layers.attention.intel_amx_backend.IntelAMXAttnBackend.__init__"
        HookRegistry.register(backend, _want_no_host_lengths, HookType.AFTER)
        draft_backend = "sglang.srt.layers.attention.intel_amx_backend.IntelAMXMultiStepDraftBackend.__init__"
        HookRegistry.register(draft_backend, _want_no_host_lengths, HookType.AFTER)
    if "reused-outputs" in wanted:
        HookRegistry.register(forward, ReusedOutputs().forward, HookType.AROUND)
    if "fixed-relay" in wanted:
        HookRegistry.register(f"{relay}.stash", _stash_as_fixed, HookType.AROUND)
    if "checked-relay" in wanted:
        HookRegistry.register(f"{relay}.__init__", _make_checked, HookType.AROUND)
    if "failing-steps" in wanted:
        order = "agentspec.integrations.sglang.stream_order.steps.StreamOrder.launch"
        HookRegistry.register(order, FailingSteps().launch, HookType.AROUND)
    if os.environ.get("GPU_WAYS_STEPS"):
        log = StepLog(Path(os.environ["GPU_WAYS_STEPS"]))
        if os.environ.get("EMULATED_DEVICE"):
            emulated = "agentspec.integrations.emulated_device.models.model.Forwards.forward"
            HookRegistry.register(emulated, log.emulated_forward, HookType.AROUND)
        else:
            HookRegistry.register(forward, log.forward, HookType.AROUND)


def _want_no_host_lengths(result: Any, backend: Any, *args: Any, **kwargs: Any) -> Any:
    backend.needs_cpu_seq_lens = False
    return result


class ReusedOutputs:
    """Copies the target's outputs into buffers that the next forward of any model fills with NaN."""

    def __init__(self) -> None:
        self._buffers: dict[str, Any] = {}

    def forward(self, original: Any, runner: Any, forward_batch: Any, *args: Any, **kwargs: Any) -> Any:
        # A graph copies its inputs into its own buffers before it runs.
        inputs = getattr(forward_batch, "spec_info", None)
        hidden = getattr(inputs, "hidden_states", None)
        if hidden is not None and self._owns(hidden):
            inputs.hidden_states = hidden.clone()
        for buffer in self._buffers.values():
            buffer.fill_(float("nan"))
        result = original(runner, forward_batch, *args, **kwargs)
        if not runner.is_draft_worker:
            for name in _OUTPUTS:
                value = getattr(result.logits_output, name, None)
                if value is not None:
                    setattr(result.logits_output, name, self._kept(name, value))
        return result

    def _owns(self, tensor: Any) -> bool:
        return any(tensor.data_ptr() == buffer.data_ptr() for buffer in self._buffers.values())

    def _kept(self, name: str, value: Any) -> Any:
        """Copies `value`, float [n, x], into a buffer and returns a view of it."""
        buffer = self._buffers.get(name)
        if buffer is None or len(buffer) < len(value) or buffer.shape[1:] != value.shape[1:]:
            buffer = self._buffers[name] = value.new_empty((max(len(value), 1024), *value.shape[1:]))
        view = buffer[: len(value)]
        view.copy_(value)
        return view


def _stash_as_fixed(original: Any, relay: Any, future_indices: Any, payload: Any) -> Any:
    import dataclasses

    extras = ("topk_p", "topk_index", "hidden_states")
    if not future_indices.shape[0] or relay.spec_algo.is_none() or relay.spec_algo.is_ngram():
        return original(relay, future_indices, payload)
    given = {name for name in extras if getattr(payload, name) is not None}
    carried = relay.__dict__.setdefault("gpu_ways_carried", given)
    if missing := carried - given:
        raise AttributeError(f"the first prefill relayed {', '.join(sorted(missing))}, and this step does not")
    dropped = {name: None for name in given - carried}
    return original(relay, future_indices, dataclasses.replace(payload, **dropped) if dropped else payload)


def _make_checked(original: Any, relay: Any, *args: Any, **kwargs: Any) -> None:
    from sglang.srt.managers import overlap_utils

    overlap_utils._DEBUG_ASSERT = True
    original(relay, *args, **kwargs)


class FailingSteps:
    """Every 16th launch raises. In every other 16th, the host function gets tokens that it cannot read."""

    def __init__(self) -> None:
        self._launches = 0

    def launch(self, original: Any, order: Any, *args: Any, **kwargs: Any) -> Any:
        self._launches += 1
        if self._launches % 16 == 0:
            raise RuntimeError("failed by a test")
        if self._launches % 16 == 8:
            take = order._accepted.take
            order._accepted.take = lambda: [(rows, table[:, :1].copy(), None, None) for rows, table, _, _ in take()]
            try:
                return original(order, *args, **kwargs)
            finally:
                order._accepted.take = take
        return original(order, *args, **kwargs)


class StepLog:
    """Writes a line for each forward of this process: its model, its kind, its number of tokens, and a checksum."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file: Any = None

    def emulated_forward(self, original: Any, forwards: Any, runner: Any, forward_batch: Any) -> Any:
        with forwards.work.left_out():
            self._write(runner, forward_batch)
        return original(forwards, runner, forward_batch)

    def forward(self, original: Any, runner: Any, forward_batch: Any, *args: Any, **kwargs: Any) -> Any:
        self._write(runner, forward_batch)
        return original(runner, forward_batch, *args, **kwargs)

    def _write(self, runner: Any, forward_batch: Any) -> None:
        import torch.distributed

        if self._file is None:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._file = (self._folder / f"rank-{torch.distributed.get_rank()}.txt").open(
                "w", encoding="ascii", buffering=1
            )
        name = "draft" if runner.is_draft_worker else "target"
        inputs = forward_batch.spec_info
        tensors = [
            getattr(forward_batch, field, None) for field in ("input_ids", "positions", "seq_lens", "out_cache_loc")
        ]
        if forward_batch.forward_mode.is_target_verify():
            fields = ("draft_token", "custom_mask", "retrieve_index", "retrieve_next_token", "retrieve_next_sibling")
            tensors += [getattr(inputs, field, None) for field in fields]
        checksum = 0
        for tensor in tensors:
            if tensor is not None:
                checksum = zlib.crc32(tensor.contiguous().numpy().tobytes(), checksum)
        mode, rows, tokens = forward_batch.forward_mode.name, forward_batch.batch_size, len(forward_batch.input_ids)
        lengths = "" if forward_batch.seq_lens_cpu is None else " host lengths"
        self._file.write(f"{name} {mode} {rows} rows {tokens} tokens {checksum:08x}{lengths}\n")
