"""Decides when to pause the draft model. A paused draft model drafts nothing, does not follow texts and reads no
prompts.

Requests that were admitted or continued during a pause have no state of the draft model until they end. So a change
takes long to pay off, and the rules make few changes.
"""

from __future__ import annotations

from collections import deque
from typing import Literal, Protocol, get_args

from agentspec.errors import ConfigError

PauseRuleName = Literal["payoff", "zero-length", "never"]

_LEAST_STEPS = 256
"""Minimum number of steps between two changes. It lets enough requests start that rows have a state of the draft model
again."""
_FULL_ROWS = 8


def counted(rows: int) -> float:
    """What a step of this number of rows counts, at most 1: what a few requests write for a while says little of those
    that follow."""
    return min(rows / _FULL_ROWS, 1.0)


class PauseRule(Protocol):
    """A rule that observes each decode step and each batch of prompts, whether the draft model is paused or not.

    `is_paused` changes only in observe_step(), and depends only on the observations.
    """

    @property
    def is_paused(self) -> bool: ...

    @property
    def wants_drafts(self) -> bool:
        """Whether the passes are to run even if a plan does not expect them to pay, because drafts are to be judged."""

    def observe_step(self, saved: float, drafts: int, seconds: float, *, rows: int, ready: int) -> None:
        """Learns from a decode step.

        Args:
            saved: Seconds that the draft model's passes would save in it if it was never paused (`NextStep.saved`).
            drafts: Number of rows for which its passes drafted; 0 if they did not run.
            seconds: Seconds of extending the draft model's KV cache by the step's text, whether it happened or not
                (`StepCosts.extend`).
            rows: Number of rows of the step.
            ready: Number of those that have a state of the draft model.
        """

    def observe_prompts(self, seconds: float) -> None:
        """Learns from a batch of prompts that the draft model reads, or would read, in `seconds`."""


def pause_rule(name: str) -> PauseRule:
    """Returns a new rule of that name, not paused. Raises ConfigError if no rule has that name."""
    if name == "payoff":
        return PayoffPause()
    if name == "zero-length":
        return ZeroLengthPause()
    if name == "never":
        return NeverPause()
    raise ConfigError(f"the rule of pausing must be one of {', '.join(get_args(PauseRuleName))}, got {name!r}")


