"""Verification of rows that differ in width, without their padding.

SGLang verifies all rows of a batch with as many tokens as the widest of them. On a GPU that is what captured graphs want,
and padding hides in what a step takes anyway; on a CPU every token takes its time. Here the model sees each row's own
tokens alone (attention, which computes a batch at once, pads them for itself), and what it returns is laid out as SGLang
expects it:

    [b * width] tokens ── kept ──> [n] ── model ──> [n, V] logits ── spread ──> [b * width, V]

What padding is given instead, zeros, nobody reads: no link of a tree leads there.
"""

from __future__ import annotations

import functools
import importlib
from typing import Any

import torch

from agentspec.integrations.sglang_cpu.padding import own_places, spread

_NUM_NODES, _NUM_SKIPPED = "agentspec_num_nodes", "agentspec_num_skipped"
_PER_TOKEN = ("input_ids", "positions", "out_cache_loc")
"""What a model and its attention are given of each token."""

_patched = False


def skips_padding(runner: Any) -> bool:
    """Whether verifications of SGLang's `ModelRunner` leave out what set_num_nodes() says is padding.

    Not where something else than ids, positions and slots is kept token by token: of images, or of adapters.
    """
    return _patched and runner.device == "cpu" and not runner.is_multimodal and runner.lora_manager is None


def set_num_nodes(verify_input: Any, num_nodes: torch.Tensor) -> None:
    """Says of SGLang's input of a verification how many nodes each row has, integer [b], its root counted: the first of
    its width, parents before their children."""
    setattr(verify_input, _NUM_NODES, num_nodes.long())


def num_skipped(runner: Any) -> int:
    """Tokens of padding that the model of a `ModelRunner` was spared so far."""
    return int(getattr(runner, _NUM_SKIPPED, 0))


def patch_ragged() -> None:
    """Let verifications leave out padding; imports SGLang. Calling it again changes nothing.

    Does nothing where SGLang's backend does not say by that method what its attention is given.
    """
    global _patched
    if _patched:
        return
    runner: Any = importlib.import_module("sglang.srt.model_executor.model_runner").ModelRunner
    backend: Any = importlib.import_module("sglang.srt.layers.attention.intel_amx_backend").IntelAMXAttnBackend
    forward, build_metadata = runner.forward, getattr(backend, "_build_extend_metadata", None)
    if build_metadata is None:
        return

    @functools.wraps(forward)
    def ragged_forward(self: Any, forward_batch: Any, *args: Any, **kwargs: Any) -> Any:
        num_nodes = _num_nodes(forward_batch)
        if num_nodes is None:
            return forward(self, forward_batch, *args, **kwargs)
        kept = own_places(num_nodes, forward_batch.spec_info.draft_token_num)
        whole = {name: getattr(forward_batch, name) for name in _PER_TOKEN}
        for name, values in whole.items():
            setattr(forward_batch, name, values[kept])
        try:
            result = forward(self, forward_batch, *args, **kwargs)
        finally:
            for name, values in whole.items():
                setattr(forward_batch, name, values)
        output, total = result.logits_output, len(whole["input_ids"])
        output.next_token_logits = spread(output.next_token_logits, kept, total)
        if output.hidden_states is not None:
            output.hidden_states = spread(output.hidden_states, kept, total)
        setattr(self, _NUM_SKIPPED, num_skipped(self) + total - len(kept))
        return result

    @functools.wraps(build_metadata)
    def ragged_metadata(self: Any, forward_batch: Any) -> Any:
        num_nodes = _num_nodes(forward_batch)
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
    _patched = True


def _num_nodes(forward_batch: Any) -> torch.Tensor | None:
    """int64 [b], of a verification of rows that differ; None of anything else."""
    if not forward_batch.forward_mode.is_target_verify():
        return None
    num_nodes: torch.Tensor | None = getattr(forward_batch.spec_info, _NUM_NODES, None)
    if num_nodes is None or int(num_nodes.min()) == forward_batch.spec_info.draft_token_num:
        return None
    return num_nodes
