"""Token trees: builds the arrays that describe a tree, and walks the tree along the target's choices.

A tree of D nodes is kept in D-wide rows. Node 0 is the root, the last committed token; every parent comes before its
children. `retrive_index` (the spelling is SGLang's) is the node's index in the flattened batch, b * D + i.
`retrive_next_token` is its first child and `retrive_next_sibling` its next sibling, both as node indices, -1 for none.
"""

from __future__ import annotations

import torch
from torch import Tensor

from agentspec.errors import UnsupportedError

# TreeMaskMode.QLEN_ONLY of SGLang: one D x D block per request, without its prefix.
_QLEN_ONLY = 1


def verify_tree_greedy_cpu(
    predicts: Tensor,
    accept_index: Tensor,
    accept_token_num: Tensor,
    candidates: Tensor,
    retrive_index: Tensor,
    retrive_next_token: Tensor,
    retrive_next_sibling: Tensor,
    target_predict: Tensor,
) -> None:
    """Follow the target's greedy choices from the root as long as a child holds the chosen token.

    Args:
        predicts: integer [B * D], written at the accepted nodes: the target's token after the node.
        accept_index: integer [B, steps]. The flat indices of the root and the accepted nodes are written to its first
            entries. At most `steps` - 1 nodes are accepted.
        accept_token_num: integer [B], written: the number of accepted nodes without the root.
        candidates: integer [B, D], the token of each node.
        target_predict: integer [B * D] or [B, D], the target's choice after each node.
    """
    longest = accept_index.shape[1] - 1
    links = zip(
        candidates.tolist(),
        retrive_index.tolist(),
        retrive_next_token.tolist(),
        retrive_next_sibling.tolist(),
        strict=True,
    )
    chosen: list[int] = target_predict.flatten().tolist()
    counts: list[int] = []
    paths: list[int] = []
    cells: list[int] = []
    for request, (tokens, flat, child, sibling) in enumerate(links):
        path = [flat[0]]
        node = 0
        while len(path) <= longest:
            node = child[node]
            while node != -1 and tokens[node] != chosen[path[-1]]:
                node = sibling[node]
            if node == -1:
                break
            path.append(flat[node])
        counts.append(len(path) - 1)
        paths += path
        cells += range(request * (longest + 1), request * (longest + 1) + len(path))
    predicts[torch.tensor(paths, dtype=torch.long)] = torch.tensor(
        [chosen[index] for index in paths], dtype=predicts.dtype
    )
    accept_index.view(-1)[torch.tensor(cells, dtype=torch.long)] = torch.tensor(paths, dtype=accept_index.dtype)
    accept_token_num.copy_(torch.tensor(counts, dtype=accept_token_num.dtype))


def build_tree_kernel_efficient_cpu(
    parent_list: Tensor,
    selected_index: Tensor,
    verified_seq_len: Tensor,
    tree_mask: Tensor,
    positions: Tensor,
    retrive_index: Tensor,
    retrive_next_token: Tensor,
    retrive_next_sibling: Tensor,
    topk: int,
    depth: int,
    draft_token_num: int,
    tree_mask_mode: int,
) -> None:
    """Describe the trees that a draft model selected in `depth` steps with `topk` branches.

    The draft worker numbers all scored candidates; node i >= 1 is candidate `selected_index[b, i - 1]`. Candidates come
    in groups of `topk` with a common parent. The parent of group 0 is the root; the parent of group g is candidate
    `parent_list[b, g]`. Raises UnsupportedError if another layout of the mask is requested.

    Args:
        parent_list: integer [B, groups].
        selected_index: integer [B, D - 1], ascending.
        verified_seq_len: integer [B], the position of each root.
        tree_mask: bool, B * D * D cells, written: row i marks the node itself and its ancestors.
        positions: int64 [B * D], written: root position plus depth.
        retrive_index, retrive_next_token, retrive_next_sibling: int64 [B, D], written.
    """
    if int(tree_mask_mode) != _QLEN_ONLY:
        raise UnsupportedError(
            f"The reference tree kernel writes masks of mode QLEN_ONLY ({_QLEN_ONLY}), which SGLang uses on a CPU; got "
            f"mode {int(tree_mask_mode)}. Start SGLang with device='cpu' and SGLANG_USE_CPU_ENGINE=1."
        )
    parents: list[list[int]] = []
    for groups, selected in zip(parent_list.tolist(), selected_index.tolist(), strict=True):
        node_of = {candidate: node for node, candidate in enumerate(selected, start=1)}
        above = [-1]
        for candidate in selected:
            group = candidate // topk
            above.append(0 if group == 0 else node_of.get(groups[group], -1))
        parents.append(above)
    batch = len(parents)
    ancestors = torch.zeros(batch, draft_token_num, draft_token_num, dtype=torch.bool)
    ancestors[:, :, 0] = True
    diagonal = torch.arange(draft_token_num)
    ancestors[:, diagonal, diagonal] = True
    rows = ancestors.tolist()
    depths: list[list[int]] = []
    for mask, above in zip(rows, parents, strict=True):
        level = [0] * draft_token_num
        for node in range(1, draft_token_num):
            up = node
            while up > 0 and level[node] < depth:
                mask[node][up] = True
                level[node] += 1
                up = above[up]
        depths.append(level)
    tree_mask.view(-1)[: ancestors.numel()] = torch.tensor(rows, dtype=tree_mask.dtype).flatten()
    positions.copy_((torch.tensor(depths) + verified_seq_len[:, None]).flatten())
    _write_links(parents, retrive_index, retrive_next_token, retrive_next_sibling)


