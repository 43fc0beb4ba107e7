"""The trees that a device makes of both drafts, and those that a planner expects, agree with plain definitions."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest
from every import every
from hybrid_rows import Tree, batch, chain, model_trees, random_loop
from tree_union_oracle import interleave, model_tree

from agentspec import ConfigError, _core
from agentspec.scheduling.hybrid import HybridPolicy, UnitedTrees


def drawn_suffix(rng: np.random.Generator, trees: bool = True) -> Tree:
    """A suffix draft as an engine makes it: the likeliest nodes come first, and siblings have different tokens. A chain
    without `trees`."""
    tree = Tree([int(rng.integers(100))], [-1], [1.0], [0])
    taken: set[tuple[int, int]] = set()
    for estimate in sorted(rng.choice(np.linspace(0.05, 1.0, 20), int(rng.integers(0, 15))), reverse=True):
        parent, token = int(rng.integers(len(tree.tokens))) if trees else len(tree.tokens) - 1, int(rng.integers(5))
        if (parent, token) in taken:
            continue
        taken.add((parent, token))
        for values, value in zip(tree, (token, parent, float(np.float32(estimate)), 1), strict=True):
            values.append(value)
    return tree


@every("trees", [True, False])
@every("seed", range(200))
def test_nodes_are_taken_from_both_trees_by_their_estimates_or_from_the_better_chain(seed: int, trees: bool) -> None:
    rng = np.random.default_rng(seed)
    b, topk, steps = int(rng.integers(1, 5)), int(rng.integers(1, 4)) if trees else 1, int(rng.integers(1, 5))
    model = random_loop(rng, b, topk, steps, 5, int(rng.integers(1, 2 + topk + (steps - 1) * topk * topk)))
    # The candidates below a node have different tokens, as in any drafting loop.
    model.tokens[:] = (model.chosen // topk * 3 + model.chosen % topk) % 5
    suffix = [drawn_suffix(rng, trees) for _ in range(b)]
    rooms = rng.integers(0, 15, b).astype(np.int32)
    floor, factor = float(np.float32(rng.choice([0.0, 0.1]))), float(np.float32(rng.choice([0.7, 1.0, 4.0])))
    drafts = batch(suffix)
    found = _core.unite_trees(
        drafts.offsets, drafts.tokens, drafts.parents, drafts.estimates, drafts.sources, drafts.match_lens,
        model.parents, model.chosen, model.tokens, model.estimates, topk, np.ones(b, np.bool_), rooms,
        _core.UnionRule.INTERLEAVE, trees, 100, floor, factor,
    )  # fmt: skip
    offsets, tokens, parents, estimates, sources = found[:5]
    for i, own in enumerate(suffix):
        drafted = model_tree(own.tokens[0], model, i, room=100, min_estimate=floor, trees=trees)
        candidates, room = len(drafted.tokens) - 1, int(rooms[i])
        if not trees:
            own, drafted = better_chain(own, drafted, room, factor)
        tree, num_seen = interleave(own, drafted, room, factor)
        nodes = slice(offsets[i], offsets[i + 1])
        assert tokens[nodes].tolist() == tree.tokens
        assert parents[nodes].tolist() == tree.parents
        assert estimates[nodes].tolist() == pytest.approx(tree.estimates)
        assert sources[nodes].tolist() == tree.sources
        assert bool(found[11][i]) == (num_seen == candidates)


def better_chain(own: Tree, drafted: Tree, room: int, factor: float) -> tuple[Tree, Tree]:
    """Leaves the root alone of the chain whose first nodes sum to less; the sums are of single precision."""
    one = np.float32(1.0)
    sums = [np.float32(0.0), np.float32(0.0)]
    for estimate in own.estimates[1 : room + 1]:
        sums[0] += np.float32(estimate)
    for estimate in drafted.estimates[1 : room + 1]:
        sums[1] += min(np.float32(factor) * np.float32(estimate), one)
    root = Tree(own.tokens[:1], [-1], [1.0], own.sources[:1])
    return (root, drafted) if sums[1] > sums[0] else (own, root)


# What is expected of unions before the draft model has drafted --------------------------------------------------------


def foreseen(
    rows: list[Tree], promised: list[float], wanted: list[bool], rooms: list[int], passes: int, trees: bool = True
) -> list[tuple[list[int], list[float]]]:
    """The parents and estimates of each row."""
    drafts = batch(rows)
    offsets, parents, estimates = _core.foresee_union(
        drafts.offsets, drafts.parents, drafts.estimates, np.array(promised), np.array(wanted),
        np.array(rooms, np.int32), passes, trees,
    )  # fmt: skip
    bounds = itertools.pairwise(offsets.tolist())
    return [(parents[first:last].tolist(), estimates[first:last].tolist()) for first, last in bounds]


def added_by(chance: float, suffix: Tree, passes: int) -> list[float]:
    """What each token of the model's chain adds: all tokens up to it are right, and the suffix draft's is not. Values
    that ascend are replaced by their mean."""
    depths = [0]
    for parent in suffix.parents[1:]:
        depths.append(depths[parent] + 1)
    right = [sum(e for e, d in zip(suffix.estimates, depths, strict=True) if d == i) for i in range(1, passes + 1)]
    values = [chance ** (i + 1) * max(1.0 - some, 0.0) for i, some in enumerate(right)]
    # The slopes of the least concave function that lies nowhere below the sums.
    sums = [0.0, *np.cumsum(values).tolist()]
    return [
        min(
            max((sums[j] - sums[i]) / (j - i) for j in range(place + 1, passes + 1))
            for i in range(place + 1)
        )
        for place in range(passes)
    ]  # fmt: skip


def in_order(suffix: Tree, chain_estimates: list[float], room: int) -> tuple[list[int], list[float]]:
    """Takes nodes of either draft by their estimates, the suffix draft's first if they are equal."""
    parents, estimates, places, last, drafted = [-1], [1.0], [0], 0, 0
    while len(parents) <= room and (len(places) < len(suffix.tokens) or drafted < len(chain_estimates)):
        own = len(places)
        has_own, has_chain = own < len(suffix.tokens), drafted < len(chain_estimates)
        if has_own and not (has_chain and chain_estimates[drafted] > suffix.estimates[own]):
            places.append(len(parents))
            parents.append(places[suffix.parents[own]])
            estimates.append(suffix.estimates[own])
        else:
            parents.append(last)
            estimates.append(chain_estimates[drafted])
            last, drafted = len(parents) - 1, drafted + 1
    return parents, estimates


