"""Runners that a draft worker holds in place of SGLang's captured graphs, with the same methods."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import torch
from torch import Tensor

from agentspec.integrations.sglang_cpu.drafter.native_drafter import NativeDrafter, flat
from agentspec.integrations.sglang_cpu.ragged import spread

Draft = tuple[Tensor, Tensor, Tensor, Tensor | None]


def has_own_rules(worker: Any) -> bool:
    """Whether a draft worker says itself how large a tree may be and when to stop, as those of agentspec do, which take
    estimates of acceptance with their trees."""
    return hasattr(worker, "max_nodes")


class DraftRunner:
    """All passes of a draft, as `draft_forward` makes them.

    Every drafted token sees the text and its own ancestors. In SGLang's own loop it may see other branches as well,
    where `topk` > 1.
    """

    def __init__(self, worker: Any, drafter: NativeDrafter) -> None:
        self._worker = worker
        self._drafter = drafter
        self._has_own_rules = has_own_rules(worker)

    def can_run_graph(self, forward_batch: Any) -> bool:
        """Whether `execute` can draft for this batch."""
        if forward_batch.forward_mode.is_idle() or self._drafter.model is None:
            return False
        worker = self._worker
        if self._has_own_rules and worker.stop.row_stops() is not None:
            # Drafts whose rows end apart are made by the plugin's own loop.
            return False
        topk, steps = worker.topk, worker.speculative_num_steps
        if not self._has_own_rules and topk + topk * topk * (steps - 1) < worker.speculative_num_draft_tokens - 1:
            # SGLang refuses it with a message of its own.
            return False
        return self._drafter.knows_positions(int(forward_batch.seq_lens.max()) + steps)

    @torch.inference_mode()
    def execute(self, forward_batch: Any) -> Draft:
        """Drafts one tree a row.

        Returns:
            parents: int64 [b, groups], the candidate that each group of `topk` candidates hangs on; -1 for the root.
            chosen: int64 [b, n], the candidates in the tree, ascending.
            tokens: int64 [b, n], theirs.
            estimates: float32 [b, n], the product of probabilities along each one's path. None for SGLang's own
                workers, which take a distribution for rejection sampling there.
        """
        worker, drafter, state = self._worker, self._drafter, forward_batch.spec_info
        assert drafter.model is not None
        acceptance = drafter.acceptance()
        hidden = state.hidden_states if drafter.is_head or acceptance is not None else None
        stop = getattr(worker, "stop", None)
        hot = worker.hot_token_id
        parents, chosen, tokens, estimates, num_passes = drafter.model.draft(
            drafter.texts(forward_batch.req_pool_indices, forward_batch.seq_lens.tolist()),
            flat(state.topk_p),
            state.topk_index.to(torch.int64).reshape(-1).numpy(),
            None if hidden is None else flat(hidden),
            acceptance,
            None if hot is None else hot.to(torch.int64).contiguous().numpy(),
            topk=worker.topk,
            num_steps=worker.speculative_num_steps,
            max_nodes=worker.max_nodes if self._has_own_rules else worker.speculative_num_draft_tokens - 1,
            least_gain=0.0 if stop is None or stop.threshold is not None else stop.least_gain,
        )
        drafted = torch.from_numpy(parents), torch.from_numpy(chosen), torch.from_numpy(tokens)
        if not self._has_own_rules:
            return *drafted, None
        worker.num_passes = num_passes
        return *drafted, torch.from_numpy(estimates)


class DraftExtendRunner:
    """The reading of what was accepted.

    SGLang reads the whole width of each row, because graphs want rows of one width. Nobody looks at what it computes
    behind a row's accepted tokens; here these are read alone.
    """

    def __init__(self, drafter: NativeDrafter) -> None:
        self._drafter = drafter
        self._output: Any = importlib.import_module("sglang.srt.layers.logits_processor").LogitsProcessorOutput

    def can_run_graph(self, forward_batch: Any) -> bool:
        """Whether `execute` can read for this batch."""
        return (
            forward_batch.forward_mode.is_draft_extend_v2()
            and self._drafter.model is not None
            # Rows that begin before the accepted tokens.
            and not getattr(forward_batch.spec_info, "num_front_tokens", 0)
            and self._drafter.knows_positions(int(forward_batch.seq_lens.max()))
        )

    @torch.inference_mode()
    def execute(self, forward_batch: Any, select_index: Tensor | None = None) -> Any:
        """Reads the accepted tokens of each row and writes their keys and values to the cache.

        Args:
            forward_batch: Of b rows of w tokens, the accepted ones in front; `seq_lens` counts all w.
            select_index: int64 [b], the place of each row's last accepted token among all. None where SGLang selects
                by itself afterwards, as SGLang 0.5.17 does.

        Returns:
            SGLang's `LogitsProcessorOutput`: logits [b, V] and hidden states [b, H] of the last accepted tokens; where
            `select_index` is None, [b * w, V] and [b * w, H] with these at their places and zeros elsewhere. The
            hidden states are None where the batch captures none.
        """
        drafter, state = self._drafter, forward_batch.spec_info
        assert drafter.model is not None
        rows, total = len(forward_batch.seq_lens), len(forward_batch.input_ids)
        width = total // rows
        accepted = state.num_accept_tokens.to(torch.int64)
        tokens = forward_batch.input_ids.to(torch.int64).view(rows, width).numpy()
        sizes = accepted.tolist()
        ends = (forward_batch.seq_lens - width + accepted).tolist()
        hidden = None
        if drafter.is_head:
            is_accepted = torch.arange(width) < accepted[:, None]
            hidden = flat(state.hidden_states[is_accepted.flatten()])
        logits, states = map(
            torch.from_numpy,
            drafter.model.read(
                drafter.texts(forward_batch.req_pool_indices, ends),
                [np.ascontiguousarray(row[:size]) for row, size in zip(tokens, sizes, strict=True)],
                hidden,
            ),
        )
        if select_index is None:
            places = torch.arange(rows) * width + accepted - 1
            logits, states = spread(logits, places, total), spread(states, places, total)
        captures = forward_batch.capture_hidden_mode.need_capture()
        return self._output(next_token_logits=logits, hidden_states=states if captures else None)
