"""The definition in plain Python of the tree that a hybrid row verifies: the oracle of native/drafting/tree_union.cc."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np
from hybrid_rows import Tree

from agentspec.scheduling.hybrid import ModelTrees

Rule = Literal["merge", "better", "model", "model_only"]
MODEL = 4


class Row(NamedTuple):
    """The tree to verify in a row that wants the draft model's tree."""

    tree: Tree
    drafted: Tree
    """The draft model's own tree, with its own estimates."""
    verified: bool
    alone: bool


def model_tree(root: int, model: ModelTrees, row: int, *, room: int, min_estimate: float, trees: bool) -> Tree:
    """Makes the tree of the likeliest candidates of a row.

    Candidates are numbered in the order in which they were drafted, so a parent has a smaller number than its child,
    and an estimate at least as large. Sorted by falling estimate, with ties broken by number, each node follows its
    parent.
    """
    groups, candidates, tokens, estimates = (
        array[row].tolist() for array in (model.parents, model.chosen, model.tokens, model.estimates)
    )
    tree = Tree([root], [-1], [1.0], [0])
    place = {-1: 0}
    for i in sorted(range(len(candidates)), key=lambda i: (-estimates[i], candidates[i])):
        if len(tree.tokens) > room or estimates[i] < min_estimate:
            break
        group = candidates[i] // model.topk
        parent = place.get(-1 if group == 0 else groups[group])
        # The parent is None if rounding put a child before it.
        if parent is None or (not trees and parent != len(tree.tokens) - 1):
            continue
        place[candidates[i]] = len(tree.tokens)
        tree.tokens.append(tokens[i])
        tree.parents.append(parent)
        tree.estimates.append(estimates[i])
        tree.sources.append(MODEL)
    return tree


def merge(suffix: Tree, model: Tree, max_nodes: int, min_estimate: float) -> Tree:
    """Returns the best `max_nodes` nodes of both trees, the likeliest first. The root is not counted.

    Nodes with the same tokens up to the root become one node. The drafters give a node the conditional probabilities p
    and q under its parent. If both propose it, they confirm each other: 1 - (1 - p)(1 - q). A drafter that does not
    propose it has no influence. Siblings whose probabilities add up to more than 1 are scaled to the sum 1. A node's
    estimate is the product from the root down. Nodes whose estimate is below `min_estimate` are left out.
    """
    size = len(suffix.tokens)
    tokens, parents, sources = suffix.tokens[:], suffix.parents[:], suffix.sources[:]
    chances = [1.0] * size
    promised = [0.0] * (size + len(model.tokens))
    nodes: dict[tuple[int, int], int] = {}

    # 1. The suffix tree. Its nodes keep their numbers.
    for node in range(1, size):
        parent = parents[node]
        whole = suffix.estimates[parent]
        chances[node] = min(1.0, suffix.estimates[node] / whole) if whole > 0.0 else 0.0
        nodes[parent, tokens[node]] = node
        promised[parent] += chances[node]

    # 2. The model's nodes below the same parents; places[i] is the number of its node i.
    places = [0] * len(model.tokens)
    for i in range(1, len(model.tokens)):
        token, whole = model.tokens[i], model.estimates[model.parents[i]]
        chance = min(1.0, model.estimates[i] / whole) if whole > 0.0 else 0.0
        parent = places[model.parents[i]]
        place = nodes.get((parent, token))
        if place is None:
            nodes[parent, token] = places[i] = len(tokens)
            tokens.append(token)
            parents.append(parent)
            chances.append(chance)
            sources.append(MODEL)
            promised[parent] += chance
        else:
            places[i] = place
            other = chances[place]
            if chance > other:
                sources[place] = MODEL
            confirmed = chance * (1.0 - other)
            chances[place] = other + confirmed
            promised[parent] += confirmed

    # 3. Multiply from the root down and sort the best nodes first. No child is likelier than its parent, and the
    # earlier
    #    one of equal nodes comes first, so parents stay before their children.
    for node in range(1, len(tokens)):
        parent = parents[node]
        whole = promised[parent]
        chances[node] *= chances[parent] / whole if whole > 1.0 else chances[parent]
    order = [0, *sorted(range(1, len(tokens)), key=chances.__getitem__, reverse=True)[:max_nodes]]
    while len(order) > 1 and chances[order[-1]] < min_estimate:
        order.pop()
    numbers = {node: number for number, node in enumerate(order)}
    return Tree(
        [tokens[node] for node in order],
        [-1, *[numbers[parents[node]] for node in order[1:]]],
        [chances[node] for node in order],
        [sources[node] for node in order],
    )


def interleave(suffix: Tree, model: Tree, room: int, factor: float) -> tuple[Tree, int]:
    """Takes nodes of both trees by falling estimate, in single precision and with the suffix tree's first among equals,
    until there are `room`. A node that is there already is not taken again. Returns the tree, and how many of the
    model's nodes were looked at."""
    tree = Tree(*(values[:1] for values in suffix))
    paths: dict[tuple[int, ...], int] = {(): 0}
    # The tokens from the root to each node of both trees.
    own_paths: list[tuple[int, ...]] = [()]
    model_paths: list[tuple[int, ...]] = [()]
    while len(tree.tokens) <= room and (len(own_paths) < len(suffix.tokens) or len(model_paths) < len(model.tokens)):
        own, drafted = len(own_paths), len(model_paths)
        scaled = [np.minimum(np.float32(factor) * np.float32(x), np.float32(1.0)) for x in model.estimates[drafted:]]
        takes_model = bool(scaled) and (own == len(suffix.tokens) or scaled[0] > np.float32(suffix.estimates[own]))
        source, known, node = (model, model_paths, drafted) if takes_model else (suffix, own_paths, own)
        path = (*known[source.parents[node]], source.tokens[node])
        known.append(path)
        if path in paths:
            continue
        tree.parents.append(paths[path[:-1]])
        paths[path] = len(tree.tokens)
        tree.tokens.append(path[-1])
        tree.estimates.append(float(scaled[0]) if takes_model else suffix.estimates[node])
        tree.sources.append(source.sources[node])
    return tree, len(model_paths) - 1


def wanted_row(own: Tree, drafted: Tree, rule: Rule, *, max_nodes: int, min_estimate: float, factor: float) -> Row:
    """Returns the tree to verify in a row with both drafts, each of at most `max_nodes` nodes."""
    own = Tree(*(values[: max_nodes + 1] for values in own))
    scaled = drafted._replace(estimates=[1.0, *(min(factor * estimate, 1.0) for estimate in drafted.estimates[1:])])
    if rule == "model_only" or len(own.tokens) == 1:
        return Row(scaled, drafted, verified=True, alone=True)
    if len(scaled.tokens) == 1:
        return Row(own, drafted, verified=True, alone=False)
    if rule == "merge":
        return Row(merge(own, scaled, max_nodes, min_estimate), drafted, verified=True, alone=False)
    if rule == "model" or _total(scaled.estimates) > _total(own.estimates):
        return Row(scaled, drafted, verified=True, alone=True)
    return Row(own, drafted, verified=False, alone=False)


def _total(values: Sequence[float]) -> float:
    """Adds the values one after the other and rounds each time, unlike sum(), which rounds once."""
    total = 0.0
    for value in values:
        total += value
    return total