@pytest.mark.parametrize("seed", range(100))
def test_a_foreseen_union_takes_nodes_by_what_they_are_expected_to_add(seed: int) -> None:
    rng = np.random.default_rng(seed)
    b, passes = int(rng.integers(1, 5)), int(rng.integers(1, 6))
    rows, wanted = [drawn_suffix(rng) for _ in range(b)], (rng.random(b) < 0.7).tolist()
    rooms = rng.integers(0, 20, b).tolist()
    chances = rng.random(b).tolist()
    promised = [sum(chance**i for i in range(1, passes + 1)) for chance in chances]
    found = foreseen(rows, promised, wanted, rooms, passes)
    for i, (parents, estimates) in enumerate(found):
        added = added_by(chances[i], rows[i], passes) if wanted[i] else []
        expected = in_order(rows[i], added, rooms[i])
        assert estimates == pytest.approx(expected[1], abs=1e-5)
        if len(set(np.round([*expected[1], *added], 4))) == len(expected[1]) + len(added):
            assert parents == expected[0], "no two estimates are about equal, so the order is known"


@every("seed", range(50))
def test_of_two_chains_the_one_that_promises_more_is_foreseen(seed: int) -> None:
    rng = np.random.default_rng(seed)
    passes, room, chance, wanted = int(rng.integers(1, 6)), int(rng.integers(0, 8)), rng.random(), rng.random() < 0.8
    suffix, model = drawn_suffix(rng, trees=False), [chance**i for i in range(1, passes + 1)]
    [(parents, estimates)] = foreseen([suffix], [sum(model)], [wanted], [room], passes, trees=False)
    own = suffix.estimates[1:][:room]
    better = model[:room] if wanted and sum(model[:room]) > sum(own) else own
    assert parents == list(range(-1, len(better)))
    assert estimates == pytest.approx([1.0, *better], abs=1e-5)


