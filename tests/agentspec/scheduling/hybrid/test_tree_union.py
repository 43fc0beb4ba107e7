"""A hybrid step verifies what a plain definition says, in random operations and in cases by hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from every import every
from hybrid_rows import Tree, batch, chain, model_trees, random_loop
from tree_union_oracle import MODEL, Row, Rule, model_tree, wanted_row

from agentspec import ConfigError, DraftBatch, build_tree_arrays
from agentspec.scheduling.hybrid import HybridBatch, HybridConfig, HybridPolicy, ModelTrees

RULES: dict[Rule, dict[str, Any]] = {
    "merge": {},
    "better": {"union": "never"},
    "model": {"rule": "score"},
    "model_only": {"tau": float("inf")},
}


def random_tree(rng: np.random.Generator, vocab: int, most: int) -> Tree:
    """A suffix draft over few tokens, with ties. Unlike an engine's drafts it may have siblings with the same token and
    children that are likelier than their parents."""
    tree = Tree([int(rng.integers(100))], [-1], [1.0], [0])
    for _ in range(int(rng.integers(0, most + 1))):
        parent = int(rng.integers(len(tree.tokens)))
        tree.tokens.append(int(rng.integers(vocab)))
        tree.parents.append(parent)
        share = float(rng.choice([0.0, 0.25, 0.5, 1.0, 1.5])) if rng.random() < 0.5 else float(rng.random())
        tree.estimates.append(float(np.float32(tree.estimates[parent] * share)))
        tree.sources.append(int(rng.integers(1, 4)))
    return tree


def tree_of(drafts: DraftBatch, i: int) -> Tree:
    row = drafts.row(i)
    return Tree(row.tokens.tolist(), row.parents.tolist(), row.estimates.tolist(), row.sources.tolist())


def own_tree_of(drafts: HybridBatch, i: int) -> tuple[list[int], list[int], list[float]]:
    nodes = slice(drafts.model_offsets[i], drafts.model_offsets[i + 1])
    return (
        drafts.model_tokens[nodes].tolist(),
        drafts.model_parents[nodes].tolist(),
        drafts.model_estimates[nodes].tolist(),
    )


def rounded(values: Sequence[float]) -> list[float]:
    return np.array(values, np.float32).tolist()


def check(
    united: HybridBatch, suffix: list[Tree], rows: list[Row | None], match_lens: Sequence[int], only: bool
) -> None:
    """Tokens, shapes, estimates and sources must be equal to the last bit; sums must be close."""
    for i, (own, row) in enumerate(zip(suffix, rows, strict=True)):
        if row is None:
            tree = Tree(*(values[:1] for values in own)) if only else own
            assert (own_tree_of(united, i), united.ran[i]) == (([], [], []), False)
            assert (united.verified[i], united.alone[i]) == (False, False)
            match_len = 0 if only else match_lens[i]
        else:
            tree, drafted = row.tree, row.drafted
            assert own_tree_of(united, i) == (drafted.tokens, drafted.parents, rounded(drafted.estimates))
            assert (united.ran[i], united.verified[i], united.alone[i]) == (True, row.verified, row.alone)
            match_len = match_lens[i] if any(0 < source < MODEL for source in tree.sources) else 0
        found = tree_of(united, i)
        assert (found.tokens, found.parents, found.sources) == (tree.tokens, tree.parents, tree.sources)
        assert found.estimates == rounded(tree.estimates)
        assert united.match_lens[i] == match_len
        assert united.scores[i] == pytest.approx(sum(tree.estimates[1:]), rel=1e-5, abs=1e-6)
    for name in ("tokens", "parents", "estimates", "sources"):
        assert len(getattr(united, name)) == united.offsets[-1]


@every("rule", RULES)
@every("seed", range(40))
def test_random_steps(rule: Rule, seed: int) -> None:
    rng = np.random.default_rng([seed, *rule.encode()])
    trees, max_nodes = bool(rng.random() < 0.7), int(rng.integers(1, 17))
    floor = float(rng.choice([0.0, 0.1]))
    policy = HybridPolicy(HybridConfig(max_nodes=max_nodes, min_token_prob=floor, trees=trees, **RULES[rule]))
    if rule == "merge" and not trees:
        rule = "better"
    for _ in range(5):
        policy.calibration.factor = factor = float(rng.choice([0.05, 0.7, 1.0, 4.0]))
        b, topk, steps = int(rng.integers(1, 7)), int(rng.integers(1, 5)), int(rng.integers(1, 6))
        most = int(rng.integers(1, 2 + topk + (steps - 1) * topk * topk))
        model = random_loop(rng, b, topk, steps, int(rng.integers(2, 6)), most)
        suffix = [random_tree(rng, 4, 20) for _ in range(b)]
        match_lens = rng.integers(1, 9, b).tolist()
        wanted, rooms = rng.random(b) < 0.7, rng.integers(0, 20, b).astype(np.int32)
        united = policy.combine(batch(suffix, match_lens), model, wanted, rooms)
        rows: list[Row | None] = []
        for i, own in enumerate(suffix):
            if not wanted[i]:
                rows.append(None)
                continue
            room = min(int(rooms[i]), max_nodes)
            drafted = model_tree(own.tokens[0], model, i, room=room, min_estimate=floor, trees=trees)
            rows.append(wanted_row(own, drafted, rule, max_nodes=room, min_estimate=floor, factor=factor))
        check(united, suffix, rows, match_lens, rule == "model_only")
        # What is verified is a tree in topological order.
        build_tree_arrays(united, int(np.diff(united.offsets).max()))


# What a draft model may hand over -------------------------------------------------------------------------------------


def combine(model: ModelTrees | None, wanted: Sequence[bool], suffix: DraftBatch | None = None) -> HybridBatch:
    b = len(wanted)
    drafts = batch([chain([], [], root=i) for i in range(b)]) if suffix is None else suffix
    return HybridPolicy().combine(drafts, model, np.array(wanted), np.full(b, 15, np.int32))


def test_only_rows_that_want_a_tree_are_read() -> None:
    model = model_trees([chain([3], [0.5], MODEL)] * 2)
    model.tokens[1] = -7
    model.chosen[1] = -1
    united = combine(model, [True, False])
    assert [united.row(i).tokens.tolist() for i in range(2)] == [[0, 3], [1]]


def test_estimates_that_are_no_numbers_are_left_out() -> None:
    model = model_trees([chain([3, 4, 5], [0.5, np.nan, 0.4], MODEL)])
    assert combine(model, [True]).tokens.tolist() == [0, 3]


def test_estimates_beyond_1_count_as_1() -> None:
    united = combine(model_trees([chain([3, 4], [np.inf, 1.5], MODEL)]), [True])
    assert united.tokens.tolist() == [0, 3, 4]
    assert united.estimates.tolist() == united.model_estimates.tolist() == [1.0, 1.0, 1.0]
    assert united.model_expected().tolist() == [2.0]


def test_a_child_that_rounding_put_before_its_parent_is_left_out() -> None:
    model = model_trees([chain([3, 4], [0.5, 0.6], MODEL)])
    assert combine(model, [True]).tokens.tolist() == [0, 3]


@every(
    ("change", "message"),
    [
        ({"chosen": np.array([[1, 0]])}, r"row 0: numbers of candidates must be >= 0 and ascending, got 0 behind 1"),
        ({"chosen": np.array([[-1, 0]])}, r"numbers of candidates must be >= 0 and ascending, got -1"),
        ({"chosen": np.array([[0, 2]])}, r"candidates must be of one of 2 groups of 1, got candidate 2"),
        ({"tokens": np.array([[3, -1]])}, r"row 0: tokens of a draft model must be in \[0, 2\^31\), got -1"),
        ({"tokens": np.array([[3, 2**31]])}, r"tokens of a draft model must be in .*, got 2147483648"),
        ({"tokens": np.array([[3]])}, r"tokens of the model's trees must have 2 elements, got 1"),
        ({"topk": 0}, r"topk must be >= 1, got 0"),
    ],
)
def test_trees_that_no_drafting_loop_chooses_are_refused(change: dict[str, Any], message: str) -> None:
    good = model_trees([chain([3, 4], [0.5, 0.4], MODEL)])
    fields = {name: getattr(good, name) for name in ("parents", "chosen", "tokens", "estimates", "topk")}
    with pytest.raises(ConfigError, match=message):
        combine(ModelTrees(**{**fields, **change}), [True])


@pytest.mark.parametrize("parents", [[-1, 2, 0], [-1, 0, -1], [0, 0, 1]])
def test_suffix_drafts_that_are_no_trees_are_refused(parents: list[int]) -> None:
    suffix = batch([Tree([0, 1, 2], parents, [1.0, 0.5, 0.5], [0, 1, 1])])
    with pytest.raises(ConfigError, match=r"row 0: the root's parent must be -1 and every other an earlier node"):
        combine(model_trees([chain([3], [0.5], MODEL)]), [True], suffix)


def test_what_is_returned_outlives_what_it_was_made_of() -> None:
    suffix = batch([chain([1, 2], [0.9, 0.8])])
    united = combine(None, [False], suffix)
    suffix.tokens[:] = 0
    assert united.tokens.tolist() == [0, 1, 2]
