"""Trees that the device makes of both drafts: the kernel against its definition, and what it reports."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from hybrid_rows import batch, chain

torch = pytest.importorskip("torch", reason="needs torch: run `make setup`")
from agentspec.integrations.sglang.kernels.tree_union import (
    ModelTensors,
    UnionLimits,
    agrees,
    can_unite,
    num_integers,
    pack,
    report_width,
    unite_on_device,
    unpack,
)

CPU = torch.device("cpu")


def test_the_kernel_makes_the_same_trees_as_its_definition() -> None:
    """Runs in its own process, because Triton reads only once whether to interpret kernels."""
    pytest.importorskip("triton", reason="needs Triton: run `make setup`")
    script = (
        "import torch; from agentspec.integrations.sglang.kernels import tree_union as d; "
        "wrong = [s for s in range(40) if not d.agrees(d._with_kernel, torch.device('cpu'), s)]; assert not wrong, wrong"
    )
    subprocess.run([sys.executable, "-P", "-c", script], check=True, env={**os.environ, "TRITON_INTERPRET": "1"})


@pytest.mark.parametrize("module", ["tree_union", "tree_layout"])
def test_the_kernels_compile_for_a_gpu(module: str) -> None:
    """Triton compiles for an H100 without one."""
    pytest.importorskip("triton", reason="needs Triton: run `make setup`")
    script = f"""
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, compile
from agentspec.integrations.sglang.kernels import {module} as module
kernel = module._compiled()
kinds = dict(packed="*i32", model_estimates="*fp32", cells="*u8", mask="*u8", lens="*i32", min_estimate="fp32", factor="fp32")
pointers = ("parents", "chosen", "model_tokens", "tokens", "depths", "positions", "next_token", "next_sibling", "report")
kinds |= dict.fromkeys((*pointers, "seq_lens", "roots"), "*i64")
constants = {{name: 64 if "BLOCK" in name else True for name in kernel.arg_names if name.isupper()}}
signature = {{name: "constexpr" if name in constants else kinds.get(name, "i32") for name in kernel.arg_names}}
made = compile(ASTSource(kernel, signature, constants), target=GPUTarget("cuda", 90, 32), options={{"num_warps": 1}})
assert made.asm["cubin"]
"""
    subprocess.run([sys.executable, "-P", "-c", script], check=True)


def test_a_device_that_makes_other_trees_is_not_used() -> None:
    def wrong(*arguments: Any) -> None:
        unite_on_device(*arguments)
        arguments[-1][:, 0] += 1

    assert can_unite(CPU)
    assert not all(agrees(wrong, CPU, seed) for seed in range(3))


def test_a_tree_and_its_report() -> None:
    #   suffix   9 ─ 1 ─ 2        the draft model   9 ─┬─ 1 ─ 3
    #                                                  └─ 4 (too unlikely)
    drafts = batch([chain([1, 2], [0.5, 0.375], root=9), chain([1, 2], [0.5, 0.375], root=9)])
    rooms, wanted = np.array([3, 3], np.int32), np.array([True, False])
    packed = np.zeros(num_integers(2, 6), np.int32)
    assert pack(drafts, rooms, wanted, packed) == len(packed)
    model = ModelTensors(
        torch.tensor([[-1, 0]] * 2),
        torch.tensor([[0, 1, 2]] * 2),
        torch.tensor([[1, 4, 3]] * 2),
        torch.tensor([[0.75, 0.01, 0.5]] * 2),
        topk=2,
    )
    tokens, depths, children, siblings = (torch.zeros((2, 5), dtype=torch.int64) for _ in range(4))
    cells, report = torch.zeros((2, 5, 5), dtype=torch.bool), torch.zeros((2, report_width(3)), dtype=torch.int64)
    limits = UnionLimits(5, float(np.float32(0.05)), 1.0)
    unite_on_device(torch.from_numpy(packed), 6, model, limits, tokens, depths, children, siblings, cells, report)
    assert tokens[:, 1:].tolist() == [[1, 3, 2, 0], [1, 2, 0, 0]]
    assert depths.tolist() == [[0, 1, 2, 2, 1], [0, 1, 2, 1, 1]]
    assert children.tolist() == [[1, 2, -1, -1, -1], [1, 2, -1, -1, -1]]
    assert siblings.tolist() == [[-1, -1, 3, -1, -1], [-1] * 5]
    assert cells[0].int().tolist() == [
        [1, 0, 0, 0, 0],
        [1, 1, 0, 0, 0],
        [1, 1, 1, 0, 0],
        [1, 1, 0, 1, 0],
        [1, 0, 0, 0, 1],
    ]
    found = unpack(report.numpy())
    assert found.num_nodes.tolist() == [3, 2]
    assert found.model_first.tolist() == [True, False]
    assert found.verified.tolist() == [True, True]
    assert found.model_tokens.tolist() == [[-1, 1, -1, 3], [-1] * 4]
    assert found.model_parents[0].tolist() == [-1, 0, 0, 1]
    assert found.model_estimates.tolist() == [[0.0, 0.75, 0.0, 0.5], [0.0] * 4]
    followed, _ = found.model_followed(np.array([[1, 3, 8], [1, 2, 8]]), np.array([2, 2], np.int32))
    assert followed.tolist() == [2, 0]
