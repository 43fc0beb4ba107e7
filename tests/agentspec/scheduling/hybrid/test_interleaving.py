"""The trees that a device makes of both drafts, and those that the policy expects, agree with plain definitions."""

from __future__ import annotations

import numpy as np
import pytest
from hybrid_rows import Tree, batch, chain, model_trees, random_loop
from tree_union_oracle import interleave, model_tree

from agentspec import ConfigError, _core
from agentspec.scheduling.hybrid import HybridPolicy, UnitedTrees


def drawn_suffix(rng: np.random.Generator) -> Tree:
    """A suffix draft as an engine makes it: the likeliest nodes come first, and siblings have different tokens."""
    tree = Tree([int(rng.integers(100))], [-1], [1.0], [0])
    taken: set[tuple[int, int]] = set()
    for estimate in sorted(rng.choice(np.linspace(0.05, 1.0, 20), int(rng.integers(0, 15))), reverse=True):
        parent, token = int(rng.integers(len(tree.tokens))), int(rng.integers(5))
        if (parent, token) in taken:
            continue
        taken.add((parent, token))
        for values, value in zip(tree, (token, parent, float(np.float32(estimate)), 1), strict=True):
            values.append(value)
    return tree


@pytest.mark.parametrize("seed", range(200))
def test_nodes_are_taken_from_both_trees_by_their_estimates(seed: int) -> None:
    rng = np.random.default_rng(seed)
    b, topk, steps = int(rng.integers(1, 5)), int(rng.integers(1, 4)), int(rng.integers(1, 5))
    model = random_loop(rng, b, topk, steps, 5, int(rng.integers(1, 2 + topk + (steps - 1) * topk * topk)))
    # The candidates below a node have different tokens, as in any drafting loop.
    model.tokens[:] = (model.chosen // topk * 3 + model.chosen % topk) % 5
    suffix = [drawn_suffix(rng) for _ in range(b)]
    rooms = rng.integers(0, 15, b).astype(np.int32)
    floor, factor = float(np.float32(rng.choice([0.0, 0.1]))), float(np.float32(rng.choice([0.7, 1.0, 4.0])))
    drafts = batch(suffix)
    found = _core.unite_trees(
        drafts.offsets, drafts.tokens, drafts.parents, drafts.estimates, drafts.sources, drafts.match_lens,
        model.parents, model.chosen, model.tokens, model.estimates, topk, np.ones(b, np.bool_), rooms,
        _core.UnionRule.INTERLEAVE, True, 100, floor, factor,
    )  # fmt: skip
    offsets, tokens, parents, estimates, sources = found[:5]
    for i, own in enumerate(suffix):
        drafted = model_tree(
            own.tokens[0],
            model.parents[i].tolist(),
            model.chosen[i].tolist(),
            model.tokens[i].tolist(),
            model.estimates[i].tolist(),
            topk=topk,
            room=100,
            min_estimate=floor,
            trees=True,
        )
        tree, num_seen = interleave(own, drafted, int(rooms[i]), factor)
        nodes = slice(offsets[i], offsets[i + 1])
        assert tokens[nodes].tolist() == tree.tokens
        assert parents[nodes].tolist() == tree.parents
        assert estimates[nodes].tolist() == pytest.approx(tree.estimates)
        assert sources[nodes].tolist() == tree.sources
        assert bool(found[11][i]) == (num_seen == len(drafted.tokens) - 1)


def foreseen(policy: HybridPolicy, rows: list[Tree], wanted: list[bool], rooms: list[int], passes: int) -> list[Tree]:
    ids, drafts = [str(i) for i in range(len(rows))], batch(rows)
    policy.choose(ids, drafts, np.array(wanted))
    found = policy.foresee(ids, drafts, np.array(wanted), np.array(rooms, np.int32), passes)
    parts = (found.row(i) for i in range(len(found)))
    return [Tree([], part.parents.tolist(), part.estimates.tolist(), []) for part in parts]


def test_a_row_without_a_suffix_draft_is_expected_to_bring_what_the_model_promises() -> None:
    policy = HybridPolicy()
    [row] = foreseen(policy, [chain([], [])], [True], [15], 5)
    assert row.parents == [-1, 0, 1, 2, 3, 4]
    assert sum(row.estimates) - 1 == pytest.approx(policy.lengths.expected("0"), abs=1e-3)
    ratios = [later / earlier for earlier, later in zip(row.estimates, row.estimates[1:], strict=False)]
    assert ratios == pytest.approx([ratios[0]] * 5)


def test_the_model_s_chain_counts_as_far_as_the_suffix_draft_s_first_token_is_wrong() -> None:
    policy = HybridPolicy()
    [alone] = foreseen(policy, [chain([], [])], [True], [2], 2)
    rows = [chain([5, 6], [0.75, 0.5]), chain([5, 6], [0.75, 0.5]), chain([5, 6], [0.75, 0.5])]
    both, cut, unwanted = foreseen(policy, rows, [True, True, False], [15, 3, 1], 2)
    share = [0.25 * estimate for estimate in alone.estimates[1:]]
    assert both.estimates == pytest.approx([1.0, 0.75, 0.5, *share])
    assert both.parents == [-1, 0, 1, 0, 3]
    assert cut.parents == [-1, 0, 1, 0]
    assert unwanted.parents == [-1, 0]


def test_foreseeing_refuses_other_requests_and_no_passes() -> None:
    policy, drafts = HybridPolicy(), batch([chain([], [])])
    wanted, rooms = np.ones(1, np.bool_), np.ones(1, np.int32)
    with pytest.raises(ConfigError, match="promised must have a row for each of 1 requests, got 0"):
        policy.foresee(["a"], drafts, wanted, rooms, 3)
    policy.choose(["a"], drafts, wanted)
    with pytest.raises(ConfigError, match="passes must be >= 1"):
        policy.foresee(["a"], drafts, wanted, rooms, 0)


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
        ids, batch([chain([], []), chain([7], [0.5])]), model_trees(model), wanted, np.full(2, 9, np.int32)
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
    # The text went on as the model had drafted, so the row counts at least what the model expected of itself.
    assert policy.lengths.expected("a") == pytest.approx((1 * 1.5 + 2 * policy.lengths.mean) / 3)
