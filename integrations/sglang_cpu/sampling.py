"""Verification at temperature > 0: walking a token tree so that the output has the target's distribution.

Notation: p is the target's distribution of the next token at a node; the tree's arrays are those of `tree`.
"""

from __future__ import annotations

import torch
from torch import Tensor

# Keeps the division by a threshold of 0 defined; any mass above 0 is then enough, as intended.
_LEAST_THRESHOLD = 1e-9


def tree_speculative_sampling_target_only(
    predicts: Tensor,
    accept_index: Tensor,
    accept_token_num: Tensor,
    candidates: Tensor,
    retrive_index: Tensor,
    retrive_next_token: Tensor,
    retrive_next_sibling: Tensor,
    uniform_samples: Tensor,
    uniform_samples_for_final_sampling: Tensor,
    target_probs: Tensor,
    draft_probs: Tensor,
    threshold_single: float = 1.0,
    threshold_acc: float = 1.0,
    deterministic: bool = True,
) -> None:
    """Draw the tokens after each root from the target, following the tree for as long as it has the drawn token.

    1. Start at the root with nothing accepted.
    2. At a node, take its coin u. Go through its children in order and add up their p. Accept the first child with
       p > 0 at which the sum exceeds u (u < sum / threshold_acc), or whose p alone is at least `threshold_single`.
    3. Go on from the accepted child with step 2 until no child is accepted or the path is full.
    4. Draw the last token with the final coin from max(p - d, 0), normalised, where d is `draft_probs` of the node with
       the p of its refused children written in. At the end of a full path nothing was refused: draw from p.

    With both thresholds at 1 this is exact. Let P_i be the sum of p over the first i of k children. Child i is accepted
    if P_(i-1) <= u < P_i, so with probability p(child i). With probability 1 - P_k none is, and then a token x that no
    child carries is drawn with probability p(x) / (1 - P_k), so p(x) in all. The token after a node is thus
    distributed as p whatever the children are, and each node has a coin of its own: by induction over the depth the
    whole output has the target's distribution. It takes that siblings carry different tokens, that `draft_probs` is 0,
    and that neither the tree nor its order depends on the coins. This is the multi-step speculative sampling of
    SpecInfer (Miao et al., arXiv:2305.09781, VerifyStochastic) for drafts that are certain, with one coin a node
    instead of one a child. Lower thresholds accept more drafts than the target would write.

    Args:
        predicts: integer [B * D], written at the accepted nodes: the token drawn after the node.
        accept_index: integer [B, steps], its first entries written: the flat indices of the root and the accepted
            nodes. At most `steps` - 1 nodes are accepted.
        accept_token_num: integer [B], written: the number of accepted nodes without the root.
        candidates: integer [B, D], the token of each node.
        uniform_samples: float [B, D], the coin of each node, in [0, 1).
        uniform_samples_for_final_sampling: float [B], in [0, 1).
        target_probs: float [B, D, V], p at each node.
        draft_probs: float [B, D, V], 0; the p of refused children is written to it.
        deterministic: the same result for the same input, which is so in any case.
    """
    requests, longest = candidates.shape[0], accept_index.shape[1] - 1
    node = torch.zeros(requests, dtype=torch.long)
    accept_index[:, 0] = retrive_index[:, 0]
    accept_token_num.zero_()
    walking = torch.arange(requests)
    for depth in range(1, longest + 1):
        child = _accepted_child(
            walking, node[walking], candidates, retrive_next_token, retrive_next_sibling, uniform_samples,
            target_probs, draft_probs, threshold_single, max(threshold_acc, _LEAST_THRESHOLD),
        )  # fmt: skip
        walking, child = walking[child >= 0], child[child >= 0]
        if not walking.numel():
            break
        predicts[retrive_index[walking, node[walking]]] = candidates[walking, child].to(predicts.dtype)
        accept_index[walking, depth] = retrive_index[walking, child].to(accept_index.dtype)
        accept_token_num[walking] = depth
        node[walking] = child
    rows = torch.arange(requests)
    target = target_probs[rows, node]
    is_full = accept_token_num[:, None] == longest
    rest = torch.where(is_full, target, target - draft_probs[rows, node]).clamp_(min=0)
    # Rounding can leave nothing where the children have all of p: then any of them is right.
    rest = torch.where(rest.sum(-1, keepdim=True) > 0, rest, target)
    predicts[retrive_index[rows, node]] = _drawn(rest, uniform_samples_for_final_sampling).to(predicts.dtype)


