"""Decides when a draft model's draft has become too unlikely to continue: for each row, and for the whole batch."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from agentspec.errors import ConfigError
from agentspec.integrations.sglang import compat
from agentspec.integrations.sglang.drafting.acceptance_head import AcceptanceHead
from agentspec.scheduling.baselines.candidate_length import parse_threshold, theorem_threshold
from agentspec.scheduling.costs.profile import Profile


def stop_threshold(text: str, head: AcceptanceHead | None, profile: Profile | None) -> float | None:
    """h of SpecDec++ as the setting names it; None if costs decide instead. Raises ConfigError if h should be the
    head's or follow from times, and these are missing.

    Args:
        text: See parse_threshold().
        head: The acceptance head beside the draft model, if there is one.
        profile: Times that were measured, or that an earlier server kept. "theorem" takes those of one row, in the middle
            of the measured contexts.
    """
    given = parse_threshold(text)
    if given == "auto":
        return None
    if given == "head":
        if head is None:
            raise ConfigError(
                "stop_threshold head needs an acceptance head beside the draft model, got none; set a number, or name the "
                "head's folder by acceptance_head"
            )
        return head.config.threshold
    if given != "theorem":
        return given
    if profile is None or profile.drafter is None:
        raise ConfigError(
            "stop_threshold theorem needs the times of both models, got "
            f"{'no profile' if profile is None else 'a profile of the target alone'}; set profile to a file of `agentspec "
            "profile --draft-model`, or start again once a server has kept its step times"
        )
    context = sum(profile.measured.context_lengths) / 2
    return theorem_threshold(profile.target.seconds(context, 1), profile.drafter.drafting(context, 1, 1))


@dataclass(slots=True)
class DraftStop:
    """Asked after each pass of the draft model. Inside a captured graph, all passes run."""

    threshold: float | None = None
    """h: a row's draft ends where the probability that one of its tokens is rejected exceeds this; 1: never; None: the
    price of a pass decides."""
    least_gain: float = 0.0
    """Without a threshold: stop if another pass is expected to add fewer accepted tokens than this, over all rows, by the
    draft model's own estimates."""

    def row_stops(self) -> RowStops | None:
        """For one draft: what finds the ends of its rows; None if all rows end together."""
        return RowStops(self.threshold) if self.threshold is not None and self.threshold < 1.0 else None

    def is_over(self, scores: torch.Tensor, num_passes: int, rows: RowStops | None = None) -> bool:
        """Whether to stop after `num_passes` passes.

        Another pass is expected to add to a row the probability of its best path, times that of one more token. The
        latter is taken to be the geometric mean of the path's tokens.

        Args:
            scores: float[rows, topk], estimates of the paths that would be extended.
            num_passes: Number of tokens of each path.
            rows: What is known of the rows' ends.
        """
        if scores.device.type != "cpu" or compat.is_capturing():
            return False
        if self.threshold is not None:
            return rows is not None and rows.all_stopped()
        # Plain numbers: for a few rows, calls of tensor operations would take longer.
        best = [min(max(*row, 0.0), 1.0) for row in scores.tolist()]
        promised: float = sum(p ** (1.0 + 1.0 / num_passes) for p in best)
        return promised < self.least_gain


class RowStops:
    """Where the drafts of b rows end: each with its first token at which 1 - p_1 ... p_k > h on the best path, p_i the
    probability that the token is accepted after those before it (SpecDec++, algorithm 2).

    Tensor operations only, so that a captured graph can hold them. A graph runs all passes. What a row drafts after its
    end is then not verified.
    """

    ENDED = -1.0
    """The estimate of a candidate after the end of its row. It is below any least estimate."""

    def __init__(self, threshold: float) -> None:
        self._threshold = threshold
        self._paths = torch.empty(0)
        self._going = torch.empty(0)

    def after_first(self, scores: torch.Tensor, probabilities: torch.Tensor) -> torch.Tensor:
        """Takes the candidates behind the roots, which are always drafted. `scores`: float[b, 1, topk], their
        estimates. `probabilities`: float[b, topk], their probabilities as the head was trained on. Returns the
        estimates."""
        self._paths = probabilities
        self._going = self._likely(probabilities)
        return scores

    def after_pass(self, scores: torch.Tensor, probabilities: torch.Tensor, kept: torch.Tensor) -> torch.Tensor:
        """Takes the candidates of a further pass. Returns the estimates, ENDED in rows that had stopped before.

        Args:
            scores: float[b, topk, topk], their estimates, by the path that they extend.
            probabilities: float[b * topk, topk], their probabilities after the tokens before them.
            kept: int64[b, topk], which of a row's topk * topk candidates the next pass extends.
        """
        topk = kept.shape[1]
        masked = torch.where(self._going[:, None, None], scores, self.ENDED)
        paths = (self._paths[:, :, None] * probabilities.view(-1, topk, topk)).flatten(1)
        self._paths = paths.gather(1, kept)
        self._going = self._going & self._likely(self._paths)
        return masked

    def all_stopped(self) -> bool:
        """Waits for the device."""
        return not bool(self._going.any())

    def _likely(self, paths: torch.Tensor) -> torch.Tensor:
        return 1.0 - paths.max(dim=1).values <= self._threshold
