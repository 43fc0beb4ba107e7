"""Predicts how long the draft model's parts of a step take, with lines fitted to observed seconds while the server runs.

    draft     d0 + passes * (d1 + d2 * rows)
    extend    e0 + e1 * (tokens of all rows)
    read      f0 + f1 * (tokens of whole prompts)

A plan needs only ratios, so a part that was never observed is assumed to take a share of a verification.
"""

from __future__ import annotations

from agentspec.scheduling import Profile, StepCost
from agentspec.scheduling.costs.running_fit import RunningFit


class ModelCosts:
    """Learns from observations how long the draft model's passes, extending its KV cache and reading prompts take.

    Until the draft model has been timed, its passes are assumed to cost what the profile says, if that was measured
    with a draft model, and otherwise a quarter of a verify step for any batch. Extending is assumed to cost a twentieth
    of a verify step.
    """

    _DRAFT_SHARE = 0.25
    _EXTEND_SHARE = 0.05
    _FIRST_PASSES = 4.0
    _PASSES_RATE = 0.1
    _UNIT = 0.02
    """Assumed seconds of a verify step before the first observation; only ratios matter then."""

    def __init__(self, profile: Profile | None = None) -> None:
        target, drafter = (profile.target, profile.drafter) if profile else (None, None)
        self._draft = RunningFit([0.6, 0.1], [drafter.delta, drafter.gamma, 0.0] if drafter else None)
        self._passes = self._FIRST_PASSES
        self._extend = RunningFit([0.5])
        # Fitted apart from extending, whose few tokens say little about a prompt's hundreds of tokens.
        self._read = RunningFit([0.9])
        self._typical = target.seconds(0, 1) if target else self._UNIT
        self._seen: set[str] = set()

    @property
    def drafter(self) -> StepCost | None:
        """The cost of a pass of the draft model, as in Profile.drafter; None before one was timed or given."""
        if not self._draft.is_known:
            return None
        per_pass, per_row, _ = self._draft.coefficients
        return StepCost(0.0, float(per_row), float(per_pass))

    def observe_verify(self, seconds: float) -> None:
        """Learns what a verification takes, in relation to which unknown parts are assumed."""
        self._typical = seconds or self._UNIT

    def observe_draft(self, rows: int, passes: int, seconds: float) -> None:
        """Learns from a draft for `rows` rows in `passes` passes. Each pass is one token deep; the first one only takes
        the candidates that extending found."""
        if self._is_first("draft"):
            return
        self._draft.observe([passes, passes * rows], seconds)
        self._passes += self._PASSES_RATE * (passes - self._passes)

    def observe_extend(self, num_tokens: int, seconds: float) -> None:
        """Learns from extending the draft model's KV cache by the `num_tokens` tokens of a verification, over all rows,
        padding included."""
        if not self._is_first("extend"):
            self._extend.observe([num_tokens], seconds)

    def observe_read(self, num_tokens: int, seconds: float) -> None:
        """Learns from a prefill of the draft model over prompts of `num_tokens` tokens in total."""
        if not self._is_first("read"):
            self._read.observe([num_tokens], seconds)

    def _is_first(self, part: str) -> bool:
        """Whether this is the first time of a part of the step. Its kernels may have been compiled in it."""
        seen = part in self._seen
        self._seen.add(part)
        return not seen

    def draft(self, rows: int) -> float:
        """Seconds of a draft for `rows` rows, with the recent mean number of passes; 0 for no rows."""
        if not rows:
            return 0.0
        if not self._draft.is_known:
            return self._DRAFT_SHARE * self._typical
        return self._draft.at(self._passes, self._passes * rows)

    def draft_pass(self, rows: int) -> float:
        """Seconds of one additional draft model pass for `rows` rows."""
        if not self._draft.is_known:
            return self._DRAFT_SHARE * self._typical / self._FIRST_PASSES
        per_pass, per_row, _ = self._draft.coefficients
        return float(per_pass + per_row * rows)

    def extend(self, num_tokens: int) -> float:
        """Seconds of extending the draft model's KV cache by `num_tokens` verified tokens; 0 for none."""
        if not num_tokens:
            return 0.0
        return self._extend.at(num_tokens) if self._extend.is_known else self._EXTEND_SHARE * self._typical

    def read(self, num_tokens: int) -> float:
        """Seconds of a draft model prefill over prompts of `num_tokens` tokens in total."""
        return self._read.at(num_tokens) if self._read.is_known else self.extend(num_tokens)
