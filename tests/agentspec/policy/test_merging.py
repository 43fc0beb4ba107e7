"""Merged trees against a plain rewriting of their definition."""

from __future__ import annotations

import numpy as np
import pytest
from hybrid_rows import chain

from agentspec.policy.merging import Tree, merge

Path = tuple[int, ...]


def random_tree(rng: np.random.Generator, source: int) -> Tree:
    """Up to 12 nodes over 3 tokens, siblings of distinct tokens; best first or not."""
    tree = Tree([9], [-1], [1.0], [0])
    for _ in range(int(rng.integers(0, 13))):
        parent = int(rng.integers(len(tree.tokens)))
        taken = {t for t, p in zip(tree.tokens, tree.parents, strict=True) if p == parent}
        free = [t for t in range(3) if t not in taken]
        if not free:
            continue
        tree.tokens.append(int(rng.choice(free)))
        tree.parents.append(parent)
        tree.estimates.append(tree.estimates[parent] * float(rng.random()))
        tree.sources.append(source)
    return tree


def paths(tree: Tree) -> list[Path]:
    found: list[Path] = [()]
    for token, parent in zip(tree.tokens[1:], tree.parents[1:], strict=True):
        found.append((*found[parent], token))
    return found


def expected_estimates(suffix: Tree, model: Tree) -> dict[Path, float]:
    """Each path's estimate by the docstring: conditionals united, siblings scaled to 1, products from the root."""
    given = [dict(zip(paths(tree), tree.estimates, strict=True)) for tree in (suffix, model)]
    everything = sorted(set(given[0]) | set(given[1]), key=len)
    united = {}
    for path in everything[1:]:
        p, q = (one[path] / one[path[:-1]] if path in one else 0.0 for one in given)
        united[path] = 1 - (1 - p) * (1 - q)
    estimates: dict[Path, float] = {(): 1.0}
    for path in everything[1:]:
        siblings = sum(chance for other, chance in united.items() if other[:-1] == path[:-1])
        estimates[path] = estimates[path[:-1]] * united[path] / max(siblings, 1.0)
    return estimates


@pytest.mark.parametrize("seed", range(150))
def test_random_trees(seed: int) -> None:
    rng = np.random.default_rng(seed)
    suffix, model = random_tree(rng, 1), random_tree(rng, 4)
    max_nodes, floor = int(rng.integers(1, 16)), float(rng.choice([0.0, 0.1]))
    tree = merge(suffix, model, max_nodes, floor)

    expected = expected_estimates(suffix, model)
    ranked = sorted((e for path, e in expected.items() if path and e >= floor), reverse=True)[:max_nodes]
    assert tree.estimates[1:] == pytest.approx(ranked), "the best nodes, best first"
    merged = paths(tree)
    assert len(set(merged)) == len(merged), "siblings have distinct tokens"
    assert tree.estimates == pytest.approx([expected[path] for path in merged])
    assert all(parent < node for node, parent in enumerate(tree.parents))
    assert (tree.tokens[0], tree.parents[0], tree.sources[0]) == (9, -1, 0)
    known = [set(paths(one)) for one in (suffix, model)]
    for path, source in zip(merged[1:], tree.sources[1:], strict=True):
        assert path in known[0 if source == 1 else 1]


def test_drafters_that_agree_confirm_each_other_and_the_more_certain_one_is_named() -> None:
    tree = merge(chain([1, 2], [0.5, 0.4]), chain([1, 3], [0.8, 0.4], source=4), 8, 0.0)
    assert tree.tokens == [0, 1, 2, 3]
    # 0.8 and 0.5 of what the first token has are more than all of it.
    assert tree.estimates == pytest.approx([1.0, 0.9, 0.9 * 0.8 / 1.3, 0.9 * 0.5 / 1.3])
    assert tree.sources == [0, 4, 1, 4]


def test_drafters_that_contradict_each_other_share_what_there_is() -> None:
    tree = merge(chain([1], [0.9]), chain([2], [0.9], source=4), 8, 0.0)
    assert tree.estimates == pytest.approx([1.0, 0.5, 0.5])


def test_estimates_that_rise_from_parent_to_child_and_zeros_do_no_harm() -> None:
    tree = merge(chain([1, 2], [0.0, 0.5]), chain([1, 2, 3], [0.3, 0.6, 0.6], source=4), 8, 0.0)
    assert tree.tokens == [0, 1, 2, 3]
    assert tree.estimates == pytest.approx([1.0, 0.3, 0.3, 0.3])
