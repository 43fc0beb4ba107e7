"""Sampling on drawn trees: the tokens have the target's distribution."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest
from every import every

torch = pytest.importorskip("torch", reason="pip install torch")

from scipy.stats import chisquare

from agentspec.evals.chi_square import LEAST_EXPECTED
from agentspec.integrations.sglang_cpu import sampling

VOCAB = 6
DRAWS = 100_000
# Seeds are fixed, so a right rule always passes. The p-value of a wrong rule is far below this.
SIGNIFICANCE = 1e-6


@dataclass(frozen=True)
class Drawing:
    """A tree, node by node: `tokens` of VOCAB, `parents` with -1 for the root and for padding.

    `first`, if given, is the target's distribution after the root; every other one is drawn at random, sharp enough
    that some drafts are likely.
    """

    tokens: list[int]
    parents: list[int]
    first: list[float] | None = None
    steps: int = 4
    levels: list = field(init=False)

    def __post_init__(self):
        generator = torch.Generator().manual_seed(11)
        # levels[k][a, b, ...] is p after the tokens a, b, ... that follow the root.
        levels = [torch.randn((VOCAB,) * (k + 1), generator=generator).mul(1.5).softmax(-1) for k in range(4)]
        if self.first is not None:
            levels[0] = torch.tensor(self.first)
        object.__setattr__(self, "levels", levels)

    def path(self, node):
        above = self.parents[node]
        return [] if above < 0 else [*self.path(above), self.tokens[node]]

    def links(self):
        nodes = range(len(self.parents))
        child = [next((k for k in nodes if self.parents[k] == i), -1) for i in nodes]
        sibling = [next((k for k in nodes if k > i > 0 and self.parents[k] == self.parents[i] >= 0), -1) for i in nodes]
        return child, sibling


CHAIN = Drawing([0, 2, 4, 1], [-1, 0, 1, 2])
#       ┌ 1 ─┬ 3 ─ 6
#   0 ──┤    └ 4
#       ├ 2 ─ 5
#       └ 7
TREE = Drawing([0, 3, 1, 5, 0, 1, 2, 0], [-1, 0, 0, 1, 1, 2, 3, 0])
PADDED = Drawing([0, 3, 1, 5, 0, 0, 0], [-1, 0, 0, 1, -1, -1, -1])
TIES = Drawing([0, 4, 1, 2, 4, 1], [-1, 0, 0, 0, 2, 2], first=[0.125, 0.25, 0.25, 0.0625, 0.25, 0.0625])
IMPOSSIBLE = Drawing([0, 1, 2, 3], [-1, 0, 0, 1], first=[0.3, 0.0, 0.2, 0.1, 0.1, 0.3])
CERTAIN = Drawing([0, 1, 2, 3], [-1, 0, 0, 0], first=[0.0, 0.0, 0.5, 0.5, 0.0, 0.0])
ROOT_ONLY = Drawing([0, 0, 0], [-1, -1, -1])
# The path is full before the tree ends. The token after the last node must not depend on that node's children.
CUT = Drawing([0, 2, 4, 1], [-1, 0, 1, 2], steps=2)
DRAWINGS = {
    "chain": CHAIN, "tree": TREE, "padded": PADDED, "ties": TIES, "impossible": IMPOSSIBLE, "all drafted": CERTAIN,
    "root only": ROOT_ONLY, "cut": CUT,
}  # fmt: skip


class Batch:
    """The arrays of a verification in which every row has the same tree and its own coins."""

    def __init__(self, drawing, rows, generator):
        nodes = len(drawing.tokens)
        self.drawing = drawing
        self.predicts = torch.full((rows * nodes,), -7, dtype=torch.int32)
        self.accept_index = torch.full((rows, drawing.steps), -1, dtype=torch.int32)
        self.accept_token_num = torch.full((rows,), 77, dtype=torch.int32)
        self.candidates = torch.tensor(drawing.tokens).repeat(rows, 1)
        self.index = torch.arange(rows * nodes).view(rows, nodes)
        child, sibling = drawing.links()
        self.child, self.sibling = (torch.tensor(one).repeat(rows, 1) for one in (child, sibling))
        self.coins = torch.rand(rows, nodes, generator=generator)
        self.final_coins = torch.rand(rows, generator=generator)
        target = torch.stack([drawing.levels[len(path)][tuple(path)] for path in map(drawing.path, range(nodes))])
        self.target_probs = target.repeat(rows, 1, 1)
        self.draft_probs = torch.zeros_like(self.target_probs)

    def sample(self, **thresholds):
        sampling.tree_speculative_sampling_target_only(
            self.predicts, self.accept_index, self.accept_token_num, self.candidates, self.index, self.child,
            self.sibling, self.coins, self.final_coins, self.target_probs, self.draft_probs, **thresholds,
        )  # fmt: skip

    def tokens(self):
        """[rows, steps], the tokens that each row wrote; -1 after its end."""
        places = self.accept_index.long()
        return torch.where(places >= 0, self.predicts[places.clamp(min=0)].long(), -1)


def p_values(drawing):
    """P-values of the first token, of the first two jointly, and of the first three jointly.

    A row that wrote fewer tokens is completed from the target, because later steps are not tested here.
    """
    generator = torch.Generator().manual_seed(5)
    batch = Batch(drawing, DRAWS, generator)
    batch.sample()
    tokens = torch.cat([batch.tokens(), torch.full((DRAWS, 3), -1)], 1)
    joint, cell, values = drawing.levels[0].double(), torch.zeros(DRAWS, dtype=torch.long), []
    for depth in range(3):
        level = drawing.levels[depth].reshape(-1, VOCAB)
        completed = level[cell].multinomial(1, generator=generator).flatten()
        cell = cell * VOCAB + torch.where(tokens[:, depth] >= 0, tokens[:, depth], completed)
        if depth:
            joint = (joint[:, None] * level.double()).flatten()
        counts = torch.bincount(cell, minlength=len(joint)).numpy()
        values.append(goodness_of_fit(counts, (joint / joint.sum()).numpy()))
    return values


def goodness_of_fit(counts: np.ndarray, shares: np.ndarray) -> float:
    """The p-value of `counts` [n] under a distribution [n]; 0 if something impossible was counted. Rare cells count as
    one."""
    if counts[shares <= 0].any():
        return 0.0
    expected = shares * counts.sum()
    order = np.argsort(-expected)
    rare = max(int((expected >= LEAST_EXPECTED).sum()), 2)
    if expected[order[rare:]].sum() < LEAST_EXPECTED:
        rare -= 1
    starts = np.arange(rare + 1)
    return float(chisquare(*(np.add.reduceat(of[order].astype(float), starts) for of in (counts, expected))).pvalue)


@every("name", DRAWINGS)
def test_the_output_has_the_target_s_distribution(name):
    assert min(p_values(DRAWINGS[name])) > SIGNIFICANCE


def test_drafts_are_accepted_as_often_as_the_target_writes_them():
    batch = Batch(TREE, DRAWS, torch.Generator().manual_seed(3))
    batch.sample()
    accepted = batch.accept_token_num.numpy()
    node_probability = [float(np.prod([TREE.levels[i][tuple(path[: i + 1])] for i in range(len(path))]))
                        for path in map(TREE.path, range(1, 8))]  # fmt: skip
    expected = sum(node_probability)
    assert accepted.mean() == pytest.approx(expected, abs=5 * accepted.std() / DRAWS**0.5)


def walk(coins, final_coin, drawing=TIES, **thresholds):
    """Verifies one row with the given coin of each node. Returns the accepted flat indices and the written tokens."""
    batch = Batch(drawing, 1, None)
    batch.coins[0] = 0.999
    for node, coin in coins.items():
        batch.coins[0, node] = coin
    batch.final_coins[0] = final_coin
    batch.sample(**thresholds)
    number = int(batch.accept_token_num) + 1
    assert (batch.accept_index[0, number:] == -1).all(), "nothing is written behind the path"
    assert int((batch.predicts != -7).sum()) == number, "one token a node of the path"
    return batch.accept_index[0, :number].tolist(), batch.tokens()[0, :number].tolist()


@every(("coin", "accepted"), [(0.0, 1), (0.2499, 1), (0.25, 2), (0.4999, 2), (0.5, 3), (0.7499, 3), (0.75, None)])
def test_the_coin_picks_the_child_whose_share_it_falls_in(coin, accepted):
    nodes, tokens = walk({0: coin}, 0.5)
    if accepted is None:
        # Tokens 0, 3 and 5 are left with 1/8, 1/16 and 1/16. The final coin of 1/2 picks token 3.
        assert (nodes, tokens) == ([0], [3])
    else:
        assert nodes[:2] == [0, accepted] and tokens[0] == TIES.tokens[accepted]


def test_the_accepted_node_s_own_coin_decides_on_its_children():
    below = TIES.levels[1][1]
    nodes, tokens = walk({0: 0.3, 2: float(below[4]) + float(below[1]) / 2}, 0.0)
    assert nodes[:3] == [0, 2, 5] and tokens[:2] == [1, 1]


def test_a_draft_that_the_target_never_writes_is_never_accepted():
    nodes, tokens = walk({0: 0.0}, 0.0, IMPOSSIBLE)
    assert nodes[1] == 2 and tokens[0] == 2
    nodes, tokens = walk({0: 0.0}, 0.0, IMPOSSIBLE, threshold_single=0.0, threshold_acc=0.0)
    assert nodes[1] == 2 and tokens[0] == 2


def test_lower_thresholds_accept_more():
    assert walk({0: 0.9}, 0.0)[0] == [0]
    assert walk({0: 0.9}, 0.0, threshold_single=0.25)[0][:2] == [0, 1]
    assert walk({0: 0.45}, 0.0, threshold_acc=0.5)[0][:2] == [0, 1]
    assert walk({0: 0.75}, 0.0, threshold_acc=0.5)[0][:2] == [0, 2]


def test_rounding_never_writes_what_the_target_does_not():
    """The final coin is at its ends, and the root's coin is above the total probability of the drafted children."""
    assert walk({0: 0.99}, 0.0, IMPOSSIBLE)[1] == [0]
    assert walk({0: 0.99}, 1.0, IMPOSSIBLE)[1] == [5]
    assert walk({0: 1.0}, 0.0, CERTAIN)[1] == [2]
    assert walk({0: 1.0}, 1.0, CERTAIN)[1] == [3]


