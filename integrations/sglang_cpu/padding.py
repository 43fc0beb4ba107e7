"""Rows of differing numbers of tokens, n in all, among b rows of one width: where they lie in [b * width]."""

from __future__ import annotations

import torch


def own_places(sizes: torch.Tensor, width: int) -> torch.Tensor:
    """int64 [n], the places of the rows' own tokens: the first `sizes` (integer [b]) of each row's `width`."""
    return (torch.arange(width) < sizes[:, None]).flatten().nonzero().flatten()


def spread(values: torch.Tensor, places: torch.Tensor, total: int) -> torch.Tensor:
    """[n, ...] at their places among `total`, zeros elsewhere."""
    return values.new_zeros((total, *values.shape[1:])).index_copy_(0, places, values)
