"""Lets SGLang's fall-back attention backend verify token trees.

Without AMX, SGLang replaces its CPU backend `intel_amx` by `torch_native`, which attends causally only and so cannot
verify a tree. `intel_amx` itself is portable: it calls two ops, and both have a reference here. The name
`torch_native` is therefore given that implementation, in the registry and in the factory of draft backends. Some
releases of SGLang compute the lengths of a verify step but do not pass them to the ops; there the lengths are passed.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from typing import Any

from torch import Tensor

_FALL_BACK = "torch_native"
_CPU = "intel_amx"


def patch_attention_registry() -> None:
    """Make `torch_native` name the implementation that is registered as `intel_amx`."""
    registry = importlib.import_module("sglang.srt.layers.attention.attention_registry")
    registry.ATTENTION_BACKENDS[_FALL_BACK] = registry.ATTENTION_BACKENDS[_CPU]


def patch_draft_backends() -> None:
    """Add `torch_native` wherever the factory of draft backends offers `intel_amx`."""
    factory = importlib.import_module("sglang.srt.speculative.draft_utils").DraftBackendFactory
    original = factory._create_backend
    if getattr(original, "_agentspec_cpu", False):
        return

    def create_backend(self: Any, backend_name: str, backend_map: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        extended = {**backend_map, _FALL_BACK: backend_map[_CPU]}
        return original(self, backend_name, extended, *args, **kwargs)

    create_backend._agentspec_cpu = True  # type: ignore[attr-defined]
    factory._create_backend = create_backend


def patch_lengths() -> None:
    """Pass the lengths that the backend computed for the step to the ops; imports SGLang.

    An older release passes the lengths of the batch instead. These do not count the draft tokens that a verify step
    adds to each sequence, and they have one value per request, whereas a draft model's steps need one per branch.
    Calling it again, or on a backend that passes its own lengths, changes nothing.
    """
    backend: Any = importlib.import_module("sglang.srt.layers.attention.intel_amx_backend").IntelAMXAttnBackend
    extend = getattr(backend, "forward_extend", None)
    if extend is None or getattr(extend, "_agentspec_cpu", False):
        return
    # The name occurs in the method's code only if the method reads the batch's attribute.
    if "seq_lens" not in extend.__code__.co_names:
        return
    backend.forward_extend = _with_lengths(extend, _lengths_of_extend)
    backend.forward_decode = _with_lengths(backend.forward_decode, _lengths_of_draft_step)


def _lengths_of_extend(backend: Any) -> Tensor | None:
    """int64 [b], the sequence lengths of the step; None where the batch's lengths are right."""
    return None if backend.extend_metadata is None else backend.extend_metadata[0]


def _lengths_of_draft_step(backend: Any) -> Tensor | None:
    """int64 [b * topk], the sequence lengths of the branches; None where the batch's lengths are right."""
    return None if backend.draft_decode_metadata is None else backend.draft_decode_metadata[1]


def _with_lengths(forward: Callable[..., Any], lengths: Callable[[Any], Tensor | None]) -> Callable[..., Any]:
    @functools.wraps(forward)
    def forward_with_lengths(
        self: Any, q: Any, k: Any, v: Any, layer: Any, forward_batch: Any, *args: Any, **kwargs: Any
    ) -> Any:
        of_the_batch, of_the_step = forward_batch.seq_lens, lengths(self)
        if of_the_step is not None:
            forward_batch.seq_lens = of_the_step
        try:
            return forward(self, q, k, v, layer, forward_batch, *args, **kwargs)
        finally:
            forward_batch.seq_lens = of_the_batch

    forward_with_lengths._agentspec_cpu = True  # type: ignore[attr-defined]
    return forward_with_lengths
