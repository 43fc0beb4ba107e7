"""Decides when a draft model's draft has become too unlikely to continue."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from agentspec.integrations.sglang import compat


@dataclass(slots=True)
class DraftStop:
    """Asked after each pass of the draft model. Inside a captured graph, no draft stops early."""

    threshold: float = 1.0
    """Stop if 1 - prod(p) of the best path exceeds this in every row (h of SpecDec++, section 3); 1 never stops."""
    least_gain: float = 0.0
    """Stop if another pass is expected to add fewer accepted tokens than this, over all rows, by the draft model's own
    estimates."""

    def is_over(self, scores: torch.Tensor, num_passes: int) -> bool:
        """Whether to stop after `num_passes` passes.

        Another pass is expected to add to a row the probability of its best path, times that of one more token. The
        latter is taken to be the geometric mean of the path's tokens.

        Args:
            scores: float[rows, topk], estimates of the paths that would be extended.
            num_passes: Number of tokens of each path.
        """
        if scores.device.type != "cpu" or compat.is_capturing():
            return False
        # Plain numbers: for a few rows, calls of tensor operations would take longer.
        best = [min(max(*row, 0.0), 1.0) for row in scores.tolist()]
        if sum(p ** (1.0 + 1.0 / num_passes) for p in best) < self.least_gain:
            return True
        return self.threshold < 1.0 and all(1.0 - p > self.threshold for p in best)
