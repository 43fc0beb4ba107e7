"""The model drafter of a server: who it knows, how far, and what it drafts for some rows of a batch.

EAGLE heads and small models keep keys and values of their own at the slots of the target's, and a state at the end of
the text. SGLang brings both up to date after every step, drafted from or not. Here that waits until a row is to be
drafted for, and then one forward reads all that is missing:

    positions      0 ........ length ............ seq_len
    its keys       there      pending             -
    its input      -          the text and, for a head, the target's hidden states, which are kept meanwhile

So steps that suffix drafts serve run no drafter at all, and what is drafted is the same as if they had. A small model
of its own reads prompts that late too. A head needs the target's hidden states of the whole prompt: it reads prompts
when the target does, or never.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sglang.srt.model_executor.forward_batch_info import CaptureHiddenMode, ForwardBatch, ForwardMode
from sglang.srt.speculative.eagle_info import EagleDraftExtendInput, EagleDraftInput

from agentspec.draft_tree import DraftBatch
from agentspec.integrations.sglang import compat
from agentspec.integrations.sglang.draft_forward import TreeDrafting, topology_only
from agentspec.integrations.sglang.drafter_states import DrafterStates
from agentspec.integrations.sglang.model_trees import model_drafts
from agentspec.integrations.sglang.native_drafting import DraftForwards
from agentspec.integrations.sglang.read_slots import ReadSlots


class ModelDrafter:
    """Drafts for the rows that are asked for; owned by a hybrid worker."""

    def __init__(self, worker: TreeDrafting, *, reads_hidden: bool) -> None:
        """Wraps SGLang's draft worker.

        Args:
            worker: Loaded, with its memory still to be allocated.
            reads_hidden: Whether the drafter's input has the target's hidden states: all but small models of their own.
        """
        self._worker: Any = worker
        self._reads_hidden = reads_hidden
        self.states = DrafterStates(reads_hidden=reads_hidden)
        self._slots = ReadSlots()
        self.forwards = DraftForwards(worker)

    def prompts_read(self, batch: Any, ends: Sequence[int], draft_input: Any, *, read: bool) -> None:
        """The target read the prompts of a batch, or the next chunk of them.

        Args:
            batch: SGLang's `ScheduleBatch`, in extend mode.
            ends: For each row the tokens in the target's KV cache, those of this chunk counted.
            draft_input: Where `read`, SGLang's state of the drafter behind them.
            read: Whether the drafter read them too.
        """
        self._slots.written(batch, batch.out_cache_loc, read=read)
        table = batch.req_to_token_pool.req_to_token
        for row, (request, end, pool) in enumerate(zip(batch.reqs, ends, batch.req_pool_indices.unbind(), strict=True)):
            state = self.states.open(request, end, self._slots.of(table[pool, :end]))
            # A head has no state to go on from behind a prompt that it did not read.
            state.is_fit = read or not self._reads_hidden
            if read:
                state.topk_p, state.topk_index = draft_input.topk_p[row], draft_input.topk_index[row]
                state.state = None if draft_input.hidden_states is None else draft_input.hidden_states[row]

    def read_prompts(
        self, batch: Any, hidden: torch.Tensor | None, following: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor] | None:
        """Logits and states at the ends of the prompts of a batch, whose keys and values are then there; None where it is
        SGLang that has to read them.

        Args:
            batch: SGLang's `ScheduleBatch`, in extend mode, as the target read it.
            hidden: [n, H'], the target's hidden states, row after row; None for a small model.
            following: int[b], the tokens that the target wrote behind the prompts.
        """
        plain = self.forwards()
        if plain is None or not batch.reqs:
            return None
        starts, sizes = list(batch.prefix_lens), list(batch.extend_lens)
        ends = np.array([start + size for start, size in zip(starts, sizes, strict=True)], np.int64)
        slots = self._text_slots(batch, range(len(sizes)), ends)
        # At each position the drafter sees the token that follows it.
        texts = batch.input_ids.split(sizes)
        tails = compat.prompt_tails(batch, following).tolist()
        tokens = [[*text[1:].tolist(), tail] for text, tail in zip(texts, tails, strict=True)]
        return plain.read(slots, batch.out_cache_loc.to(torch.int64), starts, tokens, hidden)

    def verified(self, batch: Any) -> None:
        """The target wrote the step's tokens to the KV cache of a batch."""
        self._slots.written(batch, batch.out_cache_loc, read=False)

    def draft(
        self,
        batch: Any,
        rows: Sequence[int],
        seq_lens: NDArray[np.int64],
        rooms: Sequence[int],
        roots: NDArray[np.int32],
        min_estimate: float,
    ) -> DraftBatch:
        """Trees for `rows`, which must have been caught up; every other row of the batch is its root.

        Args:
            batch: SGLang's `ScheduleBatch`, in decode mode. Only read.
            rows: Which of its rows, ascending.
            seq_lens: int64[b], tokens in the target's KV cache.
            rooms: For each of `rows` the most tokens that may be drafted.
            roots: int32[b], the last token of each row of the batch.
            min_estimate: Nodes whose estimate is smaller are not drafted.
        """
        states = [self.states[batch.reqs[row].rid] for row in rows]
        topk_p, topk_index = (
            torch.stack([getattr(state, name) for state in states]) for name in ("topk_p", "topk_index")
        )
        hidden = _stacked([state.state for state in states])
        plain = self.forwards()
        if plain is not None:
            slots = self._text_slots(batch, rows, seq_lens)
            return model_drafts(
                plain.draft(slots, topk_p, topk_index, hidden),
                rows, rooms, roots, self._worker.topk, min_estimate,
            )  # fmt: skip
        sub = sub_batch(batch, rows, seq_lens)
        sub.spec_info = EagleDraftInput(
            topk_p=topk_p,
            topk_index=topk_index,
            hidden_states=hidden,
            bonus_tokens=torch.from_numpy(roots[np.asarray(rows)]).to(batch.device),
        )
        with topology_only():
            trees = self._worker.draft(sub)
        return model_drafts(trees, rows, rooms, roots, self._worker.topk, min_estimate)

    def catch_up(
        self, batch: Any, rows: Sequence[int], seq_lens: NDArray[np.int64], texts: Sequence[Sequence[int]]
    ) -> None:
        """Lets the drafter read what it lacks of `rows`, which must be fit.

        Args:
            batch: SGLang's `ScheduleBatch`. Only read.
            rows: Which of its rows.
            seq_lens: int64[b], tokens in the target's KV cache.
            texts: For each of `rows` the last tokens of its text, as many as positions are missing or more. The very
                last is the root.
        """
        behind = [
            (row, text, state)
            for row, text in zip(rows, texts, strict=True)
            if (state := self.states[batch.reqs[row].rid]).length < int(seq_lens[row])
        ]
        if not behind:
            return
        lacking = _Lacking(
            [row for row, _, _ in behind],
            starts=[state.length for _, _, state in behind],
            ends=[int(seq_lens[row]) for row, _, _ in behind],
            # At each position the drafter sees the token that follows it.
            tokens=[list(text[state.length - int(seq_lens[row]) :]) for row, text, state in behind],
            hidden=torch.cat([part for _, _, state in behind for part in state.hidden]) if self._reads_hidden else None,
        )
        slots = self._text_slots(batch, lacking.rows, seq_lens)
        missing = torch.cat([row[start:] for row, start in zip(slots, lacking.starts, strict=True)]).to(torch.int64)
        plain = self.forwards()
        found = plain and plain.read(slots, missing, lacking.starts, lacking.tokens, lacking.hidden)
        logits, hidden = found or self._read(batch, lacking, seq_lens, missing)
        topk_p, topk_index = torch.softmax(logits, dim=-1).topk(self._worker.topk, dim=-1)
        self._slots.written(batch, missing, read=True)
        for place, (_, _, state) in enumerate(behind):
            state.length, state.hidden, state.num_hidden = lacking.ends[place], [], 0
            state.topk_p, state.topk_index = topk_p[place], topk_index[place]
            state.state = None if hidden is None else hidden[place]

    def _text_slots(self, batch: Any, rows: Sequence[int], seq_lens: NDArray[np.int64]) -> list[torch.Tensor]:
        """Of each of `rows` int[length], where its text is in the KV cache."""
        table, pools = batch.req_to_token_pool.req_to_token, batch.req_pool_indices
        return [table[pools[row], : int(seq_lens[row])] for row in rows]

    def _read(
        self, batch: Any, lacking: _Lacking, seq_lens: NDArray[np.int64], missing: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Logits and states at the rows' ends, by SGLang's forward; `missing`, int64[n], the slots of what is read."""
        sub = sub_batch(batch, lacking.rows, seq_lens)
        sub.forward_mode = ForwardMode.EXTEND
        sub.prefix_lens = lacking.starts
        sub.extend_lens = [len(tokens) for tokens in lacking.tokens]
        sub.extend_num_tokens = sum(sub.extend_lens)
        sub.extend_logprob_start_lens = sub.extend_lens
        flat = [token for tokens in lacking.tokens for token in tokens]
        sub.input_ids = torch.tensor(flat, dtype=torch.int64, device=batch.device)
        sub.out_cache_loc = missing
        sub.spec_info = EagleDraftExtendInput(
            hidden_states=lacking.hidden, num_tokens_per_req=1, num_tokens_for_logprob_per_req=1
        )
        wanted = self._reads_hidden or self._worker.acceptance is not None
        forward_batch = ForwardBatch.init_new(
            sub,
            self._worker.draft_runner,
            capture_hidden_mode=CaptureHiddenMode.LAST if wanted else CaptureHiddenMode.NULL,
            return_hidden_states_before_norm=False,
        )
        forward_batch.return_logprob = False
        output = self._worker.draft_runner.forward(forward_batch).logits_output
        return output.next_token_logits, output.hidden_states


@dataclass(frozen=True, slots=True)
class _Lacking:
    """What the drafter is to read, row by row."""

    rows: list[int]
    starts: list[int]
    ends: list[int]
    tokens: list[list[int]]
    hidden: torch.Tensor | None
    """[n, H'], of a head, row after row."""


def sub_batch(batch: Any, rows: Sequence[int], seq_lens: NDArray[np.int64]) -> Any:
    """A copy of SGLang's `ScheduleBatch` with some of its rows, for a forward of the drafter.

    What the drafter has no use for (grammars, log-probabilities, the state of recurrent layers) is left out.
    """
    sub = copy.copy(batch)
    sub.reqs = [batch.reqs[row] for row in rows]
    index = torch.as_tensor(rows, dtype=torch.int64, device=batch.seq_lens.device)
    for name in ("req_pool_indices", "seq_lens", "orig_seq_lens"):
        value = getattr(batch, name, None)
        if value is not None:
            setattr(sub, name, value[index])
    lens = torch.from_numpy(seq_lens[np.asarray(rows)])
    sub.seq_lens_cpu = lens if batch.seq_lens_cpu is not None else None
    sub.seq_lens_sum = int(lens.sum())
    if batch.multimodal_inputs is not None:
        sub.multimodal_inputs = [batch.multimodal_inputs[row] for row in rows]
    sub.decoding_reqs = sub.reqs
    sub.chunked_req_next_prompt_token = None
    # Making a forward batch writes the grammars there.
    sub.sampling_info = copy.copy(batch.sampling_info)
    sub.has_grammar = False
    sub.return_logprob = False
    for name in compat.BATCH_FIELDS_OF_THE_TARGET:
        if hasattr(sub, name):
            setattr(sub, name, None)
    return sub


def _stacked(parts: Sequence[torch.Tensor | None]) -> torch.Tensor | None:
    present = [part for part in parts if part is not None]
    return torch.stack(present) if len(present) == len(parts) else None