def test_foreseeing_refuses_arrays_of_other_rows_and_no_passes() -> None:
    with pytest.raises(ConfigError, match="must be of the same 1 rows"):
        foreseen([chain([], [])], [1.0], [True, True], [1], 3)
    with pytest.raises(ConfigError, match="passes must be >= 1"):
        foreseen([chain([], [])], [1.0], [True], [1], 0)


def united(verified: bool) -> UnitedTrees:
    """In row 0 the draft model's tree is 4 ─── 5, because 6, a sibling of 5, was too unlikely. Row 1 has no tree."""
    return UnitedTrees(
        np.array([3, 1], np.int32),
        np.array([True, False]),
        np.array([verified, True]),
        np.array([[-1, 4, 5, -1], [-1, -1, -1, -1]], np.int32),
        np.array([[-1, 0, 1, 1], [-1, 0, 1, 1]], np.int32),
        np.array([[0, 0.9, 0.6, 0], [0, 0, 0, 0]], np.float32),
    )


def test_what_a_device_has_made_is_learnt_from_like_what_the_host_has_made() -> None:
    ids, wanted = ["a", "b"], np.array([True, False])
    accepted, counts = np.array([[4, 5, 9], [7, 0, 0]]), np.array([2, 0], np.int32)
    theirs, ours = HybridPolicy(), HybridPolicy()
    model = [chain([4, 5], [0.9, 0.6], 4), chain([], [], 4)]
    ours.observe_union(ids, wanted, united(True), counts, accepted)
    both = theirs.combine(
        batch([chain([], []), chain([7], [0.5])]), model_trees(model), wanted, np.full(2, 9, np.int32)
    )
    theirs.observe(ids, both, counts, accepted)
    for name in ids:
        assert ours.lengths.expected(name) == pytest.approx(theirs.lengths.expected(name))
    assert ours.calibration.factor == pytest.approx(theirs.calibration.factor)
    assert ours.calibration.factor > 1.0


def test_a_tree_that_was_cut_says_nothing_about_the_factor() -> None:
    policy = HybridPolicy()
    policy.observe_union(["a", "b"], np.array([True, False]), united(False), np.array([0, 0]), np.array([[4], [7]]))
    assert policy.calibration.factor == 1.0
    # The text went on as the model had drafted, so what the model expected of its second token counts.
    learnt = 1 + 0.6 / 0.9
    assert policy.lengths.expected("a") == pytest.approx((learnt + 2 * policy.lengths.mean) / 3)


@every("width", [2, 4, 6])
def test_narrow_steps_do_not_make_the_draft_model_look_worse(width: int) -> None:
    """Each of its five tokens is right with 3/4, given that those before it are."""
    policy, draw, chance, rows = HybridPolicy(), random.Random(0), 0.75, 64
    estimates = np.array([[0.0, *(chance**depth for depth in range(1, 6))]] * rows, np.float32)
    tokens = np.array([[-1, *range(5)]] * rows, np.int32)
    parents = np.array([range(-1, 5)] * rows, np.int32)
    for _ in range(30):
        policy.lengths.next_step()
        right = [next((depth for depth in range(5) if draw.random() >= chance), 5) for _ in range(rows)]
        counts = np.minimum(right, width - 1).astype(np.int32)
        text = np.where(np.arange(width) < np.array(right)[:, None], np.arange(width), 9)
        nodes, yes = np.full(rows, width - 1, np.int32), np.ones(rows, np.bool_)
        trees = UnitedTrees(nodes, yes, np.full(rows, width == 6), tokens, parents, estimates)
        policy.observe_union([str(row) for row in range(rows)], yes, trees, counts, text.astype(np.int64))
    assert policy.lengths.mean == pytest.approx(sum(chance**depth for depth in range(1, 6)), rel=0.1)