def top_k_renorm_prob(probs: Tensor, top_ks: Tensor) -> Tensor:
    """Keep the k likeliest tokens of each row, of equally likely ones the first, and normalise. `probs`: float [N, V].
    `top_ks`: integer [N]; a row with V or more is returned as it is."""
    filtered = probs.clone()
    rows = (top_ks < probs.shape[-1]).nonzero().flatten()
    if not rows.numel():
        return filtered
    p, k = probs[rows], top_ks[rows].long().clamp(min=1)[:, None]
    least = p.topk(int(k.max()), dim=-1).values.gather(-1, k - 1)
    above, level = p > least, p == least
    room = k - above.sum(-1, keepdim=True)
    filtered[rows] = _normalised(p, above | (level & (level.cumsum(-1) <= room)))
    return filtered


def top_p_renorm_prob(probs: Tensor, top_ps: Tensor) -> Tensor:
    """Keep the likeliest tokens of each row until they have the mass `top_p`, the one that reaches it included.
    `probs`: float [N, V], normalised. `top_ps`: float [N]; a row with 1 or more is returned as it is."""
    filtered = probs.clone()
    rows = (top_ps < 1).nonzero().flatten()
    if not rows.numel():
        return filtered
    p = probs[rows]
    likeliest, order = p.sort(dim=-1, descending=True, stable=True)
    mass_before = likeliest.cumsum(-1) - likeliest
    kept = torch.empty_like(p, dtype=torch.bool).scatter_(-1, order, mass_before <= top_ps[rows][:, None])
    filtered[rows] = _normalised(p, kept)
    return filtered


def _accepted_child(
    rows: Tensor,
    nodes: Tensor,
    candidates: Tensor,
    next_token: Tensor,
    next_sibling: Tensor,
    coins: Tensor,
    target_probs: Tensor,
    draft_probs: Tensor,
    threshold_single: float,
    threshold_acc: float,
) -> Tensor:
    """Step 2 for one node of each of `rows`: the accepted child, or -1; writes the refused ones to `draft_probs`."""
    accepted = torch.full_like(nodes, -1)
    child = next_token[rows, nodes]
    coin = coins[rows, nodes].double()
    mass = torch.zeros(len(rows), dtype=torch.float64)
    # Positions in `rows` that have a child to look at.
    open_ = (child >= 0).nonzero().flatten()
    while open_.numel():
        row, node, here = rows[open_], nodes[open_], child[open_]
        token = candidates[row, here]
        p = target_probs[row, node, token]
        mass[open_] += p
        accepts = (p > 0) & ((coin[open_] < mass[open_] / threshold_acc) | (p >= threshold_single))
        accepted[open_[accepts]] = here[accepts]
        refuses = ~accepts
        draft_probs[row[refuses], node[refuses], token[refuses]] = p[refuses]
        child[open_] = next_sibling[row, here]
        open_ = open_[refuses & (child[open_] >= 0)]
    return accepted


def _drawn(weights: Tensor, coins: Tensor) -> Tensor:
    """A token of each row of float [B, V] by inversion: the first whose cumulated weight exceeds its share of the coin."""
    cumulated = weights.double().cumsum(-1)
    total = cumulated[:, -1:].clone()
    token = torch.searchsorted(cumulated, coins.double()[:, None] * total, right=True)
    # A coin of 1 would go past the last token that has any weight.
    return token.minimum(torch.searchsorted(cumulated, total)).flatten()


def _normalised(probs: Tensor, kept: Tensor) -> Tensor:
    weights = probs * kept
    return weights / weights.sum(-1, keepdim=True)
