"""Trees of a drafting loop: the nodes and parents that SGLang's own tree kernel makes of the same candidates."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from agentspec.draft_tree import Source
from agentspec.integrations.sglang.model_trees import model_drafts
from agentspec.integrations.sglang_cpu.tree import build_tree_kernel_efficient_cpu

pytestmark = pytest.mark.sglang


def loop(rng: np.random.Generator, topk: int, steps: int, size: int) -> SimpleNamespace:
    """What a drafting loop would hand on for one row: each step goes on with the `topk` best of the last one."""
    estimates, groups = list(rng.uniform(0.1, 1.0, topk)), [-1]
    ahead = list(range(topk))
    for _ in range(steps - 1):
        groups += ahead
        first = len(estimates)
        for parent in ahead:
            estimates += [estimates[parent] * p for p in rng.uniform(0.1, 1.0, topk)]
        ahead = sorted(range(first, len(estimates)), key=lambda i: -estimates[i])[:topk]
    size = min(size, len(estimates))
    chosen = sorted(sorted(range(len(estimates)), key=lambda i: -estimates[i])[:size])
    return SimpleNamespace(
        parents=torch.tensor([groups]),
        chosen=torch.tensor([chosen]),
        tokens=torch.tensor([[100 + i for i in chosen]]),
        estimates=torch.tensor([[estimates[i] for i in chosen]]),
    )


def paths(tokens: list[int], parents: list[int]) -> set[tuple[int, ...]]:
    """The tokens from below the root to each node."""
    found: list[tuple[int, ...]] = [()]
    for token, parent in zip(tokens[1:], parents[1:], strict=True):
        found.append((*found[parent], token))
    return set(found)


@pytest.mark.parametrize(("topk", "steps"), [(1, 1), (1, 5), (2, 4), (3, 3), (4, 2), (8, 1)])
@pytest.mark.parametrize("seed", range(5))
def test_the_same_tree_as_sglang_s_kernel(topk: int, steps: int, seed: int) -> None:
    trees = loop(np.random.default_rng(seed), topk, steps, size=9)
    width = trees.chosen.shape[1] + 1
    mask = torch.zeros(width * width, dtype=torch.bool)
    links = [torch.full((1, width), -1) for _ in range(3)]
    build_tree_kernel_efficient_cpu(
        *(trees.parents, trees.chosen, torch.tensor([5]), mask, torch.zeros(width, dtype=torch.int64), *links),
        *(topk, steps, width, 1),
    )
    above = mask.view(width, width).tril(-1)
    theirs = [-1] + [int(row.nonzero().max()) for row in above[1:]]

    drafts = model_drafts(trees, [0], [15], np.array([7], np.int32), topk, 0.0)

    assert paths(drafts.tokens.tolist(), drafts.parents.tolist()) == paths([7, *trees.tokens[0].tolist()], theirs)
    assert (np.diff(drafts.estimates) <= 0).all(), "best first"
    assert drafts.scores[0] == pytest.approx(float(trees.estimates.sum()))


def test_rows_that_were_not_drafted_for_are_their_roots() -> None:
    trees = loop(np.random.default_rng(1), topk=2, steps=3, size=6)
    drafts = model_drafts(trees, [1], [15], np.array([7, 8, 9], np.int32), 2, 0.0)
    assert np.diff(drafts.offsets).tolist() == [1, 7, 1]
    assert drafts.tokens[drafts.offsets[:-1]].tolist() == [7, 8, 9]
    assert set(drafts.sources[2:8].tolist()) == {int(Source.MODEL)}


def test_room_and_threshold_cut_the_worst_nodes() -> None:
    trees = loop(np.random.default_rng(2), topk=2, steps=3, size=6)
    best = sorted(trees.estimates[0].tolist(), reverse=True)
    assert model_drafts(trees, [0], [2], np.array([7], np.int32), 2, 0.0).estimates[1:].tolist() == pytest.approx(
        best[:2]
    )
    cut = (best[3] + best[4]) / 2
    assert len(model_drafts(trees, [0], [15], np.array([7], np.int32), 2, cut).tokens) == 5
    assert len(model_drafts(trees, [0], [0], np.array([7], np.int32), 2, 0.0).tokens) == 1
