"""When a model drafter's draft has become too unlikely to go on with."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from agentspec.integrations.sglang import compat


@dataclass(slots=True)
class DraftStop:
    """Asked after each pass of the drafter. Where a graph is captured no draft stops early."""

    threshold: float = 1.0
    """Stops where 1 - prod(p) of every row's best path exceeds this: h of SpecDec++, section 3. 1: never."""
    least_gain: float = 0.0
    """Stops where a further pass promises less than that, accepted tokens over the rows, by the drafter's own
    estimates."""

    def is_over(self, scores: torch.Tensor, num_passes: int) -> bool:
        """Whether to stop after so many passes.

        A further pass is expected to bring a row the probability of its best path times that of one more token, which
        is taken for as likely as the path's mean one.

        Args:
            scores: [rows, topk], estimates of the paths that would be gone on with.
            num_passes: Tokens of each path.
        """
        if scores.device.type != "cpu" or compat.is_capturing():
            return False
        # Numbers: a row or two are not worth the calls of tensors.
        best = [min(max(*row, 0.0), 1.0) for row in scores.tolist()]
        if sum(p ** (1.0 + 1.0 / num_passes) for p in best) < self.least_gain:
            return True
        return self.threshold < 1.0 and all(1.0 - p > self.threshold for p in best)
