"""Drafting and catching up on a CPU with the drafter in native code, and in plain torch where that is not made for it."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from agentspec.integrations.sglang.acceptance_head import FARTHEST_LOGIT, AcceptanceHead
from agentspec.integrations.sglang.plain_drafting import MAX_READ, PlainDrafting
from agentspec.integrations.sglang_cpu.drafter import _drafter
from agentspec.integrations.sglang_cpu.drafter.eligibility import is_head
from agentspec.integrations.sglang_cpu.drafter.model import native_llama


class NativeDrafting:
    """The forwards of one drafter, with the methods of PlainDrafting."""

    def __init__(self, worker: Any, model: _drafter.Llama) -> None:
        """`model`: The worker's drafter."""
        self._worker = worker
        self._native = model
        self._is_head = is_head(worker.draft_runner.model)
        hot = worker.hot_token_id
        self._token_of = None if hot is None else hot.to(torch.int64).contiguous().numpy()
        self._acceptance = None if worker.acceptance is None else _native_head(worker.acceptance)

    def read(
        self,
        slots: Sequence[Tensor],
        missing: Tensor,
        starts: Sequence[int],
        tokens: Sequence[Sequence[int]],
        hidden: Tensor | None,
    ) -> tuple[Tensor, Tensor] | None:
        """As of PlainDrafting."""
        if sum(map(len, tokens)) > MAX_READ:
            return None
        logits, state = self._native.read(
            _arrays_of(slots),
            [np.array(row, np.int64) for row in tokens],
            _flat(hidden) if hidden is not None and self._is_head else None,
        )
        return torch.from_numpy(logits), torch.from_numpy(state)

    def draft(
        self, slots: Sequence[Tensor], topk_p: Tensor, topk_index: Tensor, hidden: Tensor | None
    ) -> SimpleNamespace:
        """As of PlainDrafting."""
        worker = self._worker
        parents, chosen, tokens, estimates, worker.num_passes = self._native.draft(
            _arrays_of(slots),
            _flat(topk_p),
            topk_index.reshape(-1).numpy(),
            self._states(hidden),
            None if hidden is None else self._acceptance,
            self._token_of,
            topk=topk_p.shape[1],
            num_steps=worker.speculative_num_steps,
            max_nodes=worker.max_nodes,
            stop_threshold=worker.stop.threshold,
            least_gain=worker.stop.least_gain,
        )
        return SimpleNamespace(parents=parents, chosen=chosen, tokens=tokens, estimates=estimates)

    def _states(self, hidden: Tensor | None) -> NDArray[np.float32] | None:
        """What the drafter's head or its acceptance head reads."""
        return _flat(hidden) if hidden is not None and (self._is_head or self._acceptance is not None) else None


def _native_head(head: AcceptanceHead) -> _drafter.AcceptanceHead:
    linear = [layer for layer in head.layers if isinstance(layer, torch.nn.Linear)]
    assert isinstance(head.mean, Tensor) and isinstance(head.spread, Tensor)
    return _drafter.AcceptanceHead(
        mean=_flat(head.mean),
        spread=_flat(head.spread),
        layers=[[_flat(layer.weight), _flat(layer.bias)] for layer in linear],
        out=_flat(head.out.weight),
        out_bias=float(head.out.bias),
        scale=head.config.scale,
        shift=head.config.shift,
        farthest=FARTHEST_LOGIT,
    )


class DraftForwards:
    """The quickest way to compute a draft worker's drafter: found at the first use, when memory is allocated."""

    def __init__(self, worker: Any) -> None:
        self._worker = worker
        self._found: PlainDrafting | NativeDrafting | None = None
        self._is_probed = False

    def __call__(self) -> PlainDrafting | NativeDrafting | None:
        """None where the drafter has to run as SGLang runs it."""
        if not self._is_probed:
            self._found, self._is_probed = _drafting_of(self._worker), True
        return self._found

    def weights_changed(self) -> None:
        """What copies were made of is, or may be, no longer there."""
        self._found, self._is_probed = None, False


def _drafting_of(worker: Any) -> PlainDrafting | NativeDrafting | None:
    plain = PlainDrafting.of(worker)
    if plain is None:
        return None
    model = native_llama(worker.draft_runner.model, plain.keys, plain.values)
    return plain if model is None else NativeDrafting(worker, model)


def _arrays_of(slots: Sequence[Tensor]) -> list[NDArray[np.int32]]:
    return [row.to(torch.int32).contiguous().numpy() for row in slots]


def _flat(tensor: Tensor) -> NDArray[np.float32]:
    array: NDArray[np.float32] = tensor.detach().to(torch.float32).reshape(-1).numpy()
    return array
