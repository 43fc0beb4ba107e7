"""Lets SGLang sample when it verifies drafts on a CPU.

Where every request of a batch is greedy, SGLang verifies by the target's likeliest tokens. At temperature > 0 it walks
the tree with coins, except on a CPU: it has no kernels for that there and commits the likeliest tokens instead, whatever
temperature was asked for. `sampling` has the kernels, so the exception is taken away. All of SGLang's drafters verify
there.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

_IS_GREEDY = "_verify_uses_greedy"
_KERNELS = ("tree_speculative_sampling_target_only", "top_k_renorm_prob", "top_p_renorm_prob")


def patch_verification() -> None:
    """Give SGLang's verification the kernels it lacks and let it use them; imports SGLang.

    Calling it again changes nothing. Does nothing where SGLang does not decide and look up its kernels as here.
    """
    verification: Any = importlib.import_module("sglang.srt.speculative.eagle_utils")
    original = getattr(verification, _IS_GREEDY, None)
    if original is None or not all(hasattr(verification, name) for name in _KERNELS):
        return
    if getattr(original, "_agentspec_cpu", False):
        return
    sampling = importlib.import_module("agentspec.integrations.sglang_cpu.sampling")
    for name in _KERNELS:
        # SGLang has None for a kernel that its platform lacks.
        if getattr(verification, name) is None:
            setattr(verification, name, getattr(sampling, name))
    setattr(verification, _IS_GREEDY, _as_with_kernels(original))


def _as_with_kernels(original: Callable[..., bool]) -> Callable[..., bool]:
    def verify_uses_greedy(*, is_cpu: bool, use_rejection_sampling: bool, **conditions: Any) -> bool:
        # Rejection sampling has a kernel of its own, in Triton, which a CPU lacks.
        is_cpu = is_cpu and use_rejection_sampling
        return original(is_cpu=is_cpu, use_rejection_sampling=use_rejection_sampling, **conditions)

    verify_uses_greedy._agentspec_cpu = True  # type: ignore[attr-defined]
    return verify_uses_greedy
