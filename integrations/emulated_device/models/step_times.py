"""The times that a GPU would take for SGLang's work, and those that its host takes to launch the work.

`DEVICES` holds models on one NVIDIA H200; every number has its source in docs/emulated-device.md:

    memory         4.8 TB/s by NVIDIA's datasheet; 4.0 reached (0.83, assumed: an H100 with 3.35 TB/s decodes
                   Llama-3.1-8B in 5.1 ms per token with CUDA graphs, which is 0.88 of its bandwidth, cloudai.pt;
                   SGLang's own documentation reports 158 tokens/s, which is 0.71 including the host's time)
    bfloat16       989 TFLOP/s by the datasheet; 600 reached (0.61, assumed: one large product reaches 780 on an H100,
                   gist Chillee/2ec89696; the products of a layer are smaller)
    layer          12.5 us in addition to bytes and operations (assumed: 0.4 ms for 32 layers)
    small kernel   2.5 us on the device (assumed)
    copy           6 us and 50 GB/s (a small cudaMemcpyAsync takes 5 to 7 us: DualPath, arXiv 2602.21548, section 5.2;
                   PCIe 5.0 x16 transfers 64 GB/s, and 50 are assumed to be reached)
    host function  5 us until the host runs it (assumed; public measurements on an H100 tell 1 to 8 us)
    eager op       8 us on the host (5 to 25 us from Python to a kernel on an H100: jiahuanglin.xyz, lesson 18; 4 to
                   6 us for the launch alone: susun-blog.com, pegainfer 3)
    graph launch   0.1 ms on the host: 4 to 8 us for the launch (CUDA.jl's documentation) and about 11 eager operations
                   that copy a batch into the graph's tensors and prepare attention (assumed)
    prefill        11 eager operations per layer (assumed)

With these values, Llama-3.1-8B takes 4.2 ms to decode or to verify 16 tokens of one row, 8.4 ms to decode 64 rows with
2,000 tokens of context each, and 11.0 ms to verify 4 tokens of each of these rows.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any

from pydantic import ConfigDict, Field, StrictBool, ValidationError
from pydantic.dataclasses import dataclass as checked

from agentspec.errors import ConfigError
from agentspec.integrations.emulated_device.models.forward_times import (
    Accelerator,
    ForwardTime,
    ModelShape,
    Seconds,
    head_extend_time,
    head_time,
    prefill_time,
    target_time,
)

_FORMAT, _VERSION = "agentspec-step-times", 1
_PASSES = ("target_pass", "prefill_pass", "draft", "extend")

SCALABLE: Mapping[str, tuple[str, ...]] = {
    "memory": ("weights", "per_context", "kernel_seconds_per_byte"),
    "arithmetic": ("per_token", "per_pair"),
    "passes": ("fixed",),
    "launches": ("host_launch", "host_graph_launch", "host_prefill_launch"),
    "small": ("kernel_seconds", "copy_seconds", "host_function_dispatch"),
}
"""What `StepTimes.scaled` scales together: reading the device's memory, operations, what a pass takes besides both, the
host's launches, and small work of the device."""

DRAFT_VOCABULARY = 32000
"""The number of tokens in the draft vocabulary of a published EAGLE-3 head."""