def test_top_k_keeps_the_likeliest_and_of_ties_the_first():
    probs = torch.tensor([[0.1, 0.3, 0.3, 0.3], [0.4, 0.3, 0.2, 0.1], [0.25, 0.25, 0.25, 0.25], [0.7, 0.1, 0.1, 0.1]])
    got = sampling.top_k_renorm_prob(probs, torch.tensor([2, 1, 1 << 30, 3], dtype=torch.int32))
    expected = torch.tensor([[0, 0.5, 0.5, 0], [1, 0, 0, 0], [0.25, 0.25, 0.25, 0.25], [7 / 9, 1 / 9, 1 / 9, 0]])
    torch.testing.assert_close(got, expected)
    assert torch.equal(got.argmax(-1)[:2], probs.argmax(-1)[:2])


def test_top_p_keeps_the_token_that_reaches_the_mass():
    probs = torch.tensor([[0.1, 0.2, 0.3, 0.4]]).repeat(4, 1)
    got = sampling.top_p_renorm_prob(probs, torch.tensor([0.0, 0.5, 0.75, 1.0]))
    expected = torch.tensor([[0, 0, 0, 1], [0, 0, 3 / 7, 4 / 7], [0, 2 / 9, 3 / 9, 4 / 9], [0.1, 0.2, 0.3, 0.4]])
    torch.testing.assert_close(got, expected)
    assert torch.equal(probs[0], torch.tensor([0.1, 0.2, 0.3, 0.4])), "the input is left as it is"
