"""How long the parts of a step take: lines through observed seconds, kept true while the server runs.

    verify    a + c * tokens, of all rows                 SmartSpec, eq. 7, of one length of context
    draft     d0 + passes * (d1 + d2 * rows)
    catch up  e0 + e1 * tokens
    read      f0 + f1 * tokens, of whole prompts

Only ratios matter to a policy, so that what was never observed is taken as a share of a verification.
"""

from __future__ import annotations

from agentspec.control import Profile
from agentspec.running_fit import RunningFit


class StepCosts:
    """Seconds of verifying, drafting and catching up, learnt from those observed.

    Before a drafter has been timed, its drafting costs what a profile says, if it was measured with one; else a quarter
    of a verification, whatever the batch. Catching up costs a tenth.
    """

    _DRAFT_SHARE = 0.25
    _CATCH_UP_SHARE = 0.1
    _FIRST_PASSES = 4.0
    _PASSES_RATE = 0.1
    _UNIT = 0.02
    """Seconds of a verification before any was observed: only ratios matter then."""

    def __init__(self, profile: Profile | None = None) -> None:
        target, drafter = (profile.target, profile.drafter) if profile else (None, None)
        self._verify = RunningFit([0.1], [target.gamma, target.delta] if target else None)
        self._draft = RunningFit([0.6, 0.1], [drafter.delta, drafter.gamma, 0.0] if drafter else None)
        self._passes = self._FIRST_PASSES
        self._catch_up = RunningFit([0.5])
        # Apart from catching up, whose few tokens say little of hundreds.
        self._read = RunningFit([0.9])
        self._typical = target.seconds(0, 1) if target else self._UNIT
        self.rest = 0.0
        """Seconds that every step takes besides, whatever is drafted."""

    def observe_verify(self, num_tokens: int, seconds: float) -> None:
        """A verification of so many tokens over all rows, roots and padding included."""
        self._verify.observe([num_tokens], seconds)
        self._typical = self._verify.at(num_tokens) or self._UNIT

    def observe_draft(self, rows: int, passes: int, seconds: float) -> None:
        """A draft of the model drafter for `rows` rows, in so many passes, each a token deep; the first of them only
        takes what catching up found."""
        self._draft.observe([passes, passes * rows], seconds)
        self._passes += self._PASSES_RATE * (passes - self._passes)

    def observe_catch_up(self, tokens: int, seconds: float) -> None:
        """The drafter's state was brought up to date by `tokens` tokens in all."""
        self._catch_up.observe([tokens], seconds)

    def observe_read(self, tokens: int, seconds: float) -> None:
        """The drafter read prompts of so many tokens."""
        self._read.observe([tokens], seconds)

    def verify(self, rows: int, width: int) -> float:
        """Seconds of verifying `rows` rows of `width` tokens each."""
        return self._verify.at(rows * width) if self._verify.is_known else self._UNIT

    def draft(self, rows: int) -> float:
        """Seconds of drafting for `rows` rows; 0 for none."""
        fixed, per_row = self.draft_line
        return fixed + per_row * rows if rows else 0.0

    def catch_up(self, tokens: int) -> float:
        """Seconds of catching up on `tokens` tokens; 0 for none."""
        fixed, per_token = self.catch_up_line
        return fixed + per_token * tokens if tokens else 0.0

    def read(self, tokens: int) -> float:
        """Seconds of reading prompts of so many tokens."""
        return self._read.at(tokens) if self._read.is_known else self.catch_up(tokens)

    @property
    def draft_line(self) -> tuple[float, float]:
        """Seconds of a draft of as many passes as of late, and of each of its rows besides."""
        if not self._draft.is_known:
            return self._DRAFT_SHARE * self._typical, 0.0
        per_pass, per_row, fixed = self._draft.coefficients
        return fixed + per_pass * self._passes, per_row * self._passes

    def draft_pass(self, rows: int) -> float:
        """Seconds of one more pass of a draft for `rows` rows."""
        if not self._draft.is_known:
            return self._DRAFT_SHARE * self._typical / self._FIRST_PASSES
        per_pass, per_row, _ = self._draft.coefficients
        return float(per_pass + per_row * rows)

    @property
    def catch_up_line(self) -> tuple[float, float]:
        """Seconds of catching up, and of each token besides."""
        if not self._catch_up.num_observed:
            return self._CATCH_UP_SHARE * self._typical, 0.0
        per_token, fixed = self._catch_up.coefficients
        return fixed, per_token