class PayoffPause:
    """Compares the time that drafting with the model saves with the time that keeping the model up to date takes.

    Both times are summed over about the latest 200 steps of 8 rows or more, or as many more of fewer rows, whether the draft model is paused or not:

        running ──── saved < 0.5 spent, or less than that after fewer steps ─> paused
        paused  ──── saved > 1.5 spent ──────────────────────────────────────> running
        paused  ──── 1024 steps, doubled after each failed trial ────────────> trial
        trial   ──── saved >= 0.5 spent at its end ─> running, else ────────> paused

    A pause that was wrong lasts as long as the requests that began in it. So the draft model is paused only if it is a
    clear loss: behind its tokens suffix drafts go on better than they would alone, so what is saved is estimated too low.
    In the first 256 steps the loss must be the clearer, the fewer steps there were: after 32 steps, less than a sixteenth of
    what is spent is saved. A pause after so few steps is shorter too. The first 16 steps of a server do not count:
    while hardly a step was timed, a single one may promise to save more than a hundred steps spend.

    During a pause, the savings are estimated from the model's drafts before the pause. A trial measures how good its
    drafts are now, since requests that start in the trial have a state of the draft model. Once most rows had one, the passes
    run in its steps until there were 128 drafts: before, they take as long and show little. It ends after 32 steps in which
    most rows had a state, or after 512 steps.
    """

    _FORGETTING = 0.995
    _HYSTERESIS = 1.5
    _LOSS = 0.5
    _FIRST_PAUSE = 1024
    _LONGEST_PAUSE = 16384
    _UNTIMED = 16
    _LEAST_TO_PAUSE = 16
    _CERTAIN = 256
    _PAUSE_A_STEP = 8
    """Steps of the first pause for each step that was seen before it."""
    _TRIAL = 512
    _LEAST_TRIAL = 32
    _TRIAL_DRAFTS = 128

    def __init__(self) -> None:
        self._saved = self._spent = self._read = 0.0
        self._paused = self._on_trial = False
        self._pause: float = self._FIRST_PAUSE
        self._untimed = self._UNTIMED
        # Number of steps, of those in which most rows had a state of the draft model, and of its drafts, since the last
        # change.
        self._steps = self._ready = 0.0
        self._drafts = 0

    @property
    def is_paused(self) -> bool:
        return self._paused

    @property
    def wants_drafts(self) -> bool:
        return self._on_trial and self._ready > 0 and self._drafts < self._TRIAL_DRAFTS

    def observe_step(self, saved: float, drafts: int, seconds: float, *, rows: int, ready: int) -> None:
        if self._untimed:
            self._untimed -= 1
            self._read = 0.0
            return
        part = counted(rows)
        self._steps += part
        self._drafts += drafts
        if not self._on_trial or 4 * ready >= 3 * rows:
            self._ready += part
            kept = self._FORGETTING**part
            self._saved = self._saved * kept + saved
            self._spent = self._spent * kept + seconds + self._read
        self._read = 0.0
        if self._on_trial:
            enough = self._ready >= self._LEAST_TRIAL and not self.wants_drafts
            if not enough and self._steps < self._TRIAL:
                return
        elif self._steps < (_LEAST_STEPS if self._paused else self._LEAST_TO_PAUSE):
            return
        if self._paused:
            recovered = self._saved > self._HYSTERESIS * self._spent
            if recovered or self._steps >= self._pause:
                self._change(paused=False, on_trial=not recovered)
        elif self._saved < self._LOSS * self._spent * self._certainty():
            if self._on_trial:
                self._pause = min(max(2 * self._pause, self._FIRST_PAUSE), self._LONGEST_PAUSE)
            else:
                self._pause = min(self._PAUSE_A_STEP * self._steps, self._FIRST_PAUSE)
            self._change(paused=True, on_trial=False)
        else:
            self._on_trial = False

    def observe_prompts(self, seconds: float) -> None:
        self._read += seconds

    def _certainty(self) -> float:
        return 1.0 if self._on_trial else min(self._steps / self._CERTAIN, 1.0)

    def _change(self, *, paused: bool, on_trial: bool) -> None:
        self._paused, self._on_trial = paused, on_trial
        self._steps = self._ready = 0.0
        self._drafts = 0
        if on_trial:
            # Only what the trial shows counts.
            self._saved = self._spent = 0.0


class ZeroLengthPause:
    """SmartSpec's rule (section 5, prefill disabling): pauses the draft model if it drafted in few of the latest 100
    steps, regardless of the time that keeping it up to date takes.

    It cannot draft during a pause. So the pause ends once its passes would have saved time in enough of the latest 100
    steps.
    """

    _WINDOW = 100

    def __init__(self, threshold: float = 0.7) -> None:
        """`threshold` is the share of steps without a draft above which the rule pauses. Raises ConfigError if
        `threshold` is not in [0, 1]."""
        if not 0 <= threshold <= 1:
            raise ConfigError(f"threshold must be a share of steps in [0, 1], got {threshold!r}; the paper's is 0.7")
        self._threshold = threshold
        self._idle: deque[bool] = deque(maxlen=self._WINDOW)
        self._paused = False
        # Number of steps since the last change.
        self._steps = 0

    @property
    def is_paused(self) -> bool:
        return self._paused

    @property
    def wants_drafts(self) -> bool:
        return False

    def observe_step(self, saved: float, drafts: int, seconds: float, *, rows: int, ready: int) -> None:
        del seconds, rows, ready
        self._idle.append(not (saved > 0.0 if self._paused else drafts > 0))
        self._steps += 1
        paused = sum(self._idle) > self._threshold * self._WINDOW
        if paused != self._paused and self._steps >= _LEAST_STEPS:
            self._paused = paused
            self._steps = 0
            # The criterion for an idle step differs between running and paused.
            self._idle.clear()

    def observe_prompts(self, seconds: float) -> None:
        """Does nothing: this rule ignores the time that reading prompts takes."""


class NeverPause:
    """The draft model always stays up to date."""

    @property
    def is_paused(self) -> bool:
        return False

    @property
    def wants_drafts(self) -> bool:
        return False

    def observe_step(self, saved: float, drafts: int, seconds: float, *, rows: int, ready: int) -> None:
        """Does nothing."""

    def observe_prompts(self, seconds: float) -> None:
        """Does nothing."""