@checked(frozen=True, slots=True, kw_only=True, config=ConfigDict(extra="forbid"))
class StepTimes:
    """Seconds of all work of an emulated device, and of the launches of its host. Raises ValueError if a value has the
    wrong type or is negative."""

    name: Annotated[str, Field(min_length=1)]
    """The name of the model and its device, for reports."""
    blocking: StrictBool
    """Whether the host waits for every pass, as on a CPU. If not, work is queued, as on a GPU."""
    target_pass: ForwardTime
    prefill_pass: ForwardTime
    draft: ForwardTime
    """The time of a pass of the draft model."""
    extend: ForwardTime
    """The time of the draft model's pass over verified or prompt tokens."""
    kernel_seconds: Seconds = 0.0
    """Seconds of a small eager kernel on the device."""
    kernel_seconds_per_byte: Seconds = 0.0
    copy_seconds: Seconds = 0.0
    """Seconds of a small copy between host and device."""
    copy_seconds_per_byte: Seconds = 0.0
    host_function_dispatch: Seconds = 0.0
    """Seconds from when a stream comes to a function of the host until the host runs it."""
    host_launch: Seconds = 0.0
    """Seconds of the host for one eager torch operation on a GPU."""
    host_graph_launch: Seconds = 0.0
    """Seconds of the host to fill a captured graph's inputs and launch it."""
    host_prefill_launch: Seconds = 0.0
    """Seconds of the host to launch a prefill, which runs without a graph."""
    note: str = ""
    """The sources of the figures."""
    model: str = ""
    """The model that these are times of, by its name in DEVICES: `agentspec eval` serves its tokenizer, context length and
    KV cache. "": not one of them."""

    def target(self, rows: int, tokens: int, context: int) -> float:
        """Seconds of a decode or verify step of `rows` requests. `tokens`: computed tokens over all rows, padding
        included. `context`: tokens in the KV cache over all rows."""
        return self.target_pass.seconds(rows, tokens, context)

    def prefill(self, tokens: int, context: int, rows: int = 1) -> float:
        """Seconds of a prefill. `tokens`: new tokens over all rows. `context`: tokens in the KV cache over all rows
        once the prefill is done, the new ones included."""
        # On average, a token attends to all cached tokens and to half of the new ones.
        return self.prefill_pass.seconds(rows, tokens, max(context - tokens / 2, tokens / 2))

    def draft_pass(self, rows: int, context: int) -> float:
        """Seconds of one pass of the draft model. `rows`: tokens that the pass computes; with trees, each row's
        branches. `context`: tokens in the draft model's KV cache over all rows."""
        return self.draft.seconds(rows, rows, context)

    def draft_extend(self, tokens: int, context: int, rows: int = 1) -> float:
        """Seconds of the draft model's pass over verified tokens or a prompt. `tokens`: computed tokens over all rows,
        padding included. `context`: tokens in the draft model's KV cache over all rows once it is done."""
        return self.extend.seconds(rows, tokens, max(context - tokens / 2, tokens / 2))

    def kernel(self, num_bytes: int = 0) -> float:
        """Seconds of one small eager kernel on the device. `num_bytes`: bytes that it reads and writes."""
        return self.kernel_seconds + self.kernel_seconds_per_byte * num_bytes

    def copy(self, num_bytes: int) -> float:
        """Seconds of a copy of `num_bytes` between host and device."""
        return self.copy_seconds + self.copy_seconds_per_byte * num_bytes

    def scaled(self, name: str, factors: Mapping[str, float]) -> StepTimes:
        """The step times of a device on which some parts take longer or shorter. `name`: that of the result. `factors`:
        by names of SCALABLE, what to multiply these seconds with. Raises ConfigError if a name is unknown or a factor is
        not above 0."""
        wrong = [part for part, factor in factors.items() if part not in SCALABLE or not 0 < factor < float("inf")]
        if wrong:
            raise ConfigError(
                f"parts of step times are {', '.join(SCALABLE)}, each with a factor above 0; "
                f"got {', '.join(f'{part}={factors[part]:g}' for part in wrong)}"
            )
        by_field = {field: factor for part, factor in factors.items() for field in SCALABLE[part]}

        def of(one: Any) -> dict[str, Any]:
            return {field: getattr(one, field) * factor for field, factor in by_field.items() if hasattr(one, field)}

        passes = {of_pass: replace(getattr(self, of_pass), **of(getattr(self, of_pass))) for of_pass in _PASSES}
        told = ", ".join(f"{part} x {factor:g}" for part, factor in factors.items())
        note = f"{self.name} with {told}; {self.note}" if told else self.note
        return replace(self, name=name, note=note, **passes, **of(self))

    def to_json(self) -> dict[str, Any]:
        """The step times in the form that `load` reads from a file."""
        return {"format": _FORMAT, "version": _VERSION, **asdict(self)}

    def save(self, path: str | Path) -> None:
        """Writes the step times to a JSON file."""
        Path(path).write_text(json.dumps(self.to_json(), indent=1) + "\n", encoding="utf-8")

    @staticmethod
    def load(name_or_path: str | Path) -> StepTimes:
        """The step times of this name in DEVICES, or of a JSON file. Raises ConfigError if there is no such name and no
        such file, or the file holds no valid step times."""
        known = DEVICES.get(str(name_or_path))
        if known is not None:
            return known
        path = Path(name_or_path)
        if not path.is_file():
            raise ConfigError(
                f"step times must be one of {', '.join(DEVICES)}, or a file of `agentspec bench emulation`; "
                f"got {str(name_or_path)!r}"
            )
        try:
            return _parsed(json.loads(path.read_text(encoding="utf-8")))
        except ConfigError as error:
            raise ConfigError(f"{path}: {error}") from error
        except ValidationError as error:
            told = "; ".join(f"{'.'.join(map(str, of['loc']))}: {of['msg']}" for of in error.errors())
            raise ConfigError(f"{path} holds no step times: {told}") from error
        except (OSError, KeyError, TypeError, ValueError, AttributeError) as error:
            raise ConfigError(f"{path} holds no step times: {error!r}") from error


