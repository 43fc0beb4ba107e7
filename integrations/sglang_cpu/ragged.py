"""Verification of rows that differ in width, without their padding.

SGLang verifies all rows of a batch with as many tokens as the widest of them. On a GPU that is what captured graphs want,
and padding hides in what a step takes anyway; on a CPU every token takes its time. Here the model sees each row's own
tokens alone (attention, which computes a batch at once, pads them for itself), and what it returns is laid out as SGLang
expects it:

    [b * width] tokens ── kept ──> [n] ── model ──> [n, V] logits ── spread ──> [b * width, V]

What padding is given instead, zeros, nobody reads: no link of a tree leads there. Which tokens are padding is read from
the links as well, which SGLang's input of a verification carries: a row's nodes come first, and each but the root is some
node's first child or next sibling.

Whoever drafts can ask a `ModelRunner` for two attributes that SGLang's own does not have:

    verifies_unpadded    whether its verifications leave padding out; False may be assigned, so that they do not
    padding_skipped      how many tokens of padding its model was spared so far
"""

from __future__ import annotations

import functools
import importlib
from typing import Any

import torch

_PER_TOKEN = ("input_ids", "positions", "out_cache_loc")
"""The inputs of a model and its attention that have one value for each token."""
_NUM_NODES = "agentspec_num_nodes"
"""Attribute of the spec_info of a batch verified without padding: int64 [b], the number of nodes of each row."""


class _VerifiesUnpadded:
    """The attribute of this name of a `ModelRunner`; one that is assigned to an instance goes before it."""

    def __get__(self, runner: Any, kind: type) -> bool:
        """Not where something else than ids, positions and slots is kept token by token, of images or of adapters, nor
        where graphs replay rows of a fixed width."""
        return bool(
            runner is not None
            and runner.device == "cpu"
            and not runner.is_multimodal
            # SGLang 0.5.17 has no such attribute where there are no adapters.
            and getattr(runner, "lora_manager", None) is None
            and getattr(runner, "decode_cuda_graph_runner", None) is None
        )


def patch_ragged() -> None:
    """Let verifications leave out padding; imports SGLang. Calling it again changes nothing.

    Does nothing where SGLang's backend does not say by that method what its attention is given.
    """
    runner: Any = importlib.import_module("sglang.srt.model_executor.model_runner").ModelRunner
    backend: Any = importlib.import_module("sglang.srt.layers.attention.intel_amx_backend").IntelAMXAttnBackend
    forward, build_metadata = runner.forward, getattr(backend, "_build_extend_metadata", None)
    if build_metadata is None or hasattr(runner, "verifies_unpadded"):
        return

    @functools.wraps(forward)
    def ragged_forward(self: Any, forward_batch: Any, *args: Any, **kwargs: Any) -> Any:
        num_nodes = _num_nodes(forward_batch) if self.verifies_unpadded else None
        # Attention metadata that was prepared earlier for this batch includes its padding.
        if num_nodes is None or forward_batch.forward_metadata_ready:
            return forward(self, forward_batch, *args, **kwargs)
        kept = own_places(num_nodes, forward_batch.spec_info.draft_token_num)
        whole = {name: getattr(forward_batch, name) for name in _PER_TOKEN}
        for name, values in whole.items():
            setattr(forward_batch, name, values[kept])
        # Not set on the batch itself, because an eager forward copies it before it prepares its attention.
        setattr(forward_batch.spec_info, _NUM_NODES, num_nodes)
        try:
            result = forward(self, forward_batch, *args, **kwargs)
        finally:
            for name, values in whole.items():
                setattr(forward_batch, name, values)
            delattr(forward_batch.spec_info, _NUM_NODES)
        output, total = result.logits_output, len(whole["input_ids"])
        output.next_token_logits = spread(output.next_token_logits, kept, total)
        if output.hidden_states is not None:
            output.hidden_states = spread(output.hidden_states, kept, total)
        self.padding_skipped += total - len(kept)
        return result

    @functools.wraps(build_metadata)
    def ragged_metadata(self: Any, forward_batch: Any) -> Any:
        num_nodes = getattr(forward_batch.spec_info, _NUM_NODES, None)
        metadata = build_metadata(self, forward_batch)
        if num_nodes is None:
            return metadata
        tree_mask = metadata[3]
        starts = num_nodes.cumsum(0) - num_nodes
        if tree_mask is not None:
            width, most = forward_batch.spec_info.draft_token_num, int(num_nodes.max())
            tree_mask = tree_mask.view(-1, width, width)[:, :most, :most].flatten()
        return forward_batch.seq_lens + num_nodes, num_nodes, starts, tree_mask

    runner.forward, backend._build_extend_metadata = ragged_forward, ragged_metadata
    runner.verifies_unpadded, runner.padding_skipped = _VerifiesUnpadded(), 0


def _num_nodes(forward_batch: Any) -> torch.Tensor | None:
    """int64 [b], the number of nodes of each row if rows of a verification differ; None for any other batch."""
    if not forward_batch.forward_mode.is_target_verify():
        return None
    tree = forward_batch.spec_info
    children, siblings = getattr(tree, "retrieve_next_token", None), getattr(tree, "retrieve_next_sibling", None)
    if children is None or siblings is None:
        return None
    # [b, 2 * width]: -1, or a place in the row that no other link leads to.
    linked = torch.cat([children, siblings], dim=1)
    num_linked = (linked >= 0).sum(1)
    if not torch.equal(linked.amax(1).clamp_min(0), num_linked):
        # Trees that are built elsewhere may have nodes that do not come first.
        return None
    num_nodes = num_linked + 1
    return None if int(num_nodes.min()) == tree.draft_token_num else num_nodes


def own_places(sizes: torch.Tensor, width: int) -> torch.Tensor:
    """int64 [n], the places of the rows' own tokens: the first `sizes` (integer [b]) of each row's `width`."""
    return (torch.arange(width) < sizes[:, None]).flatten().nonzero().flatten()


def spread(values: torch.Tensor, places: torch.Tensor, total: int) -> torch.Tensor:
    """[n, ...] at their places among `total`, zeros elsewhere."""
    return values.new_zeros((total, *values.shape[1:])).index_copy_(0, places, values)
