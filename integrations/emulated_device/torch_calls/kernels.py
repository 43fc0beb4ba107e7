"""Wraps functions that are one kernel on a GPU but Python on this CPU, so that each counts as one kernel.

A function is recognised by the module that defines it: the stand-ins for SGLang's kernels on a CPU, or SGLang's own
wrappers of kernels. All loaded modules are searched, because each module that imports such a function holds its own
reference.
"""

from __future__ import annotations

import importlib
import sys
from types import FunctionType, ModuleType
from typing import Any

from agentspec.integrations.emulated_device.device.work import Work

_DEFINED_IN = ("sglang.kernels.", "sgl_kernel", "agentspec.integrations.sglang_cpu.")
# SGLang keeps the n-gram corpus among its kernels, although it works on the host.
_ON_HOST = ("sglang.kernels.ops.speculative.ngram_corpus",)
_USED_IN = ("sglang.", "sgl_kernel", "agentspec.integrations.")
# On a GPU, SGLang uses a kernel of the same module in place of each of these functions.
_BY_NAME = (
    "sglang.srt.mem_cache.allocation.write_cache_indices",
    "sglang.srt.mem_cache.allocation.get_last_loc",
    "sglang.srt.model_executor.forward_batch_info.compute_position",
    "sglang.srt.speculative.spec_utils.select_top_k_tokens",
    "sglang.srt.managers.overlap_utils._assert_nonneg_and_invalidate",
    "agentspec.integrations.sglang.kernels.tree_layout.lay_out",
    "agentspec.integrations.sglang.kernels.tree_union.unite_on_device",
)


# Methods that queue a collective on the current stream. Ranks wait for each other when it is launched, for the emulated
# device works at launches; that time is excluded, and none is added for the other devices.
_COLLECTIVES = (("sglang.srt.distributed.parallel_state.GroupCoordinator", "broadcast"),)


def wrap_kernels(work: Work) -> list[str]:
    """Wraps these functions in every loaded module and returns their names."""
    for path, name in _COLLECTIVES:
        if (owner := _found(path)) is not None:
            setattr(owner, name, work.as_kernel(getattr(owner, name)))
    wrapped: dict[int, Any] = {}
    names: list[str] = []

    def of(function: FunctionType) -> Any:
        key = id(function)
        if key not in wrapped:
            wrapped[key] = work.as_kernel(function)
            names.append(f"{function.__module__}.{function.__qualname__}")
        return wrapped[key]

    listed = {id(function) for function in map(_found, _BY_NAME) if function is not None}
    for module in _modules():
        for name, value in list(vars(module).items()):
            if not isinstance(value, FunctionType) or getattr(value, "_emulated_kernel", False):
                continue
            defined_in = value.__module__ or ""
            if (defined_in.startswith(_DEFINED_IN) and defined_in not in _ON_HOST) or id(value) in listed:
                setattr(module, name, of(value))
    return sorted(names)


def _modules() -> list[ModuleType]:
    loaded = [(name, module) for name, module in list(sys.modules.items()) if isinstance(module, ModuleType)]
    return [module for name, module in loaded if name.startswith(_USED_IN) and "emulated_device" not in name]


def _found(path: str) -> Any:
    module, _, name = path.rpartition(".")
    try:
        return getattr(importlib.import_module(module), name, None)
    except ImportError:
        return None
