"""How long the parts of a step take: lines through observed seconds, kept true while the server runs.

    verify    a + c * tokens, of rows * width tokens      SmartSpec, eq. 7, of one length of context
    draft     d0 + d1 * rows
    catch up  e0 + e1 * tokens

Only ratios matter to a policy, so that what was never observed is taken as a share of a verification.
"""

from __future__ import annotations

from agentspec.running_fit import RunningFit


class StepCosts:
    """Seconds of verifying, drafting and catching up, learnt from those observed.

    Before a drafter has been timed, its drafting costs a quarter of a verification, whatever the batch, and catching
    up a tenth.
    """

    _DRAFT_SHARE = 0.25
    _CATCH_UP_SHARE = 0.1
    _UNIT = 0.02
    """Seconds of a verification before any was observed: only ratios matter then."""

    def __init__(self) -> None:
        self._verify = RunningFit([0.1])
        self._draft = RunningFit([0.1])
        self._catch_up = RunningFit([0.5])
        self._typical = self._UNIT

    def observe_verify(self, rows: int, width: int, seconds: float) -> None:
        """A verification of `rows` rows of `width` tokens each, their roots included."""
        self._verify.observe([rows * width], seconds)
        self._typical = self._verify.at(rows * width) or self._UNIT

    def observe_draft(self, rows: int, seconds: float) -> None:
        """A draft of the model drafter for `rows` rows, all its passes."""
        self._draft.observe([rows], seconds)

    def observe_catch_up(self, tokens: int, seconds: float) -> None:
        """The drafter's state was brought up to date by `tokens` tokens in all."""
        self._catch_up.observe([tokens], seconds)

    def verify(self, rows: int, width: int) -> float:
        """Seconds of verifying `rows` rows of `width` tokens each."""
        return self._verify.at(rows * width) if self._verify.num_observed else self._UNIT

    def draft(self, rows: int) -> float:
        """Seconds of drafting for `rows` rows; 0 for none."""
        fixed, per_row = self.draft_line
        return fixed + per_row * rows if rows else 0.0

    def catch_up(self, tokens: int) -> float:
        """Seconds of catching up on `tokens` tokens; 0 for none."""
        fixed, per_token = self.catch_up_line
        return fixed + per_token * tokens if tokens else 0.0

    @property
    def draft_line(self) -> tuple[float, float]:
        """Seconds of a draft, and of each of its rows besides."""
        return _line(self._draft, self._DRAFT_SHARE * self._typical)

    @property
    def catch_up_line(self) -> tuple[float, float]:
        """Seconds of catching up, and of each token besides."""
        return _line(self._catch_up, self._CATCH_UP_SHARE * self._typical)


def _line(fit: RunningFit, unobserved: float) -> tuple[float, float]:
    if not fit.num_observed:
        return unobserved, 0.0
    slope, intercept = fit.coefficients.tolist()
    return intercept, slope
