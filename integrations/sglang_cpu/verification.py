"""Lets SGLang sample when it verifies drafts on a CPU.

Where every request of a batch is greedy, SGLang verifies by the target's likeliest tokens. At temperature > 0 it walks
the tree with coins, except on a CPU: it has no kernels for that there and commits the likeliest tokens instead, whatever
temperature was asked for. `sampling` has the kernels, so the exception is taken away. All of SGLang's drafters verify
there.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from typing import Any

_IS_GREEDY = "_verify_uses_greedy"
_SAMPLE, _IS_CPU = "eagle_sample", "_is_cpu"
_KERNELS = ("tree_speculative_sampling_target_only", "top_k_renorm_prob", "top_p_renorm_prob")


def patch_verification() -> None:
    """Give SGLang's verification the kernels it lacks and let it use them; imports SGLang.

    Calling it again changes nothing. Does nothing where SGLang does not decide and look up its kernels as here.
    """
    verification: Any = importlib.import_module("sglang.srt.speculative.eagle_utils")
    original, sample = getattr(verification, _IS_GREEDY, None), getattr(verification, _SAMPLE, None)
    if getattr(original or sample, "_agentspec_cpu", False):
        return
    if original is not None:
        if all(hasattr(verification, name) for name in _KERNELS):
            _give_kernels(verification)
            setattr(verification, _IS_GREEDY, _as_with_kernels(original))
    # Only a function that decides by the global variable has the variable's name in its code.
    elif sample is not None and _IS_CPU in sample.__code__.co_names:
        # An older release imports the kernels when it samples.
        _give_kernels(importlib.import_module("sgl_kernel"))
        setattr(verification, _SAMPLE, _sampling_with_kernels(verification, sample))


def _give_kernels(module: Any) -> None:
    sampling = importlib.import_module("agentspec.integrations.sglang_cpu.sampling")
    for name in _KERNELS:
        # SGLang has None for a kernel that its platform lacks.
        if getattr(module, name, None) is None:
            setattr(module, name, getattr(sampling, name))


def _as_with_kernels(original: Callable[..., bool]) -> Callable[..., bool]:
    def verify_uses_greedy(*, is_cpu: bool, use_rejection_sampling: bool, **conditions: Any) -> bool:
        # Rejection sampling has a kernel of its own, in Triton, which a CPU lacks.
        is_cpu = is_cpu and use_rejection_sampling
        return original(is_cpu=is_cpu, use_rejection_sampling=use_rejection_sampling, **conditions)

    verify_uses_greedy._agentspec_cpu = True  # type: ignore[attr-defined]
    return verify_uses_greedy


def _sampling_with_kernels(verification: Any, sample: Callable[..., Any]) -> Callable[..., Any]:
    """`eagle_sample` of an older release, which reads in a global variable whether it runs on a CPU. While it samples,
    the variable says that it does not; nothing that it calls then reads it, for greedy batches go the other way."""
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
