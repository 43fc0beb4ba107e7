"""SGLang's verification samples on a CPU, wherever a release looks for the kernels that this takes."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import pytest

pytest.importorskip("torch", reason="pip install torch")

from agentspec.integrations.sglang_cpu.verification import patch_verification

KERNELS = ("tree_speculative_sampling_target_only", "top_k_renorm_prob", "top_p_renorm_prob")


def own_kernels() -> bool:
    return True


def imported_kernels() -> Any:
    from sgl_kernel import top_k_renorm_prob, top_p_renorm_prob, tree_speculative_sampling_target_only

    return tree_speculative_sampling_target_only, top_k_renorm_prob, top_p_renorm_prob


@pytest.mark.parametrize("imports", [False, True])
def test_the_kernels_are_given_to_the_module_that_is_asked(monkeypatch: pytest.MonkeyPatch, imports: bool) -> None:
    verification, library = ModuleType("eagle_utils"), ModuleType("sgl_kernel")
    monkeypatch.setitem(sys.modules, "sglang.srt.speculative.eagle_utils", verification)
    monkeypatch.setitem(sys.modules, "sgl_kernel", library)
    found: dict[str, Any] = {} if imports else dict.fromkeys(KERNELS)
    found["eagle_sample"] = imported_kernels if imports else own_kernels
    found["_verify_uses_greedy"] = lambda *, is_cpu, use_rejection_sampling: is_cpu or use_rejection_sampling
    vars(verification).update(found)
    patch_verification()
    assert not verification._verify_uses_greedy(is_cpu=True, use_rejection_sampling=False)
    asked = library if imports else verification
    assert all(callable(getattr(asked, name)) for name in KERNELS)
