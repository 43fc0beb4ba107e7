"""Models that compute nothing: forwards that take the time of the step times and write predetermined tokens.

A target's most likely token after position p is the recorded token of p + 1 (`AGENTSPEC_REPLAY=requests`). If a request
has no forced answer, the token is computed from its slot and position. A draft model's logits are zeros over a few
tokens; simulated_head.py simulates which of its drafts are right. Hidden states are zeros.

Decode, verify, draft-extend and the draft model's passes are captured graphs on a GPU, with one launch each. Prefills
are not captured.
"""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import Tensor

from agentspec.integrations.emulated_device.device.tensors import ForcedLogits, HostLogits, forced_logits
from agentspec.integrations.emulated_device.device.work import Work
from agentspec.integrations.sglang import arguments, compat
from agentspec.integrations.sglang.replay import hooks as replay_hooks
from agentspec.integrations.sglang.widths import graph_sizes

_DRAFT_VOCABULARY = 16
_FREE_TOKENS = 1000
_CAPTURED = [1, 2, 4, 8, *range(16, 1025, 16)]
"""Numbers of rows with captured graphs, unless agentspec bounds them. Steps with other numbers are not padded."""
_SWEEP_SECONDS = 1.0


class Forwards:
    """Replaces `ModelRunner.forward`, for targets and draft models of any architecture."""

    def __init__(self, work: Work) -> None:
        self.work = work
        self._passes: list[float] | None = None
        """Seconds of each pass of the draft graph in progress; None outside a draft graph."""
        self._next_sweep = 0.0

    def forward(self, runner: Any, forward_batch: Any) -> Any:
        """Returns what `ModelRunner.forward` returns. The output is ready after the time of the step times."""
        from sglang.srt.model_executor.model_runner import ModelRunnerOutput

        work, mode = self.work, forward_batch.forward_mode
        with work.left_out():
            is_prefill = mode.is_extend() and not mode.is_target_verify() and not mode.is_draft_extend_v2()
            kind, seconds = self._seconds(runner, forward_batch, is_prefill)
            logits = self._output(runner, forward_batch)
        runner.forward_pass_id += 1
        if self._passes is not None:
            self._passes.append(seconds)
        elif is_prefill:
            work.prefill(kind, seconds)
            work.counts.prefills += not runner.is_draft_worker
        else:
            work.graph(kind, seconds)
        if self._passes is None:
            work.wrote((logits.next_token_logits, logits.hidden_states))
        return ModelRunnerOutput(logits_output=logits, can_run_graph=not is_prefill)

    def draft(self, worker: Any, forward_batch: Any) -> Any:
        """Runs the draft model's passes as one graph."""
        self._passes = []
        try:
            with self.work.inside():
                found = worker.draft_forward(forward_batch)
            seconds = sum(self._passes)
        finally:
            self._passes = None
        self.work.graph("draft", seconds)
        self.work.wrote(found)
        return found

    def extend(self, worker: Any, forward_batch: Any, select_index: Tensor) -> Any:
        """Runs draft-extend as one graph. Logits and hidden states are those of the selected rows."""
        with self.work.left_out():
            kind, seconds = self._seconds(worker.draft_runner, forward_batch, False)
            rows = len(select_index)
            output = self._draft_output(worker.draft_runner, rows, rows, forward_batch.capture_hidden_mode)
        self.work.graph(kind, seconds)
        self.work.wrote((output.next_token_logits, output.hidden_states))
        return output

    def _seconds(self, runner: Any, forward_batch: Any, is_prefill: bool) -> tuple[str, float]:
        steps, mode = self.work.steps, forward_batch.forward_mode
        rows, tokens = int(forward_batch.batch_size), len(forward_batch.input_ids)
        context = int(forward_batch.seq_lens.sum())
        if mode.is_idle() or not rows:
            return "idle", 0.0
        if runner.is_draft_worker:
            if mode.is_decode():
                return "draft pass", steps.draft_pass(tokens, context)
            return "draft extend", steps.draft_extend(tokens, context, rows)
        if is_prefill:
            return "prefill", steps.prefill(tokens, context, rows)
        if mode.is_target_verify() and compat.verifies_unpadded(runner):
            needed = _num_nodes(forward_batch.spec_info)
            runner.padding_skipped += tokens - needed
            tokens = needed
        self.work.counts.tokens += tokens
        return "verify" if mode.is_target_verify() else "decode", steps.target(rows, tokens, context)

    def _output(self, runner: Any, forward_batch: Any) -> Any:
        from sglang.srt.layers.logits_processor import LogitsProcessorOutput

        mode = forward_batch.forward_mode
        tokens, rows = len(forward_batch.input_ids), int(forward_batch.batch_size)
        whole = mode.is_target_verify() or mode.is_draft_extend_v2() or mode.is_decode()
        num_logits = tokens if whole else rows
        hidden_mode = forward_batch.capture_hidden_mode
        states = tokens if hidden_mode is not None and hidden_mode.is_full() else num_logits
        if runner.is_draft_worker:
            return self._draft_output(runner, num_logits, states, hidden_mode)
        hidden = _hidden(runner, states, hidden_mode)
        logits = forced_logits(
            self._forced_tokens(runner, forward_batch, num_logits),
            int(runner.model_config.vocab_size),
            HostLogits if self.work.steps.blocking else ForcedLogits,
        )
        return LogitsProcessorOutput(
            next_token_logits=logits, hidden_states=None if hidden is None else self.work.on_device(hidden)
        )

    def _draft_output(self, runner: Any, num_logits: int, num_states: int, hidden_mode: Any) -> Any:
        from sglang.srt.layers.logits_processor import LogitsProcessorOutput

        hidden = _hidden(runner, num_states, hidden_mode)
        return LogitsProcessorOutput(
            next_token_logits=self.work.on_device(torch.zeros((num_logits, _DRAFT_VOCABULARY))),
            hidden_states=None if hidden is None else self.work.on_device(hidden),
        )

    def _forced_tokens(self, runner: Any, forward_batch: Any, num_logits: int) -> Tensor:
        """int64 [n], the token that the target writes after each position."""
        slots, positions = compat.logit_positions(forward_batch, num_logits)
        following = positions.long() + 1
        vocabulary = min(_FREE_TOKENS, int(runner.model_config.vocab_size))
        free: Tensor = (slots.long() * 7919 + following * 31) % vocabulary
        replay = replay_hooks._target
        if replay is None:
            return free
        now = time.monotonic()
        if now >= self._next_sweep:
            self._next_sweep = now + _SWEEP_SECONDS
            replay.sweep()
        if replay._table is None:
            return free
        forced: Tensor = replay._table.look_up(slots.long(), following)
        return torch.where(forced >= 0, forced, free)


