"""Kernels against their definitions: united trees, their layout, and the tokens that a verification draws from."""

from __future__ import annotations

import os
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hybrid_rows import batch, chain
from programs import output_of

torch = pytest.importorskip("torch", reason="needs torch: run `make setup`")
from every import every

from agentspec.integrations.sglang.kernels.kept_tokens import KeptTokens, _sample
from agentspec.integrations.sglang.kernels.tree_layout import lay_out
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
from agentspec.integrations.sglang_cpu.sampling import top_k_renorm_prob, top_p_renorm_prob

CPU = torch.device("cpu")


def test_the_kernels_make_what_their_definitions_do() -> None:
    """Runs in its own process, because Triton reads only once whether to interpret kernels."""
    pytest.importorskip("triton", reason="needs Triton: run `make setup`")
    script = (
        "import torch; from agentspec.integrations.sglang.kernels import tree_layout as k, tree_union as d; "
        "cpu = torch.device('cpu'); wrong = [s for s in range(40) if not d.agrees(d._with_kernel, cpu, s)]; "
        "assert not wrong, wrong; assert k.kernel_works(cpu); k.kernel_works.cache_clear(); "
        "k._with_kernel = lambda *arguments: arguments[2].flatten(); assert not k.kernel_works(cpu)"
    )
    output_of(sys.executable, "-P", "-c", script, env={**os.environ, "TRITON_INTERPRET": "1"})


def test_the_kernels_compile_for_a_gpu() -> None:
    """Triton compiles for an H100 without one."""
    pytest.importorskip("triton", reason="needs Triton: run `make setup`")
    script = """
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, compile
from agentspec.integrations.sglang.kernels import tree_layout, tree_union
kinds = dict(packed="*i32", model_estimates="*fp32", cells="*u8", mask="*u8", lens="*i32", min_estimate="fp32", factor="fp32")
pointers = ("parents", "chosen", "model_tokens", "tokens", "depths", "positions", "next_token", "next_sibling", "report")
kinds |= dict.fromkeys((*pointers, "seq_lens", "roots"), "*i64")
for kernel in (tree_layout._compiled(), tree_union._compiled()):
    constants = {name: 64 if "BLOCK" in name else True for name in kernel.arg_names if name.isupper()}
    signature = {name: "constexpr" if name in constants else kinds.get(name, "i32") for name in kernel.arg_names}
    made = compile(ASTSource(kernel, signature, constants), target=GPUTarget("cuda", 90, 32), options={"num_warps": 1})
    assert made.asm["cubin"]
"""
    output_of(sys.executable, "-P", "-c", script)


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


WHOLE = 1 << 30


def plain(probs: torch.Tensor, top_k: int, top_p: float, min_p: float) -> torch.Tensor:
    """What SGLang's sampler in plain torch draws from, for one row."""
    likeliest, order = probs.sort(descending=True)
    mass_before = likeliest.cumsum(0) - likeliest
    kept = (torch.arange(len(probs)) < top_k) & (mass_before <= top_p) & (likeliest >= likeliest[0] * min_p)
    weights = torch.zeros_like(probs).scatter(0, order, likeliest * kept)
    return weights / weights.sum()


@pytest.mark.parametrize("has_min_p", [False, True])
def test_all_three_are_judged_by_the_models_own_probabilities(has_min_p: bool) -> None:
    generator = torch.Generator().manual_seed(3)
    probs = torch.softmax(torch.randn(40, 50, generator=generator) * 2, dim=-1)
    rows = [(k, p, m) for k in (1, 5, 20, WHOLE) for p in (0.3, 0.8, 1.0) for m in (0.0, 0.2, 0.9)][:40]
    rows += [(WHOLE, 1.0, 0.0)] * (40 - len(rows))
    if not has_min_p:
        rows = [(k, p, 0.0) for k, p, _ in rows]
    top_ks, top_ps = torch.tensor([k for k, _, _ in rows]), torch.tensor([p for _, p, _ in rows])
    min_ps = torch.tensor([m for *_, m in rows]) if has_min_p else None
    kept = KeptTokens(top_k_renorm_prob, top_p_renorm_prob, min_ps)
    found = kept.top_p(kept.top_k(probs, top_ks), top_ps)
    expected = torch.stack([plain(row, *limits) for row, limits in zip(probs, rows, strict=True)])
    torch.testing.assert_close(found, expected)


def test_without_top_k_the_whole_mass_counts() -> None:
    probs = torch.tensor([[0.5, 0.3, 0.2]])
    kept = KeptTokens(top_k_renorm_prob, top_p_renorm_prob, torch.tensor([0.5]))
    torch.testing.assert_close(kept.top_p(probs, torch.tensor([1.0])), torch.tensor([[0.625, 0.375, 0.0]]))