def _parsed(content: Mapping[str, Any]) -> StepTimes:
    if (content["format"], content["version"]) != (_FORMAT, _VERSION):
        raise ConfigError(f"the format must be {_FORMAT} {_VERSION}, got {content['format']} {content['version']}")
    values = {name: value for name, value in content.items() if name not in ("format", "version")}
    return StepTimes(**values)


LLAMA_8B = ModelShape(
    hidden_size=4096,
    intermediate_size=14336,
    num_hidden_layers=32,
    num_attention_heads=32,
    num_key_value_heads=8,
    vocab_size=128256,
)
"""meta-llama/Llama-3.1-8B-Instruct: 8.03e9 parameters, 131,072 bytes of KV cache per token."""

QWEN_32B = ModelShape(
    hidden_size=5120,
    intermediate_size=27648,
    num_hidden_layers=64,
    num_attention_heads=40,
    num_key_value_heads=8,
    vocab_size=152064,
)
"""Qwen/Qwen2.5-Coder-32B-Instruct: 32.8e9 parameters, 262,144 bytes of KV cache per token."""

H200 = Accelerator(bandwidth=4.0e12, flops=600e12, layer_seconds=12.5e-6, output_seconds=20e-6)
_KERNELS_A_LAYER = 11
_HOST_LAUNCH = 8e-6


def _on_h200(name: str, shape: ModelShape) -> StepTimes:
    return StepTimes(
        name=name,
        blocking=False,
        target_pass=target_time(shape, H200),
        prefill_pass=prefill_time(shape, H200),
        draft=head_time(shape, H200, DRAFT_VOCABULARY),
        extend=head_extend_time(shape, H200, DRAFT_VOCABULARY),
        kernel_seconds=2.5e-6,
        kernel_seconds_per_byte=1 / H200.bandwidth,
        copy_seconds=6e-6,
        copy_seconds_per_byte=1 / 50e9,
        host_function_dispatch=5e-6,
        host_launch=_HOST_LAUNCH,
        host_graph_launch=1e-4,
        host_prefill_launch=shape.num_hidden_layers * _KERNELS_A_LAYER * _HOST_LAUNCH,
        note="roofline; sources in docs/emulated-device.md",
        model=name,
    )


DEVICES: dict[str, StepTimes] = {
    "h200-8b": _on_h200("h200-8b", LLAMA_8B),
    "h200-32b": _on_h200("h200-32b", QWEN_32B),
}
