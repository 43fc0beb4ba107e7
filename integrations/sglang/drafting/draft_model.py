"""SGLang's draft workers, whose drafts are a proposal among others.

SGLang's pipeline stays as it is: after each verification its draft-extend brings the draft model up to date with what
was accepted, whatever proposed it, and the state travels to the next step in SGLang's own relay. Two places differ:

  * `draft` asks the owner, which may run the passes (`passes`), unite their trees with others, or do without them;
  * while the draft model is paused, neither prompts nor accepted tokens are read (draft_model_state.py).

SGLang's loop scores the candidates of its tree, picks the best and forgets the scores. Here they are handed on where
SGLang has room for a draft distribution, which only rejection sampling would use: as estimates of acceptance.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from sglang.srt.speculative import eagle_worker_v2, standalone_worker_v2
from sglang.srt.speculative.spec_utils import select_top_k_tokens

from agentspec.integrations.sglang import compat
from agentspec.integrations.sglang.drafting.acceptance_head import AcceptanceHead
from agentspec.integrations.sglang.drafting.accepted_tokens import HostCopy
from agentspec.integrations.sglang.drafting.device_clock import DeviceClock
from agentspec.integrations.sglang.drafting.draft_model_state import DraftModelState
from agentspec.integrations.sglang.drafting.stop_rule import DraftStop, RowStops
from agentspec.integrations.sglang.kernels.tree_union import ModelTensors
from agentspec.integrations.sglang.sglang_types import ScheduleBatch, ServerArgs
from agentspec.scheduling.hybrid import ModelTrees, num_passes


class LaunchedTrees:
    """The trees of a batch on the device."""

    def __init__(self, found: SimpleNamespace, topk: int) -> None:
        """`found`: what `draft_forward` returns, as attributes `parents`, `chosen`, `tokens`, `estimates`."""
        self.on_device = ModelTensors(found.parents, found.chosen, found.tokens, found.estimates, topk)
        """Valid until the next passes are launched."""
        self.seconds = 0.0
        """Time of the host until the passes were launched; on a CPU, until they were done."""
        self._copy: HostCopy | None = None

    def start_copy(self) -> None:
        """Starts to copy the trees to the host, by one copy."""
        found = self.on_device
        parts = (found.parents, found.chosen, found.tokens)
        # Estimates travel among the integers, bit by bit.
        bits = found.estimates.to(torch.float64).view(torch.int64)
        self._copy = HostCopy(torch.cat([*(part.to(torch.int64) for part in parts), bits], dim=1))

    def wait(self) -> ModelTrees:
        """The trees on the host; waits for the passes."""
        if self._copy is None:
            self.start_copy()
        assert self._copy is not None
        groups, n = self.on_device.parents.shape[1], self.on_device.chosen.shape[1]
        found = self._copy.wait()
        bits = np.ascontiguousarray(found[:, groups + 2 * n :])
        return ModelTrees(
            np.ascontiguousarray(found[:, :groups]),
            np.ascontiguousarray(found[:, groups : groups + n]),
            np.ascontiguousarray(found[:, groups + n : groups + 2 * n]),
            bits.view(np.float64).astype(np.float32),
            self.on_device.topk,
        )


class TreeDrafting(DraftModelState):
    """Mixed into SGLang's draft workers."""

    # Makes the input of a verification of a batch; set by the worker that owns this one.
    propose: Callable[[ScheduleBatch], object]
    # The most nodes of a draft, its root not counted.
    max_nodes = 0
    # None: the draft model's own probabilities are the estimates.
    acceptance: AcceptanceHead | None = None
    stop = DraftStop()
    # Passes of the last draft: its tokens in a row from the root, at most.
    num_passes = 0

    def __init__(self, server_args: ServerArgs, *args: object, **kwargs: object) -> None:
        super().__init__(server_args, *args, **kwargs)
        # SGLang's own arguments describe what is verified.
        shape = self.shape = compat.draft_shape(server_args)
        self.speculative_num_steps, self.topk = shape.steps, shape.topk
        self.clock = DeviceClock(self.device)

    def init_attention_backends(self) -> None:
        with compat.draft_configuration(self.draft_runner, self.shape):
            super().init_attention_backends()

    def init_cuda_graphs(self) -> None:
        with compat.draft_configuration(self.draft_runner, self.shape):
            super().init_cuda_graphs()

    def draft(self, batch: ScheduleBatch) -> object:
        return self.propose(batch)

    def passes(self, batch: ScheduleBatch) -> LaunchedTrees:
        """Launches the draft model's passes for all rows of a batch in decode mode; does not wait for them."""
        # A captured graph does not count them.
        self.num_passes = num_passes(len(batch.reqs), self.speculative_num_steps)
        with topology_only():
            found = super().draft(batch)
        return LaunchedTrees(found, self.topk)

    def _rebuild_topk1_chain_buffers(self) -> None:
        """The base class ties the width of a step to its own chains; here a step is as wide as its widest draft."""

    def draft_forward(self, forward_batch: Any) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        """Drafts one tree a row. Captured in a graph where SGLang captures its own loop.

        Returns:
            parents: int64[b, groups], the candidate that each group of `topk` candidates hangs on; -1 for the root.
            chosen: int64[b, n], the candidates in the tree, ascending.
            tokens: int64[b, n], theirs.
            estimates: float32[b, n], theirs: the product along the path; RowStops.ENDED where the row ends before.
        """
        spec_info = forward_batch.spec_info
        topk_p, topk_index, hidden = spec_info.topk_p, spec_info.topk_index, spec_info.hidden_states
        if self.hot_token_id is not None:
            topk_index = self.hot_token_id[topk_index]
        rows, steps, topk = len(topk_p), self.speculative_num_steps, self.topk
        passes = num_passes(rows, steps)
        slots = forward_batch.out_cache_loc.view(rows, topk, steps).permute(2, 0, 1).reshape(steps, -1)
        if self.acceptance is not None:
            compat.capture_last_hidden(forward_batch)
        topk_p, judged = self.accepted(hidden, topk_p)
        stops = self.stop.row_stops()
        by_step = []
        scores = None
        for step in range(passes):
            tokens, hidden, scores, candidates = select_top_k_tokens(step, topk_p, topk_index, hidden, scores, topk)
            if stops is not None:
                candidates = _ended(stops, step, candidates, judged, topk)
            by_step.append(candidates)
            if step == passes - 1 or self.stop.is_over(scores, step + 1, stops):
                break
            forward_batch.input_ids = tokens
            forward_batch.out_cache_loc = slots[step]
            spec_info.hidden_states = hidden
            with compat.draft_step_context(self.draft_attn_backend.attn_backends[step], forward_batch):
                output = self.draft_runner.forward(forward_batch).logits_output
            topk_p, topk_index = torch.softmax(output.next_token_logits, dim=-1).topk(topk, dim=-1)
            hidden = output.hidden_states
            topk_p, judged = self.accepted(hidden, topk_p)
            forward_batch.positions.add_(1)
            if self.draft_runner.model_config.model_is_mrope:
                forward_batch.mrope_positions.add_(1)
            if self.hot_token_id is not None:
                topk_index = self.hot_token_id[topk_index]
        if passes < steps:
            # SGLang takes the increments of all steps back when a captured graph ends.
            forward_batch.positions.add_(steps - passes)
        self.num_passes = len(by_step)
        by_score, by_token, by_parent = zip(*by_step, strict=True)
        all_scores = torch.cat(by_score, dim=1).flatten(1)
        chosen = all_scores.topk(min(self.max_nodes, all_scores.shape[1]), dim=-1).indices.sort().values
        parents = torch.cat(by_parent[:-1], dim=1) if len(by_parent) > 1 else by_parent[0].new_empty((rows, 0))
        return parents, chosen, torch.cat(by_token, dim=1).gather(1, chosen), all_scores.gather(1, chosen)

    def accepted(self, hidden: torch.Tensor | None, topk_p: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """As `AcceptanceHead.accepted`, where there is one and it has states to judge by; else topk_p twice."""
        if hidden is None or self.acceptance is None:
            return topk_p, topk_p
        return self.acceptance.accepted(hidden, topk_p)


_Candidates = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def _ended(stops: RowStops, step: int, candidates: _Candidates, judged: torch.Tensor, topk: int) -> _Candidates:
    """The candidates of a step of SGLang's loop: scores, tokens and parents. Those after their row's end are marked."""
    scores, tokens, parents = candidates
    if not step:
        return stops.after_first(scores, judged), tokens, parents
    # SGLang numbers candidates over all steps: topk of the first one, then topk * topk a step.
    return stops.after_pass(scores, judged, parents - (topk * topk * (step - 1) + topk)), tokens, parents


class EagleTreeDrafting(TreeDrafting, eagle_worker_v2.EagleDraftWorker):  # type: ignore[misc]
    """The draft worker of EAGLE, EAGLE-3 and next-token layers."""


class StandaloneTreeDrafting(TreeDrafting, standalone_worker_v2.StandaloneDraftWorker):  # type: ignore[misc]
    """The draft worker of a small model of its own."""


@contextlib.contextmanager
def topology_only() -> Iterator[None]:
    """While SGLang's `draft` runs, it returns what `draft_forward` gave and builds no verify input of it."""
    original = eagle_worker_v2.build_eagle_verify_input
    eagle_worker_v2.build_eagle_verify_input = _topology
    try:
        yield
    finally:
        eagle_worker_v2.build_eagle_verify_input = original


def _topology(
    batch: object,
    draft_input: object,
    parents: torch.Tensor,
    chosen: torch.Tensor,
    tokens: torch.Tensor,
    estimates: torch.Tensor,
    **rest: object,
) -> SimpleNamespace:
    del batch, draft_input, rest
    return SimpleNamespace(parents=parents, chosen=chosen, tokens=tokens, estimates=estimates)
