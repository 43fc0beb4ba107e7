"""Makes a verification draw from the tokens from which plain decoding draws.

A request's top_k, top_p and min_p each keep the likeliest tokens. Plain decoding draws from those that all three keep, each
judged by the model's own probabilities. SGLang's verification applies top_p to what top_k left, which keeps fewer
tokens, and ignores min_p. It does so by two kernels, which are replaced while a batch is verified that this concerns.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from agentspec.integrations.sglang import compat

if TYPE_CHECKING:
    from torch import Tensor

_SAMPLE = "sglang.srt.speculative.eagle_utils.eagle_sample"
Kernel = Callable[["Tensor", "Tensor"], "Tensor"]


def keep_what_plain_decoding_keeps() -> None:
    """Hooks SGLang's verification in this process. A second call changes nothing."""
    compat.hook_around(_SAMPLE, _sample)


def _sample(original: Callable[..., Any], verify_input: Any, batch: Any, *args: Any, **kwargs: Any) -> Any:
    sampling = batch.sampling_info
    joins = sampling.need_top_k_sampling and sampling.need_top_p_sampling
    if batch.forward_mode.is_idle() or sampling.is_all_greedy or not (sampling.need_min_p_sampling or joins):
        return original(verify_input, batch, *args, **kwargs)
    with _kernels(sampling, verify_input.draft_token_num):
        return original(verify_input, batch, *args, **kwargs)


@contextlib.contextmanager
def _kernels(sampling: Any, width: int) -> Iterator[None]:
    """Replaces the kernels of the process, in whose only thread of the scheduler the batch is verified."""
    owner, *names = compat.renorm_kernels()
    top_k, top_p = (getattr(owner, name) for name in names)
    asked = sampling.need_top_p_sampling
    min_ps = sampling.min_ps.repeat_interleave(width) if sampling.need_min_p_sampling else None
    kept = KeptTokens(top_k, top_p, min_ps)
    for name, kernel in zip(names, (kept.top_k, kept.top_p), strict=True):
        setattr(owner, name, kernel)
    # The second kernel applies min_p as well.
    sampling.need_top_p_sampling = True
    try:
        yield
    finally:
        for name, kernel in zip(names, (top_k, top_p), strict=True):
            setattr(owner, name, kernel)
        sampling.need_top_p_sampling = asked


class KeptTokens:
    """The kernels for one batch of n nodes; top_k() comes first, if it comes at all."""

    def __init__(self, top_k: Kernel, top_p: Kernel, min_ps: Tensor | None) -> None:
        """Takes SGLang's kernels, and float[n] or None if no row has a min_p."""
        self._top_k, self._top_p, self._min_ps = top_k, top_p, min_ps
        # What the likeliest token of each node gained when top_k took other tokens away: the inverse of their mass.
        self._gains: Tensor | None = None

    def top_k(self, probs: Tensor, top_ks: Tensor) -> Tensor:
        likeliest = probs.amax(dim=-1)
        kept = self._top_k(probs, top_ks)
        self._gains = kept.amax(dim=-1) / likeliest
        return kept

    def top_p(self, probs: Tensor, top_ps: Tensor) -> Tensor:
        # A share of the model's whole mass is a greater share of the mass that top_k kept.
        shares = top_ps if self._gains is None else (top_ps * self._gains).clamp(max=1.0)
        kept = self._top_p(probs, shares)
        if self._min_ps is None:
            return kept
        kept = kept.where(kept >= kept.amax(dim=-1, keepdim=True) * self._min_ps[:, None], 0.0)
        return kept / kept.sum(dim=-1, keepdim=True)
