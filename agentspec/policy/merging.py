"""Two drafts of a row united in one tree.

suffix  0 ─┬─ a ── b        model  0 ─┬─ a ── d        merged  0 ─┬─ a ─┬─ b
           └─ c                       └─ e                        │     └─ d
                                                                  ├─ c
                                                                  └─ e
"""

from __future__ import annotations

from typing import NamedTuple

from agentspec.draft_tree import Source

_MODEL = int(Source.MODEL)


class Tree(NamedTuple):
    """A row as lists of n nodes, the root first, parents before children."""

    tokens: list[int]
    parents: list[int]
    """-1 for the root."""
    estimates: list[float]
    """The probability that each node is accepted; 1 for the root."""
    sources: list[int]
    """Values of `Source`."""


def merge(suffix: Tree, model: Tree, max_nodes: int, min_estimate: float) -> Tree:
    """The best `max_nodes` nodes of both trees, the likeliest first, the root not counted.

    Nodes with the same tokens up to the root are one. Each drafter gives a node a probability under its parent, p and
    q. Where both propose it they confirm each other, 1 - (1 - p)(1 - q); who does not propose it says nothing. Two
    confident drafters may so promise more than their parent has: siblings are then scaled to what it has, 1. A node's
    estimate is the product down from the root. Nodes whose estimate is below `min_estimate` are left out.
    """
    size = len(suffix.tokens)
    tokens, parents, sources = suffix.tokens[:], suffix.parents[:], suffix.sources[:]
    chances = [1.0] * size
    promised = [0.0] * (size + len(model.tokens))
    # (parent << 32) + token -> node
    nodes: dict[int, int] = {}

    # 1. The suffix tree. Its nodes keep their numbers.
    estimates = suffix.estimates
    for node in range(1, size):
        parent = parents[node]
        whole = estimates[parent]
        chance = estimates[node] / whole if whole > 0.0 else 0.0
        chances[node] = chance = min(1.0, chance)
        nodes[(parent << 32) + tokens[node]] = node
        promised[parent] += chance

    # 2. The model's nodes below the same parents; places[i] is the number of its node i.
    estimates = model.estimates
    places = [0] * len(model.tokens)
    for i in range(1, len(model.tokens)):
        token, parent = model.tokens[i], model.parents[i]
        whole = estimates[parent]
        chance = estimates[i] / whole if whole > 0.0 else 0.0
        chance = min(1.0, chance)
        parent = places[parent]
        key = (parent << 32) + token
        place = nodes.get(key)
        if place is None:
            nodes[key] = places[i] = len(tokens)
            tokens.append(token)
            parents.append(parent)
            chances.append(chance)
            sources.append(_MODEL)
            promised[parent] += chance
        else:
            places[i] = place
            other = chances[place]
            if chance > other:
                sources[place] = _MODEL
            confirmed = chance * (1.0 - other)
            chances[place] = other + confirmed
            promised[parent] += confirmed

    # 3. Products from the root down, and the best first: no child is likelier than its parent, and of equals the
    #    earlier comes first, so that parents stay before children.
    merged = chances
    for node in range(1, len(tokens)):
        parent = parents[node]
        whole = promised[parent]
        merged[node] *= merged[parent] / whole if whole > 1.0 else merged[parent]
    order = [0, *sorted(range(1, len(tokens)), key=merged.__getitem__, reverse=True)[:max_nodes]]
    while len(order) > 1 and merged[order[-1]] < min_estimate:
        order.pop()
    numbers = [-1] * len(tokens)
    for number, node in enumerate(order):
        numbers[node] = number
    return Tree(
        [tokens[node] for node in order],
        [-1, *[numbers[parents[node]] for node in order[1:]]],
        [merged[node] for node in order],
        [sources[node] for node in order],
    )