def reconstruct_indices_from_tree_mask(
    tree_mask: Tensor,
    verified_seq_len: Tensor,
    positions: Tensor,
    retrive_index: Tensor,
    retrive_next_token: Tensor,
    retrive_next_sibling: Tensor,
    batch_size: int,
    draft_token_num: int,
) -> None:
    """Describe the trees that a mask encodes.

    Args:
        tree_mask: bool, at least B * D * D cells; row i marks node i itself and its ancestors.
        verified_seq_len: integer [B], the position of each root.
        positions: int64 [B * D], written: root position plus depth.
        retrive_index, retrive_next_token, retrive_next_sibling: int64 [B, D], written.

    A node other than node 0 that has no ancestors is a separate root, which no walk reaches.
    """
    cells = batch_size * draft_token_num**2
    mask = tree_mask.flatten()[:cells].view(batch_size, draft_token_num, draft_token_num).to(torch.bool)
    above = mask.tril(-1)
    positions.copy_((above.sum(-1) + verified_seq_len[:, None]).flatten())
    # The parent is the last of the ancestors: the highest marked column, with columns numbered from 1.
    numbers = torch.arange(1, draft_token_num + 1)
    parents: list[list[int]] = ((above * numbers).amax(-1) - 1).tolist()
    _write_links(parents, retrive_index, retrive_next_token, retrive_next_sibling)


def build_draft_decode_metadata_cpu(
    req_to_token: Tensor,
    req_pool_indices: Tensor,
    seq_lens: Tensor,
    topk: int,
    num_steps: int,
    pool_len: int,
) -> Tensor:
    """The slots that each branch of a draft model attends to.

    After its sequence, a request has `topk` windows of `num_steps` slots, one for each branch. Returns int32 [B * topk,
    width]: the sequence of the request, then the branch's own window. The width is that of the longest row, at most
    `pool_len`; entries after a row's end are undefined. Raises ValueError if a window ends past `pool_len`.
    """
    lens = seq_lens.long()
    longest = int(lens.max()) if lens.numel() else 0
    if longest + topk * num_steps > pool_len:
        raise ValueError(
            f"Drafting needs {topk} windows of {num_steps} slots behind a sequence of {longest} tokens; got rows of "
            f"{pool_len}. A request may be longer than the context length that the server was started with."
        )
    rows = req_pool_indices.long().repeat_interleave(topk)[:, None]
    steps = torch.arange(num_steps)
    ends = lens.repeat_interleave(topk)[:, None]
    window = torch.arange(topk).repeat(lens.numel())[:, None] * num_steps
    table = req_to_token[rows[:, 0], : longest + num_steps]
    return table.scatter_(1, ends + steps, req_to_token[rows, ends + window + steps])


def rotate_input_ids_cpu(
    input_ids: Tensor,
    extend_start_loc: Tensor,
    extend_seq_lens: Tensor,
    topk_index: Tensor,
    select_index: Tensor | None,
) -> None:
    """Shift each request's tokens one place to the left and put its next token last, in place.

    Args:
        input_ids: integer [T], the requests' tokens one after the other.
        extend_start_loc, extend_seq_lens: integer [B], first token and number of tokens.
        topk_index: integer [B] or [B, 1], the next token of each request.
        select_index: integer [B], the flat index for the next token; None: the last index of each request.
    """
    last = (extend_start_loc + extend_seq_lens - 1 if select_index is None else select_index).tolist()
    spans = zip(extend_start_loc.tolist(), extend_seq_lens.tolist(), last, topk_index.flatten().tolist(), strict=True)
    for start, length, index, token in spans:
        if length > 0:
            input_ids[start : start + length - 1] = input_ids[start + 1 : start + length].clone()
            input_ids[index] = token


def _write_links(parents: list[list[int]], index: Tensor, next_token: Tensor, next_sibling: Tensor) -> None:
    """Write the three link arrays from the parent of each node, -1 for none; siblings are linked in node order."""
    first_children: list[list[int]] = []
    siblings: list[list[int]] = []
    for above in parents:
        first, following = [-1] * len(above), [-1] * len(above)
        for node in range(len(above) - 1, 0, -1):
            parent = above[node]
            if parent >= 0:
                following[node], first[parent] = first[parent], node
        first_children.append(first)
        siblings.append(following)
    index.copy_(torch.arange(index.numel()).view(index.shape))
    next_token.copy_(torch.tensor(first_children))
    next_sibling.copy_(torch.tensor(siblings))
