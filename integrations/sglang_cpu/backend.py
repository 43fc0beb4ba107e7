"""Lets SGLang's fall-back attention backend verify token trees.

Without AMX, SGLang replaces its CPU backend `intel_amx` by `torch_native`, which attends causally only and so cannot
verify a tree. `intel_amx` itself is portable: it calls two ops, and both have a reference here. So the name
`torch_native` is given that implementation, in the registry and in the factory of draft backends.
"""

from __future__ import annotations

import importlib
from typing import Any

_FALL_BACK = "torch_native"
_CPU = "intel_amx"


def patch_sglang() -> None:
    """Patch both places; imports SGLang. Calling it again changes nothing."""
    patch_attention_registry()
    patch_draft_backends()


def patch_attention_registry() -> None:
    """Serve `torch_native` by the implementation registered as `intel_amx`."""
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
