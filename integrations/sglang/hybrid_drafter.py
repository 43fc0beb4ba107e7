"""Drafts of a server with a drafter: suffix drafts for every row, the model drafter's where the policy wants them.

One decode step:
  1. suffix drafts for every row (suffix_drafter.py);
  2. the policy says which rows the model drafter is to draft for; often none (agentspec.policy);
  3. for these alone the drafter catches up with the text and drafts (model_drafter.py);
  4. the policy takes for each row the suffix draft, the model's, both in one tree, or the root alone, and the controller
     cuts them to what pays (width_control.py).

Whatever fails costs drafts and nothing else.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from agentspec.draft_tree import DraftBatch
from agentspec.integrations.sglang import compat
from agentspec.integrations.sglang.acceptance_head import find_acceptance_head
from agentspec.integrations.sglang.device_clock import DeviceClock
from agentspec.integrations.sglang.draft_stop import DraftStop
from agentspec.integrations.sglang.drafter_states import DrafterState
from agentspec.integrations.sglang.model_drafter import ModelDrafter
from agentspec.integrations.sglang.rows import last_tokens, roots_only
from agentspec.integrations.sglang.suffix_drafter import SuffixDrafter
from agentspec.integrations.sglang.width_control import PlannedStep
from agentspec.policy import HybridPolicy, StepCosts, prompt_rule

# A row that suffix drafts alone serve makes the drafter read after so many tokens all the same, so that what is kept
# for it has a bound.
_MAX_PENDING = 256


@dataclass(frozen=True, slots=True)
class _Accepted:
    """What a verify step left on the device; it may not be known on the host yet."""

    rids: list[str]
    states: list[DrafterState | None]
    lens: torch.Tensor
    """[b], bonus tokens counted."""
    tokens: torch.Tensor
    """[b * width], accepted ones first in each row."""
    hidden: torch.Tensor | None
    """[b * width, H'], likewise, of a head."""
    width: int


@dataclass(slots=True)
class _Rows:
    """The rows of a step that is being drafted for."""

    batch: Any
    seq_lens: NDArray[np.int64]
    """[b], tokens in the target's KV cache."""
    tails: list[Sequence[int]]
    """For each row the tokens that the scheduler has not processed."""
    wanted: NDArray[np.bool_]
    """[b], those that the model drafter is to draft for."""
    behind: NDArray[np.bool_]
    """[b], those that it is to catch up for."""
    least_gain: float = 0.0
    """Of a further pass of the drafter, in accepted tokens, so that it pays."""


class HybridDrafter:
    """Owned by a hybrid worker, on the scheduler's thread. Where several ranks verify, the first one decides for all."""

    def __init__(
        self,
        suffix: SuffixDrafter,
        draft_worker: Any,
        draft_model_path: str,
        *,
        reads_hidden: bool,
        num_steps: int,
        max_position: int,
        clock: DeviceClock,
        tp_group: Any,
    ) -> None:
        """Takes over SGLang's draft worker: what it reads, where its drafts end, how they are scored.

        Args:
            suffix: Drafts for every row.
            draft_worker: SGLang's, loaded.
            draft_model_path: What it has loaded; an acceptance head may lie there.
            reads_hidden: Whether its input has the target's hidden states: all but small models of their own.
            num_steps: Passes of a draft, where a graph fixes them.
            max_position: The last that the target knows.
            clock: Of the device.
            tp_group: Of the ranks that verify the same rows; None: this one alone.
        """
        settings = suffix.settings
        self._suffix, self._draft_worker = suffix, draft_worker
        self._reads_hidden, self._num_steps, self._max_position = reads_hidden, num_steps, max_position
        self._clock, self._tp_group = clock, tp_group
        self._min_token_prob = settings.min_token_prob
        self.policy = HybridPolicy(
            settings.hybrid_config(trees=suffix.config.mode == "tree", max_nodes=suffix.max_width - 1),
            StepCosts(suffix.profile),
        )
        self._model = ModelDrafter(draft_worker, reads_hidden=reads_hidden)
        self._prompt_reading = prompt_rule(settings.prompt_reading)
        self.prompts_are_read = True
        """Whether the drafter read the last prompts."""
        self._accepted: _Accepted | None = None
        draft_worker.max_nodes = suffix.max_width - 1
        draft_worker.reads_prompts = self._reads_prompts
        draft_worker.timed_reading = self._timed_reading
        draft_worker.read_plainly = self._model.read_prompts
        draft_worker.acceptance = find_acceptance_head(
            settings.acceptance_head, draft_model_path, draft_worker.draft_runner
        )
        draft_worker.stop = DraftStop(settings.stop_threshold)
        if suffix.state_metrics is not None:
            suffix.state_metrics.read("drafter_tau", lambda: self.policy.tau if math.isfinite(self.policy.tau) else -1)
            suffix.state_metrics.read("drafter_reads_prompts", lambda: reads_hidden and self.prompts_are_read)

    def describe(self) -> dict[str, Any]:
        """Its part of the block `agentspec` of `/server_info`."""
        return {
            "acceptance_head": self.has_acceptance_head,
            "reads_prompts": self._reads_hidden and self._prompt_reading.pays(),
            **self.policy.describe(),
        }

    @property
    def has_acceptance_head(self) -> bool:
        return self._draft_worker.acceptance is not None

    def weights_changed(self) -> None:
        """The drafter's weights have been replaced, or may have been."""
        self._model.forwards.weights_changed()

    def forget(self, rid: str) -> None:
        """The request finished."""
        self._model.states.forget(rid)
        self.policy.forget(rid)

    def prompts_read(self, prompts: Any, draft_input: Any) -> None:
        """The target read the prompts of a batch, or the next chunk of them.

        Args:
            prompts: SGLang's `ScheduleBatch`, in extend mode.
            draft_input: SGLang's state of the drafter behind them.
        """
        for rid in self._model.states.sweep():
            self.policy.forget(rid)
        ends = [prefix + n for prefix, n in zip(prompts.prefix_lens, prompts.extend_lens, strict=True)]
        self._model.prompts_read(prompts, ends, draft_input, read=self.prompts_are_read)
        self._prompt_reading.observe_prompts(self.policy.costs.read(sum(prompts.extend_lens)))

    def verified(self, batch: Any, rids: list[str], result: Any, width: int) -> None:
        """A verify step of this width was launched. What it accepts is taken over before the next drafts."""
        self._model.verified(batch)
        hidden = result.logits_output.hidden_states if self._reads_hidden else None
        states = [self._model.states.get(rid) for rid in rids]
        self._accepted = _Accepted(rids, states, result.accept_lens, result.next_token_ids, hidden, width)

    def settle(self, batch: Any) -> list[Sequence[int]]:
        """Takes over what the previous step accepted; for each row the tokens that the scheduler has not processed."""
        done, self._accepted = self._accepted, None
        if done is None:
            return [()] * len(batch.reqs)
        lens = done.lens.tolist()
        for row, (state, n) in enumerate(zip(done.states, lens, strict=True)):
            if state is not None and done.hidden is not None:
                state.keep(done.hidden[row * done.width : row * done.width + n].clone())
        if not batch.enable_overlap or batch.grammar_needs_sync():
            return [()] * len(batch.reqs)
        rows = done.tokens.reshape(len(lens), -1).tolist()
        tails = {rid: row[:n] for rid, row, n in zip(done.rids, rows, lens, strict=True)}
        return [tails.get(request.rid, ()) for request in batch.reqs]

    def drafts(
        self, batch: Any, seq_lens: NDArray[np.int64], tails: list[Sequence[int]]
    ) -> tuple[DraftBatch, PlannedStep]:
        """What is verified in the next step, the same on all ranks.

        Args:
            batch: SGLang's `ScheduleBatch`, in decode mode. Only read.
            seq_lens: int64[b], tokens in the target's KV cache.
            tails: For each row the tokens that the scheduler has not processed.
        """
        rids = [request.rid for request in batch.reqs]
        suffix = self._suffix.drafts(batch.reqs, seq_lens, tails)
        rows = _Rows(batch, seq_lens, tails, np.zeros(len(rids), bool), np.zeros(len(rids), bool))
        if self._suffix.drafts_here:
            try:
                self._choose(rows, rids, suffix)
            except Exception:
                self._suffix.failed("agentspec could not choose between drafts; this step has suffix drafts alone")
        if self._tp_group is not None:
            suffix, rows.wanted, rows.behind, rows.least_gain = self._tp_group.broadcast_object(
                (suffix, rows.wanted, rows.behind, rows.least_gain), src=0
            )
        drafter_began = time.perf_counter()
        try:
            drafts = self._united(rows, rids, suffix)
        except Exception:
            self._suffix.failed("agentspec could not draft with the model; this step has suffix drafts alone")
            drafts = suffix
        drafter_seconds = time.perf_counter() - drafter_began
        drafts, planned = self._suffix.plan(drafts, seq_lens)
        planned.drafter_seconds = drafter_seconds
        if self._tp_group is not None:
            drafts, planned = self._tp_group.broadcast_object((drafts, planned), src=0)
        return drafts, planned

    def _choose(self, rows: _Rows, rids: list[str], suffix: DraftBatch) -> None:
        """The rows that the model drafter is to draft for, and those that it is to catch up for."""
        pending, fit = self._model.states.pending(rids, rows.seq_lens)
        fit &= np.array([self._room(rows, row) > 0 and self._suffix.may_draft(rid) for row, rid in enumerate(rids)])
        # The drafter must not be asked for positions that it does not know.
        fit &= rows.seq_lens + self._num_steps <= self._max_position
        control = self._suffix.control
        self.policy.costs.rest = control.rest
        width = self._suffix.max_width if control.is_fixed else None
        choice = self.policy.choose(rids, suffix, pending, fit, width=width)
        rows.wanted, rows.least_gain = choice.rows, choice.least_gain
        # What is kept for a head's next reading has a bound.
        rows.behind = rows.wanted | (fit & (pending > _MAX_PENDING) if self._reads_hidden else False)
        if self._reads_hidden:
            self._prompt_reading.observe_step(choice.saved, int(choice.saved > 0.0))

    def _united(self, rows: _Rows, rids: list[str], suffix: DraftBatch) -> DraftBatch:
        """Suffix drafts with those of the model where they are wanted."""
        if rows.behind.any():
            self._catch_up(rows)
        model = roots_only(suffix.tokens[suffix.offsets[:-1]])
        wanted = int(rows.wanted.sum())
        started = self._clock.start()
        if wanted:
            model = self._model_drafts(rows, model)
        drafts: DraftBatch = self.policy.combine(rids, suffix, model, rows.wanted)
        if wanted:
            # What becomes of the drafts takes time as well.
            context = int(rows.seq_lens[rows.wanted].sum())
            self._clock.stop(started, partial(self._drafted, wanted, self._draft_worker.num_passes, context))
        return drafts

    def _catch_up(self, rows: _Rows) -> None:
        """The drafter reads what it lacks of the rows that are behind."""
        batch, seq_lens = rows.batch, rows.seq_lens
        behind = np.flatnonzero(rows.behind).tolist()
        lacking = [int(seq_lens[row]) - self._model.states[batch.reqs[row].rid].length for row in behind]
        self._suffix.counters.add("drafter_steps", 1)
        self._suffix.counters.add("drafter_catch_up_tokens", sum(lacking))
        if not any(lacking):
            return
        texts = [last_tokens(batch.reqs[row], rows.tails[row], n) for row, n in zip(behind, lacking, strict=True)]
        report = partial(self.policy.costs.observe_catch_up, sum(lacking))
        with compat.drafter_context(self._draft_worker), self._clock.timed(report):
            self._model.catch_up(batch, behind, seq_lens, texts)

    def _model_drafts(self, rows: _Rows, roots: DraftBatch) -> DraftBatch:
        """The drafter's trees for the rows wanted, which have been caught up; `roots` has the others."""
        wanted = np.flatnonzero(rows.wanted).tolist()
        rooms = [self._room(rows, row) for row in wanted]
        self._draft_worker.stop.least_gain = rows.least_gain
        with compat.drafter_context(self._draft_worker):
            return self._model.draft(rows.batch, wanted, rows.seq_lens, rooms, roots.tokens, self._min_token_prob)

    def _drafted(self, rows: int, passes: int, context: int, seconds: float) -> None:
        self.policy.costs.observe_draft(rows, passes, seconds)
        self._suffix.control.drafted(rows, passes, context, seconds)

    def _room(self, rows: _Rows, row: int) -> int:
        return self._suffix.room(rows.batch.reqs[row], int(rows.seq_lens[row]), len(rows.tails[row]))

    def _timed_reading(self, batch: Any) -> Any:
        return self._clock.timed(partial(self.policy.costs.observe_read, sum(batch.extend_lens)))

    def _reads_prompts(self, batch: Any) -> bool:
        """Whether the drafter is to read the prompts of a batch now. A head reads them now or never."""
        read = self._reads_hidden and (self._prompt_reading.pays() or self.policy.config.tau == math.inf)
        if self._tp_group is not None:
            read = self._tp_group.broadcast_object(read, src=0)
        self.prompts_are_read = bool(read)
        return self.prompts_are_read
