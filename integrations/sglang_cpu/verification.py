"""Lets SGLang sample when it verifies drafts on a CPU.

When every request of a batch is greedy, SGLang verifies against the target's most likely tokens. At temperature > 0 it
samples along the tree, except on a CPU: it has no kernels for that there and commits the most likely tokens at every
temperature. `sampling` provides the kernels, so this patch removes the exception. All of SGLang's speculative workers
verify through the patched function.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from typing import Any

_IS_GREEDY = "_verify_uses_greedy"
_SAMPLE, _IS_CPU = "eagle_sample", "_is_cpu"
# Where older releases import the kernels from when they sample.
_LIBRARY = "sgl_kernel"
_KERNELS = ("tree_speculative_sampling_target_only", "top_k_renorm_prob", "top_p_renorm_prob")


def patch_verification() -> None:
    """Add the missing kernels to SGLang's verification and let it use them; imports SGLang.

    Calling it again changes nothing. It does nothing if SGLang chooses or looks up its kernels in an unknown way.
    """
    verification: Any = importlib.import_module("sglang.srt.speculative.eagle_utils")
    original, sample = getattr(verification, _IS_GREEDY, None), getattr(verification, _SAMPLE, None)
    if getattr(original or sample, "_agentspec_cpu", False):
        return
    # A name occurs in the function's code only if the function reads that global variable, or imports that module.
    names = () if sample is None else sample.__code__.co_names
    has_own = all(hasattr(verification, name) for name in _KERNELS)
    if original is not None and (has_own or _LIBRARY in names):
        _give_kernels(verification if has_own else importlib.import_module(_LIBRARY))
        setattr(verification, _IS_GREEDY, _as_with_kernels(original))
    elif original is None and sample is not None and _IS_CPU in names:
        _give_kernels(importlib.import_module(_LIBRARY))
        setattr(verification, _SAMPLE, _sampling_with_kernels(verification, sample))


def _give_kernels(module: Any) -> None:
    sampling = importlib.import_module("agentspec.integrations.sglang_cpu.sampling")
    for name in _KERNELS:
        # SGLang sets a kernel to None if its platform lacks it.
        if getattr(module, name, None) is None:
            setattr(module, name, getattr(sampling, name))


def _as_with_kernels(original: Callable[..., bool]) -> Callable[..., bool]:
    def verify_uses_greedy(*, is_cpu: bool, use_rejection_sampling: bool, **conditions: Any) -> bool:
        # Rejection sampling has a separate Triton kernel, which does not run on a CPU.
        is_cpu = is_cpu and use_rejection_sampling
        return original(is_cpu=is_cpu, use_rejection_sampling=use_rejection_sampling, **conditions)

    verify_uses_greedy._agentspec_cpu = True  # type: ignore[attr-defined]
    return verify_uses_greedy


def _sampling_with_kernels(verification: Any, sample: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps `eagle_sample` of an older release, which reads from a global variable whether it runs on a CPU.

    The variable is False while a batch is sampled. None of the functions called then reads it, because greedy batches
    take another path.
    """
    context: Any = importlib.import_module("sglang.srt.runtime_context")

    @functools.wraps(sample)
    def eagle_sample(verify_input: Any, batch: Any, *args: Any, **kwargs: Any) -> Any:
        draws = (
            not batch.forward_mode.is_idle()
            and not batch.sampling_info.is_all_greedy
            and not context.get_spec().speculative_use_rejection_sampling
        )
        before = getattr(verification, _IS_CPU)
        setattr(verification, _IS_CPU, before and not draws)
        try:
            return sample(verify_input, batch, *args, **kwargs)
        finally:
            setattr(verification, _IS_CPU, before)

    eagle_sample._agentspec_cpu = True  # type: ignore[attr-defined]
    return eagle_sample
