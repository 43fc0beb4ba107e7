"""A verification draws from the tokens that plain decoding keeps, each judged by the model's own probabilities."""

from __future__ import annotations

import pytest
import torch

from agentspec.integrations.sglang.kernels.kept_tokens import KeptTokens
from agentspec.integrations.sglang_cpu.sampling import top_k_renorm_prob, top_p_renorm_prob

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