class TargetGraphs:
    """Replaces a target's DecodeCudaGraphRunner by graphs of one width, for any number of rows."""

    def __init__(self, model_runner: Any, *, attn_backend: Any = None, **shape: Any) -> None:
        from sglang.srt.model_executor.forward_batch_info import ForwardMode

        del attn_backend
        speculates = model_runner.spec_algorithm.is_speculative() and not model_runner.is_draft_worker
        self.capture_forward_mode = ForwardMode.TARGET_VERIFY if speculates else ForwardMode.DECODE
        self.shape = shape
        self.bs = 0
        width = 1
        if speculates:
            width = shape.get("speculative_num_draft_tokens") or arguments.verify_width(model_runner.server_args)
        self.capture_bs = graph_sizes.bounded(_CAPTURED, width, model_runner)

    def can_run_graph(self, forward_batch: Any) -> bool:
        return True

    def load_batch(self, forward_batch: Any) -> None:
        """Copies nothing: on a GPU, copies into the graph's tensors are part of the launch."""
        self.bs = int(forward_batch.batch_size)


class DraftGraphs:
    """Replaces EAGLEDraftCudaGraphRunner."""

    def __init__(self, forwards: Forwards, worker: Any) -> None:
        self._forwards, self._worker = forwards, worker
        self.capture_bs = _CAPTURED

    def can_run_graph(self, forward_batch: Any) -> bool:
        return True

    def execute(self, forward_batch: Any) -> Any:
        return self._forwards.draft(self._worker, forward_batch)


class ExtendGraphs(DraftGraphs):
    """Replaces EAGLEDraftExtendCudaGraphRunner."""

    def execute(self, forward_batch: Any, select_index: Tensor | None = None) -> Any:
        assert select_index is not None
        return self._forwards.extend(self._worker, forward_batch, select_index)


def _hidden(runner: Any, rows: int, mode: Any) -> Tensor | None:
    if mode is None or not mode.need_capture():
        return None
    size = int(getattr(runner.model_config, "spec_hidden_size", runner.model_config.hidden_size))
    return torch.zeros((rows, size), dtype=runner.model_config.dtype)


def _num_nodes(tree: Any) -> int:
    """The number of nodes, over all rows, that a verification without padding computes."""
    linked = (tree.retrieve_next_token >= 0).sum() + (tree.retrieve_next_sibling >= 0).sum()
    return int(linked) + len(tree.retrieve_next_token)
