"""Tree kernels on drawn trees, compared with definitions that follow parents one by one."""

from __future__ import annotations

import random

import pytest

torch = pytest.importorskip("torch", reason="pip install torch")

from agentspec.errors import UnsupportedError
from agentspec.integrations.sglang_cpu import tree

QLEN_ONLY = 1


def draw_parents(rng, nodes):
    """Parents of a tree in topological order; -1 for the root."""
    return [-1] + [rng.randrange(max(0, i - 4), i) for i in range(1, nodes)]


def path_to_root(parents, node):
    path = []
    while node != -1:
        path.append(node)
        node = parents[node]
    return path


def links(parents):
    """First child and next sibling of every node, by looking at all later nodes."""
    nodes = range(len(parents))
    child = [next((k for k in nodes if parents[k] == i), -1) for i in nodes]
    sibling = [next((k for k in nodes if i > 0 and k > i and parents[k] == parents[i]), -1) for i in nodes]
    return child, sibling


def mask_of(parents):
    nodes = range(len(parents))
    return [[j in path_to_root(parents, i) for j in nodes] for i in nodes]


class Arrays:
    """The arrays that the kernels fill, with values in them that a kernel has to overwrite."""

    def __init__(self, batch, nodes):
        self.positions = torch.full((batch * nodes,), 77)
        self.links = torch.full((3, batch, nodes), -1)

    def check(self, trees, roots):
        nodes = len(trees[0])
        depths = [
            root + len(path_to_root(p, i)) - 1 for p, root in zip(trees, roots, strict=True) for i in range(nodes)
        ]
        assert self.positions.tolist() == depths
        assert self.links[0].flatten().tolist() == list(range(len(trees) * nodes))
        assert self.links[1].tolist() == [links(parents)[0] for parents in trees]
        assert self.links[2].tolist() == [links(parents)[1] for parents in trees]


@pytest.mark.parametrize("seed", range(6))
def test_a_mask_spells_out_its_tree(seed):
    rng = random.Random(seed)
    batch, nodes = 1 + seed % 3, rng.choice([1, 2, 8, 17])
    trees = [draw_parents(rng, nodes) for _ in range(batch)]
    roots = [rng.randrange(1, 50) for _ in range(batch)]
    mask = torch.tensor([mask_of(parents) for parents in trees])
    arrays = Arrays(batch, nodes)
    # SGLang hands over buffers for its largest batch.
    padded = torch.cat([mask.flatten(), torch.ones(9, dtype=torch.bool)])
    tree.reconstruct_indices_from_tree_mask(
        padded, torch.tensor(roots), arrays.positions, *arrays.links, batch, nodes
    )  # fmt: skip
    arrays.check(trees, roots)


def draw_selection(rng, topk, depth, nodes):
    """Candidates that a drafter selected, as SGLang numbers them, and the parents of the resulting nodes.

    Step 0 scores the root's group 0; each later step scores one group for each of `topk` candidates of the step before.
    """
    parent_of_group, step = [-1], list(range(topk))
    above = {candidate: None for candidate in step}
    for _ in range(depth - 1):
        following = []
        for candidate in rng.sample(step, topk):
            first = len(parent_of_group) * topk
            parent_of_group.append(candidate)
            following += range(first, first + topk)
            above |= dict.fromkeys(range(first, first + topk), candidate)
        step = following
    chosen: list[int] = []
    while len(chosen) < nodes - 1:
        chosen.append(rng.choice([c for c in above if c not in chosen and (above[c] is None or above[c] in chosen)]))
    chosen.sort()
    return parent_of_group, chosen, [-1] + [0 if above[c] is None else 1 + chosen.index(above[c]) for c in chosen]


@pytest.mark.parametrize(("topk", "depth", "nodes"), [(1, 4, 5), (2, 4, 8), (4, 3, 12), (3, 5, 2)])
def test_a_selection_becomes_its_tree(topk, depth, nodes):
    rng = random.Random(topk * depth)
    drawn = [draw_selection(rng, topk, depth, nodes) for _ in range(3)]
    trees, roots = [parents for _, _, parents in drawn], [5, 60, 7]
    arrays = Arrays(3, nodes)
    mask = torch.ones(3 * nodes * nodes, dtype=torch.bool)
    tree.build_tree_kernel_efficient_cpu(
        torch.tensor([groups for groups, _, _ in drawn]), torch.tensor([chosen for _, chosen, _ in drawn]),
        torch.tensor(roots), mask, arrays.positions, *arrays.links, topk, depth, nodes, QLEN_ONLY,
    )  # fmt: skip
    arrays.check(trees, roots)
    assert mask.view(3, nodes, nodes).tolist() == [mask_of(parents) for parents in trees]


