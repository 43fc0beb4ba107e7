"""Checks the graphs of a scheduler before it serves: random trees are verified on random keys and values, once without
graphs and once with the graphs of the trees' width."""

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
    """Writes the differences of random trees of every width."""
    verifier = Verifier(scheduler)
    with verifier.prefixes():
        path.write_text(json.dumps(_every_width(verifier)))


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
