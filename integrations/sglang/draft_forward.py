"""The drafting loop of a model drafter, so that a tree comes with the drafter's own probabilities.

SGLang's loop scores the candidates of its tree, picks the best and forgets the scores. Here they are handed on where
SGLang has room for a draft distribution, which only rejection sampling would use: as estimates of acceptance.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import torch
from sglang.srt.speculative import eagle_worker_v2, standalone_worker_v2
from sglang.srt.speculative.eagle_info import EagleDraftInput
from sglang.srt.speculative.spec_utils import select_top_k_tokens

from agentspec.integrations.sglang import compat
from agentspec.integrations.sglang.acceptance_head import AcceptanceHead
from agentspec.integrations.sglang.draft_stop import DraftStop


class TreeDrafting:
    """Mixed into SGLang's draft workers: the loop, and what it does not share with theirs."""

    # The most nodes of a draft, its root not counted.
    max_nodes = 0
    # None: the drafter's own probabilities are the estimates.
    acceptance: AcceptanceHead | None = None
    stop = DraftStop()
    # Passes of the last draft: its tokens in a row from the root, at most.
    num_passes = 0
    # Whether the drafter reads the prompts of a batch as soon as the target did.
    reads_prompts: Callable[[Any], bool] = staticmethod(lambda batch: True)
    # Logits and states at the ends of the prompts of a batch, from the target's hidden states and next tokens, where
    # there is a quicker way to them than SGLang's; else None.
    read_plainly: Callable[[Any, Any, torch.Tensor], Any] = staticmethod(lambda batch, hidden, following: None)

    # Where the seconds of reading a batch's prompts are taken.
    timed_reading: Callable[[Any], Any] = staticmethod(lambda batch: contextlib.nullcontext())

    def _draft_extend_for_prefill(
        self: Any, batch: Any, hidden: Any, next_token_ids: torch.Tensor, embeds: Any = None, **kwargs: Any
    ) -> Any:
        if not self.reads_prompts(batch):
            return unread(next_token_ids, self.topk)
        with self.timed_reading(batch):
            return self._read_prompts(batch, hidden, next_token_ids, embeds, **kwargs)

    def _read_prompts(
        self: Any, batch: Any, hidden: Any, next_token_ids: torch.Tensor, embeds: Any, **kwargs: Any
    ) -> Any:
        read = self.read_plainly(batch, hidden, next_token_ids) if embeds is None else None
        if read is None:
            return super()._draft_extend_for_prefill(batch, hidden, next_token_ids, embeds, **kwargs)  # type: ignore[misc]
        logits, state = read
        state_of_batch = unread(next_token_ids, self.topk)
        state_of_batch.topk_p, state_of_batch.topk_index = torch.softmax(logits, dim=-1).topk(self.topk, dim=-1)
        state_of_batch.hidden_states = state
        return state_of_batch

    def _rebuild_topk1_chain_buffers(self) -> None:
        """The base class ties the width of a step to its own chains; here a step is as wide as its widest draft."""

    def draft_forward(self: Any, forward_batch: Any) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        """Drafts one tree a row.

        Returns:
            parents: int64[b, groups], the candidate that each group of `topk` candidates hangs on; -1 for the root.
            chosen: int64[b, n], the candidates in the tree, ascending.
            tokens: int64[b, n], theirs.
            estimates: float32[b, n], theirs: the product along the path.
        """
        spec_info = forward_batch.spec_info
        topk_p, topk_index, hidden = spec_info.topk_p, spec_info.topk_index, spec_info.hidden_states
        if self.hot_token_id is not None:
            topk_index = self.hot_token_id[topk_index]
        rows, steps, topk = len(topk_p), self.speculative_num_steps, self.topk
        slots = forward_batch.out_cache_loc.view(rows, topk, steps).permute(2, 0, 1).reshape(steps, -1)
        if self.acceptance is not None:
            compat.capture_last_hidden(forward_batch)
            topk_p = self.accepted(hidden, topk_p)
        by_step = []
        scores = None
        for step in range(steps):
            tokens, hidden, scores, candidates = select_top_k_tokens(step, topk_p, topk_index, hidden, scores, topk)
            by_step.append(candidates)
            if step == steps - 1 or self.stop.is_over(scores, step + 1):
                break
            forward_batch.input_ids = tokens
            forward_batch.out_cache_loc = slots[step]
            spec_info.hidden_states = hidden
            with compat.draft_step_context(self.draft_attn_backend.attn_backends[step], forward_batch):
                output = self.draft_runner.forward(forward_batch).logits_output
            topk_p, topk_index = torch.softmax(output.next_token_logits, dim=-1).topk(topk, dim=-1)
            hidden = output.hidden_states
            if self.acceptance is not None:
                topk_p = self.accepted(hidden, topk_p)
            forward_batch.positions.add_(1)
            if self.draft_runner.model_config.model_is_mrope:
                forward_batch.mrope_positions.add_(1)
            if self.hot_token_id is not None:
                topk_index = self.hot_token_id[topk_index]
        self.num_passes = len(by_step)
        by_score, by_token, by_parent = zip(*by_step, strict=True)
        all_scores = torch.cat(by_score, dim=1).flatten(1)
        chosen = all_scores.topk(min(self.max_nodes, all_scores.shape[1]), dim=-1).indices.sort().values
        parents = torch.cat(by_parent[:-1], dim=1) if len(by_parent) > 1 else by_parent[0].new_empty((rows, 0))
        return parents, chosen, torch.cat(by_token, dim=1).gather(1, chosen), all_scores.gather(1, chosen)

    def accepted(self, hidden: torch.Tensor | None, topk_p: torch.Tensor) -> torch.Tensor:
        """As `AcceptanceHead.accepted`, where there is one and it has states to judge by; else topk_p."""
        return topk_p if hidden is None or self.acceptance is None else self.acceptance.accepted(hidden, topk_p)


