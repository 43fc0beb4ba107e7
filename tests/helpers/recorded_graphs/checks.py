"""Checks that a scheduler runs on its graphs before it serves: that they are right, and that faults change the logits.

Each check verifies random trees on random keys and values, once without graphs and once with the graphs of the trees'
width, and reports the difference of the logits. Faults are injected into the objects of the running process and removed
again.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from sglang.srt.model_executor.forward_batch_info import CaptureHiddenMode, ForwardBatch, ForwardMode
from sglang.srt.speculative.ngram_info import NgramVerifyInput
from torch import Tensor

# Number of KV cache slots per row, more than a prefix and the widest row need.
_ROW_SLOTS = 128
_MOST_PREFIX = 24


class Verifier:
    """Verifies batches of random trees with the target of a scheduler that has not served anything yet."""

    def __init__(self, scheduler: Any) -> None:
        self.runner = scheduler.tp_worker.model_runner
        self.worker = scheduler.draft_worker
        self._random = torch.Generator().manual_seed(0)
        self._rows = int(self.runner.req_to_token_pool.size)
        pool = self.runner.token_to_kv_pool
        layers = range(pool.start_layer, pool.start_layer + pool.layer_num)
        self._memory = [buffer(n) for n in layers for buffer in (pool.get_key_buffer, pool.get_value_buffer)]

    @contextlib.contextmanager
    def prefixes(self) -> Iterator[None]:
        """Context in which every slot has contents and every row has slots. The previous state is restored at its
        end."""
        table = self.runner.req_to_token_pool.req_to_token
        kept = [(tensor, tensor.clone()) for tensor in (table, *self._memory)]
        with torch.inference_mode():
            for tensor in self._memory:
                tensor.copy_(torch.randn(tensor.shape, generator=self._random))
            rows = torch.arange(1, self._rows + 1)
            table[rows, :_ROW_SLOTS] = (rows[:, None] * _ROW_SLOTS + torch.arange(_ROW_SLOTS)).to(table.dtype)
        try:
            yield
        finally:
            with torch.inference_mode():
                for tensor, before in kept:
                    tensor.copy_(before)

    def batch(self, rows: int, width: int) -> ForwardBatch:
        """Makes trees of `width` nodes. Each node is a child of a random earlier node."""
        prefix = torch.randint(4, _MOST_PREFIX, (rows,), generator=self._random)
        mask, depths = self._trees(rows, width)
        table = self.runner.req_to_token_pool.req_to_token
        slots = torch.arange(1, rows + 1)
        tokens = torch.randint(0, self.runner.model_config.vocab_size, (rows * width,), generator=self._random)
        spec_info = NgramVerifyInput(custom_mask=mask, draft_token_num=width)
        spec_info.capture_hidden_mode = CaptureHiddenMode.NULL
        return ForwardBatch(
            forward_mode=ForwardMode.TARGET_VERIFY,
            batch_size=rows,
            input_ids=tokens,
            req_pool_indices=slots,
            seq_lens=prefix,
            seq_lens_cpu=prefix.clone(),
            seq_lens_sum=int(prefix.sum()),
            orig_seq_lens=prefix.clone(),
            out_cache_loc=table[slots[:, None], prefix[:, None] + torch.arange(width)].flatten().long(),
            positions=(prefix[:, None] + depths).flatten(),
            spec_algorithm=self.runner.spec_algorithm,
            spec_info=spec_info,
            capture_hidden_mode=CaptureHiddenMode.NULL,
            return_logprob=False,
        )

    def logits(self, batch: ForwardBatch, *, eager: bool = False) -> Tensor:
        """Logits of all nodes, float32[rows * width, vocabulary], computed with the runner's graphs or, if `eager`,
        without graphs."""
        graphs = None if eager else self.runner.decode_cuda_graph_runner
        with torch.inference_mode(), patch.object(self.runner, "decode_cuda_graph_runner", graphs):
            output = self.runner.forward(batch)
        assert output.can_run_graph != eager, "no graph was replayed"
        return output.logits_output.next_token_logits.clone()

    def difference(self, rows: int, width: int) -> float:
        """Largest difference between logits with and without graphs. NaN counts as infinite."""
        batch = self.batch(rows, width)
        expected = self.logits(batch, eager=True)
        # The graph must not find keys and values that the other forward wrote.
        self._fill(batch.out_cache_loc, float("nan"))
        try:
            got = self.logits(batch)
        finally:
            self._fill(batch.out_cache_loc, 0.0)
        return float((got - expected).abs().nan_to_num(nan=float("inf")).max())

    def _fill(self, slots: Tensor, value: float) -> None:
        with torch.inference_mode():
            for tensor in self._memory:
                tensor[slots] = value

    def _trees(self, rows: int, width: int) -> tuple[Tensor, Tensor]:
        mask = torch.zeros(rows, width, width, dtype=torch.bool)
        for row in mask:
            for node in range(width):
                if node:
                    row[node] = row[int(torch.randint(0, node, (1,), generator=self._random))]
                row[node, node] = True
        return mask.flatten(), mask.sum(-1) - 1


def run(scheduler: Any, path: Path) -> None:
    """Runs all checks and writes the result of each: a difference, or the error that it raised."""
    found: dict[str, Any] = {}
    verifier = Verifier(scheduler)
    with verifier.prefixes():
        for name, check in CHECKS.items():
            try:
                found[name] = check(verifier)
            except Exception as error:  # noqa: BLE001
                found[name] = f"{type(error).__name__}: {error}"
    path.write_text(json.dumps(found))


def _every_width(verifier: Verifier) -> dict[str, float]:
    """Differences by number of rows and width. Batches of two rows are padded to three, and narrow steps follow wide
    ones."""
    widths = verifier.worker.suffix.control.widths
    found = {}
    for rows in (2, 3, 1):
        for width in reversed(widths):
            verifier.worker._tiers.use(width)
            found[f"{rows} rows of {width}"] = verifier.difference(rows, width)
    verifier.worker._tiers.use(widths[-1])
    return found


def _replaced_input(verifier: Verifier) -> float:
    slot = verifier.runner.decode_cuda_graph_runner.buffer_registry.get_slot("positions")
    with patch.object(slot, "buffer", slot.buffer.clone()):
        return verifier.difference(3, verifier.worker.max_width)


def _replaced_mask(verifier: Verifier) -> float:
    import msgspec

    backend = verifier.runner.attn_backend
    other = msgspec.structs.replace(backend.verify_mask, buffer=torch.ones_like(backend.verify_mask.buffer))
    with patch.object(backend, "_verify_mask", other):
        return verifier.difference(3, verifier.worker.max_width)


def _replaced_weight(verifier: Verifier) -> float:
    """Fault: a weight is loaded into new memory instead of the old memory."""
    norm = verifier.runner.model.model.norm
    old = norm.weight
    norm.weight = torch.nn.Parameter(old.detach() * 2, requires_grad=False)
    try:
        return verifier.difference(3, verifier.worker.max_width)
    finally:
        norm.weight = old


def _wrong_width(verifier: Verifier) -> float:
    """Fault: rows have a different width than the graphs in use."""
    verifier.worker._tiers.use(4)
    try:
        return verifier.difference(3, 8)
    finally:
        verifier.worker._tiers.use(verifier.worker.max_width)


def _forced_width(verifier: Verifier) -> float:
    """Fault: the same, in a step that does not ask whether the graphs can run."""
    verifier.worker._tiers.use(4)
    graphs = verifier.runner.decode_cuda_graph_runner
    try:
        with patch.object(graphs, "can_run_graph", lambda batch: True):
            return verifier.difference(3, 8)
    finally:
        verifier.worker._tiers.use(verifier.worker.max_width)


def _missing_tier(verifier: Verifier) -> float:
    tiers = verifier.worker._tiers
    with patch.object(tiers, "_tiers", {width: places for width, places in tiers._tiers.items() if width != 4}):
        tiers.use(4)
    return verifier.difference(3, 4)


def _shared_backend(verifier: Verifier) -> float:
    """Fault: graphs of one width are captured with the attention backend of another width."""
    from agentspec.integrations.sglang import compat

    runner, widest = verifier.runner, verifier.runner.attn_backend
    kept = dict(vars(widest))
    try:
        with patch.object(runner, "_get_attention_backend", lambda **settings: widest):
            _, graphs = compat.capture_verify_graphs(runner, 4)
        with patch.object(runner, "decode_cuda_graph_runner", graphs):
            return verifier.difference(3, 4)
    finally:
        vars(widest).update(kept)


def _reused_backend(verifier: Verifier) -> float:
    """Fault: an attention backend is set up for graphs again after their capture."""
    backend, graphs = verifier.runner.attn_backend, verifier.runner.decode_cuda_graph_runner
    kept = dict(vars(backend))
    try:
        backend.init_cuda_graph_state(graphs.max_bs, graphs.max_num_token)
        return verifier.difference(3, verifier.worker.max_width)
    finally:
        vars(backend).update(kept)


def _host_read(verifier: Verifier) -> float:
    """Fault: a model reads a tensor on the host during its capture."""
    from agentspec.integrations.sglang import compat

    runner = verifier.runner
    hook = runner.model.model.norm.register_forward_hook(lambda module, inputs, output: inputs[0].sum().item() and None)
    try:
        compat.capture_verify_graphs(runner, 4)
    finally:
        hook.remove()
    return 0.0


CHECKS = {
    "every width": _every_width,
    "an input's buffer is replaced": _replaced_input,
    "the mask's buffer is replaced": _replaced_mask,
    "a weight is replaced": _replaced_weight,
    "rows of another width": _wrong_width,
    "rows of another width, unasked": _forced_width,
    "a tier is missing": _missing_tier,
    "an attention backend of another width": _shared_backend,
    "an attention backend is set up again": _reused_backend,
    "a capture reads a tensor": _host_read,
    "every width again": _every_width,
}
