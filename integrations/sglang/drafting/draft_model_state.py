"""The state of the draft model: its KV cache, and the hidden states with which its next draft begins.

SGLang keeps this state. A prefill reads the prompt into it. After each verification, draft-extend reads the accepted
tokens, whichever drafter proposed them. While the draft model is paused, nothing is read. A request that was admitted
or decoded in that time has a gap in its state, and the draft model does not draft for it any more (workers/model_use.py).
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import torch
from sglang.srt.speculative.eagle_info import EagleDraftInput
from sglang.srt.speculative.eagle_utils import get_draft_recurrent_hidden_state_spec

from agentspec.integrations.sglang.sglang_types import BatchResult, EagleState, ScheduleBatch

Seconds = Callable[[int, float], None]
"""Called with a number of tokens and the seconds that reading them took."""


if TYPE_CHECKING:
    # The type checker sees one of SGLang's draft workers below the mixin, so that its attributes exist.
    from sglang.srt.speculative.eagle_worker_v2 import EagleDraftWorker as _Worker
else:
    _Worker = object


class DraftModelState(_Worker):  # type: ignore[misc]
    """Mixin for SGLang's draft workers. It updates their state, except while the draft model is paused."""

    # False while the draft model is paused. All ranks must agree.
    follows = True
    # Whether the parts of the current step are timed.
    is_timed = True
    # Called with the seconds of reading prompts and of draft-extend.
    read_took: Seconds = staticmethod(lambda tokens, seconds: None)
    extend_took: Seconds = staticmethod(lambda tokens, seconds: None)
    # Seconds in which the host launched the latest draft-extend after a verification; 0 if it was left out.
    extend_launch = 0.0

    def _draft_extend_for_prefill(
        self,
        batch: ScheduleBatch,
        hidden: torch.Tensor,
        next_token_ids: torch.Tensor,
        *args: object,
        **kwargs: object,
    ) -> EagleState:
        if not self.follows:
            state: EagleState = EagleDraftInput(
                bonus_tokens=next_token_ids, num_tokens_per_req=1, num_tokens_for_logprob_per_req=1
            )
            self._without_state(state, len(next_token_ids))
            return state
        with self.clock.timed(partial(self.read_took, sum(batch.extend_lens))):
            state = super()._draft_extend_for_prefill(batch, hidden, next_token_ids, *args, **kwargs)
        return state

    def _draft_extend_for_decode(self, batch: ScheduleBatch, batch_result: BatchResult, **kwargs: object) -> None:
        self.extend_launch = 0.0
        if not self.follows:
            self._without_state(batch_result.next_draft_input, len(batch_result.accept_lens))
            return
        started = time.perf_counter()
        # With topk 1, SGLang keeps no probability of the likeliest token, which we need as its estimate.
        self.topk = max(self.shape.topk, 2)
        try:
            took = partial(self.extend_took, len(batch_result.next_token_ids))
            with self.clock.timed(took) if self.is_timed else contextlib.nullcontext():
                super()._draft_extend_for_decode(batch, batch_result, **kwargs)
        finally:
            self.topk = self.shape.topk
        state: EagleState = batch_result.next_draft_input
        state.topk_p, state.topk_index = state.topk_p[:, : self.topk], state.topk_index[:, : self.topk]
        self.extend_launch = time.perf_counter() - started

    def _without_state(self, state: EagleState, rows: int) -> None:
        """Fills `state` with zeros, which nobody drafts from. Its shapes must be those that SGLang expects."""
        state.topk_p = torch.zeros((rows, self.topk), device=self.device)
        state.topk_index = torch.zeros((rows, self.topk), dtype=torch.int64, device=self.device)
        size, dtype = get_draft_recurrent_hidden_state_spec(self.draft_runner)
        if size is not None:
            state.hidden_states = torch.zeros((rows, size), dtype=dtype, device=self.device)