def test_other_mask_layouts_are_refused():
    arrays = Arrays(1, 2)
    with pytest.raises(UnsupportedError, match="QLEN_ONLY"):
        tree.build_tree_kernel_efficient_cpu(
            torch.tensor([[-1]]), torch.tensor([[0]]), torch.tensor([3]), torch.ones(4).bool(), arrays.positions,
            *arrays.links, 1, 1, 2, 0,
        )  # fmt: skip


@pytest.mark.parametrize("seed", range(12))
def test_greedy_verification_follows_the_target(seed):
    rng = random.Random(seed)
    batch, nodes, vocabulary = 1 + seed % 4, rng.choice([1, 6, 16]), 3
    longest = rng.choice([2, nodes]) if nodes > 1 else 1
    trees = [draw_parents(rng, nodes) for _ in range(batch)]
    tokens = [[rng.randrange(vocabulary) for _ in range(nodes)] for _ in range(batch)]
    target = [[rng.randrange(vocabulary) for _ in range(nodes)] for _ in range(batch)]
    predicts = torch.full((batch * nodes,), -5, dtype=torch.int32)
    accepted = torch.full((batch, longest), -1, dtype=torch.int32)
    counts = torch.full((batch,), 99, dtype=torch.int32)
    tree.verify_tree_greedy_cpu(
        predicts=predicts,
        accept_index=accepted,
        accept_token_num=counts,
        candidates=torch.tensor(tokens),
        retrive_index=torch.arange(batch * nodes).view(batch, nodes),
        retrive_next_token=torch.tensor([links(parents)[0] for parents in trees]),
        retrive_next_sibling=torch.tensor([links(parents)[1] for parents in trees]),
        target_predict=torch.tensor(target),
    )
    expected = [-5] * (batch * nodes)
    for request, parents in enumerate(trees):
        path = [0]
        while len(path) < longest:
            wanted = target[request][path[-1]]
            children = [k for k in range(nodes) if parents[k] == path[-1] and tokens[request][k] == wanted]
            if not children:
                break
            path.append(children[0])
        for node in path:
            expected[request * nodes + node] = target[request][node]
        flat = [request * nodes + node for node in path]
        assert accepted[request].tolist() == flat + [-1] * (longest - len(flat))
        assert counts[request] == len(path) - 1
    assert predicts.tolist() == expected


@pytest.mark.parametrize(("topk", "steps"), [(1, 3), (2, 2), (3, 4)])
def test_each_branch_attends_to_its_sequence_and_its_own_window(topk, steps):
    table = torch.arange(5 * 40, dtype=torch.int32).view(5, 40)
    rows, lens = torch.tensor([4, 1, 2]), torch.tensor([9, 3, 25])
    before = table.clone()
    got = tree.build_draft_decode_metadata_cpu(table, rows, lens, topk, steps, 40)
    assert torch.equal(table, before)
    assert got.dtype == torch.int32 and got.shape == (3 * topk, 25 + steps)
    for request, (row, length) in enumerate(zip(rows.tolist(), lens.tolist(), strict=True)):
        for branch in range(topk):
            first = length + branch * steps
            wanted = [*range(row * 40, row * 40 + length), *range(row * 40 + first, row * 40 + first + steps)]
            assert got[request * topk + branch, : length + steps].tolist() == wanted


def test_drafting_past_the_context_is_refused():
    with pytest.raises(ValueError, match="2 windows of 4 slots"):
        tree.build_draft_decode_metadata_cpu(
            torch.zeros(1, 16).int(), torch.tensor([0]), torch.tensor([9]), topk=2, num_steps=4, pool_len=16
        )


def test_rotation_shifts_each_request_and_appends_its_next_token():
    tokens = torch.tensor([1, 2, 3, 4, 5, 6])
    spans = torch.tensor([0, 3, 3]), torch.tensor([3, 0, 3])
    tree.rotate_input_ids_cpu(tokens, *spans, torch.tensor([[70], [80], [90]]), None)
    assert tokens.tolist() == [2, 3, 70, 5, 6, 90]
    tree.rotate_input_ids_cpu(tokens, *spans, torch.tensor([7, 8, 9]), torch.tensor([1, 0, 3]))
    assert tokens.tolist() == [3, 7, 70, 9, 90, 90]