# How releases of SGLang find the two kernels when they verify sampled answers.
FROM_SGL_KERNEL = "from sgl_kernel import top_k_renorm_prob, top_p_renorm_prob"
FROM_FLASHINFER = """if _is_cuda:
        from flashinfer.sampling import top_k_renorm_probs as top_k_renorm_prob
        from flashinfer.sampling import top_p_renorm_probs as top_p_renorm_prob
    else:
        from sgl_kernel import top_k_renorm_prob, top_p_renorm_prob"""
EAGLE_SAMPLE = """def eagle_sample(verify_input, batch):
    {found}
    sampling = batch.sampling_info
    kept = top_k_renorm_prob(batch.probs, sampling.top_ks)
    return top_p_renorm_prob(kept, sampling.top_ps) if sampling.need_top_p_sampling else kept
"""


@pytest.mark.parametrize(
    ("found", "is_cuda", "place"),
    [
        ("pass", True, "sglang.srt.speculative.eagle_utils"),
        (FROM_SGL_KERNEL, True, "sgl_kernel"),
        (FROM_FLASHINFER, True, "flashinfer.sampling"),
        (FROM_FLASHINFER, False, "sgl_kernel"),
    ],
    ids=["0.5.23", "0.5.17", "0.5.21 on a GPU", "0.5.21 on a CPU"],
)
def test_the_kernels_are_replaced_wherever_a_release_finds_them(
    monkeypatch: pytest.MonkeyPatch, found: str, is_cuda: bool, place: str
) -> None:
    modules = {
        name: ModuleType(name) for name in ("sglang.srt.speculative.eagle_utils", "sgl_kernel", "flashinfer.sampling")
    }
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    ending = "s" if place == "flashinfer.sampling" else ""
    kernels = {f"top_k_renorm_prob{ending}": top_k_renorm_prob, f"top_p_renorm_prob{ending}": top_p_renorm_prob}
    vars(modules[place]).update(kernels)
    verification = modules["sglang.srt.speculative.eagle_utils"]
    vars(verification)["_is_cuda"] = is_cuda
    exec(EAGLE_SAMPLE.format(found=found), vars(verification))  # noqa: S102
    probs = torch.softmax(torch.randn(3, 50, generator=torch.Generator().manual_seed(5)) * 2, dim=-1)
    sampling = SimpleNamespace(
        top_ks=torch.full((3,), 20), top_ps=torch.full((3,), 0.8), min_ps=torch.tensor([0.2]), is_all_greedy=False,
        need_top_k_sampling=True, need_top_p_sampling=True, need_min_p_sampling=True,
    )  # fmt: skip
    batch = SimpleNamespace(probs=probs, sampling_info=sampling, forward_mode=SimpleNamespace(is_idle=lambda: False))
    kept = _sample(verification.eagle_sample, SimpleNamespace(draft_token_num=3), batch)
    torch.testing.assert_close(kept, torch.stack([plain(row, 20, 0.8, 0.2) for row in probs]))
    assert {name: getattr(modules[place], name) for name in kernels} == kernels


@every("seed", range(8))
def test_rows_begin_where_the_device_says(seed: int) -> None:
    rng = np.random.default_rng(seed)
    rows, width, most = int(rng.integers(1, 6)), int(rng.integers(1, 9)), int(rng.integers(1, 5))
    tokens, depths = rng.integers(0, 99, (rows, width)), rng.integers(0, 5, (rows, width))
    cells = rng.random((rows, width, width)) < 0.5
    seq_lens, roots = rng.integers(1, 40, rows), rng.integers(100, 200, (rows, most))
    lens = rng.integers(1, most + 1, rows)
    arrays = [torch.from_numpy(array.copy()) for array in (tokens, depths, cells)]
    given = [torch.from_numpy(array) for array in (seq_lens, roots.astype(np.int32), lens.astype(np.int32))]
    spare = int(rng.integers(0, 3))
    mask = lay_out(*arrays, *given, max_position=25, total=int(seq_lens.sum()) + spare)
    assert arrays[0][:, 0].tolist() == [roots[row, lens[row] - 1] for row in range(rows)]
    assert arrays[0][:, 1:].tolist() == tokens[:, 1:].tolist()
    assert arrays[1].tolist() == np.minimum(depths + seq_lens[:, None], 25).tolist()
    lines = [np.concatenate([np.ones(seq_lens[row], bool), cells[row, i]]) for row in range(rows) for i in range(width)]
    assert mask[: sum(map(len, lines))].tolist() == np.concatenate(lines).tolist()
    assert len(mask) == width * (seq_lens.sum() + spare + rows * width)


def test_without_a_prefix_the_mask_is_the_trees_own() -> None:
    cells = torch.rand(2, 3, 3) < 0.5
    tokens, depths = torch.zeros(2, 3, dtype=torch.int64), torch.zeros(2, 3, dtype=torch.int64)
    roots = torch.tensor([[7], [8]])
    mask = lay_out(tokens, depths, cells, torch.tensor([4, 5]), roots, None, max_position=99, total=None)
    assert mask.tolist() == cells.flatten().tolist()
    assert tokens[:, 0].tolist() == [7, 8]