class EagleTreeDrafting(TreeDrafting, eagle_worker_v2.EagleDraftWorker):  # type: ignore[misc]
    """The draft worker of EAGLE and EAGLE-3."""


class StandaloneTreeDrafting(TreeDrafting, standalone_worker_v2.StandaloneDraftWorker):  # type: ignore[misc]
    """The draft worker of a small model of its own."""


def no_topk(rows: int, topk: int, device: torch.device | str) -> tuple[torch.Tensor, torch.Tensor]:
    """SGLang's place for the likeliest next tokens, float32 and int64 [rows, topk], of which nobody reads what is there."""
    return torch.zeros((rows, topk), device=device), torch.zeros((rows, topk), dtype=torch.int64, device=device)


def unread(next_token_ids: torch.Tensor, topk: int) -> Any:
    """SGLang's place for the state of the drafter, int[b] next tokens; what is drafted from is kept by request."""
    topk_p, topk_index = no_topk(len(next_token_ids), topk, next_token_ids.device)
    return EagleDraftInput(
        topk_p=topk_p,
        topk_index=topk_index,
        bonus_tokens=next_token_ids,
        num_tokens_per_req=1,
        num_tokens_for_logprob_per_req=1,
    )


@contextlib.contextmanager
def topology_only() -> Iterator[None]:
    """While a draft worker's `draft` runs, it returns what `draft_forward` gave and builds no verify input of it."""
    original = eagle_worker_v2.build_eagle_verify_input
    eagle_worker_v2.build_eagle_verify_input = _topology
    try:
        yield
    finally:
        eagle_worker_v2.build_eagle_verify_input = original


def _topology(
    batch: Any, draft_input: Any, parents: Any, chosen: Any, tokens: Any, estimates: Any, **rest: Any
) -> SimpleNamespace:
    del batch, draft_input, rest
    return SimpleNamespace(parents=parents, chosen=chosen, tokens=tokens, estimates=estimates)
