"""The native model of one of SGLang's draft workers, kept in step with the weights that SGLang has loaded."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from agentspec.integrations.sglang.drafting.acceptance_head import FARTHEST_LOGIT, AcceptanceHead
from agentspec.integrations.sglang_cpu.drafter import _drafter
from agentspec.integrations.sglang_cpu.drafter.eligibility import has_plain_cache, is_head, is_plain_llama
from agentspec.integrations.sglang_cpu.drafter.model import native_llama

_WEIGHT_CHANGES = (
    "update_weights_from_disk", "update_weights_from_distributed", "load_weights_from_distributed",
    "update_weights_from_tensor", "update_weights_from_ipc",
)  # fmt: skip
"""Methods of SGLang's `WeightUpdater`, of any release, that write to weights."""

# Number of times that weights of any model in this process were written.
_num_changes = 0


class NativeDrafter:
    """A draft worker's model in native code."""

    def __init__(self, worker: Any) -> None:
        """`worker`: SGLang's `EagleDraftWorker`, its memory allocated."""
        self._worker = worker
        self._model: _drafter.Llama | None = None
        self._built_at = -1
        self._acceptance: tuple[AcceptanceHead | None, _drafter.AcceptanceHead | None] = (None, None)

    @property
    def model(self) -> _drafter.Llama | None:
        """None where the native code does not support SGLang's model or does not pay off."""
        if self._built_at != _num_changes:
            self._model, self._built_at = self._build(), _num_changes
        return self._model

    @property
    def is_head(self) -> bool:
        """Whether the model reads hidden states."""
        return is_head(self._worker.draft_runner.model)

    def knows_positions(self, number: int) -> bool:
        """Whether the model's rotary embedding covers this number of positions."""
        cache = self._worker.draft_runner.model.model.layers[0].self_attn.rotary_emb.cos_sin_cache
        return number <= len(cache)

    def texts(self, req_pool_indices: Tensor, lens: Sequence[int]) -> list[NDArray[np.int32]]:
        """The slots of each row's first tokens in the cache. `req_pool_indices`: integer [b]. `lens`: how many tokens
        of each row."""
        table = self._worker.draft_runner.req_to_token_pool.req_to_token.numpy()
        return [table[row, :size] for row, size in zip(req_pool_indices.tolist(), lens, strict=True)]

    def acceptance(self) -> _drafter.AcceptanceHead | None:
        """The worker's acceptance head, which SGLang's own workers do not have."""
        head = getattr(self._worker, "acceptance", None)
        if head is not self._acceptance[0]:
            self._acceptance = head, None if head is None else _native_head(head)
        return self._acceptance[1]

    def _build(self) -> _drafter.Llama | None:
        runner = self._worker.draft_runner
        if not is_plain_llama(runner.model) or not has_plain_cache(runner):
            return None
        pool = runner.token_to_kv_pool
        layers = range(pool.start_layer, pool.start_layer + len(runner.model.model.layers))
        keys, values = [pool.get_key_buffer(i) for i in layers], [pool.get_value_buffer(i) for i in layers]
        return native_llama(runner.model, keys, values)


def flat(tensor: Tensor) -> NDArray[np.float32]:
    """All numbers of a tensor in float32, without a copy where it can be."""
    array: NDArray[np.float32] = tensor.detach().to(torch.float32).reshape(-1).numpy()
    return array


def follow_weights() -> None:
    """Makes SGLang's weight updates rebuild the native models from now on. Imports SGLang; a second call changes
    nothing."""
    updater: Any = importlib.import_module(
        "sglang.srt.model_executor.model_runner_components.weight_updater"
    ).WeightUpdater
    for name in _WEIGHT_CHANGES:
        method = getattr(updater, name, None)
        if method is not None and not hasattr(method, "_agentspec_cpu"):
            setattr(updater, name, _counted(method))


def _counted(method: Any) -> Any:
    @functools.wraps(method)
    def counted(*args: Any, **kwargs: Any) -> Any:
        global _num_changes
        try:
            return method(*args, **kwargs)
        finally:
            _num_changes += 1

    counted._agentspec_cpu = True  # type: ignore[attr-defined]
    return counted


def _native_head(head: AcceptanceHead) -> _drafter.AcceptanceHead:
    linear = [layer for layer in head.layers if isinstance(layer, torch.nn.Linear)]
    assert isinstance(head.mean, Tensor) and isinstance(head.spread, Tensor)
    return _drafter.AcceptanceHead(
        mean=flat(head.mean),
        spread=flat(head.spread),
        layers=[[flat(layer.weight), flat(layer.bias)] for layer in linear],
        out=flat(head.out.weight),
        out_bias=float(head.out.bias),
        scale=head.config.scale,
        shift=head.config.shift,
        farthest=FARTHEST_LOGIT,
    )
