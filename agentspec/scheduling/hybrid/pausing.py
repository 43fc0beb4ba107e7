"""When the draft model is paused as a whole: it drafts nothing, follows no text and reads no prompts.

Requests that were admitted or went on while it was paused have no state of the draft model until they end. So a change
pays late, and is not made often.
"""

from __future__ import annotations

from collections import deque
from typing import Literal, Protocol, get_args

from agentspec.errors import ConfigError

PauseRuleName = Literal["payoff", "zero-length", "never"]

_LEAST_STEPS = 256
"""Steps between two changes, at least: so many requests begin in them that rows have a state of the draft model again."""


class PauseRule(Protocol):
    """Told of each decode step and of each batch of prompts, whether the draft model is paused or not.

    `is_paused` changes in observe_step() alone, and by nothing but what was observed.
    """

    @property
    def is_paused(self) -> bool: ...

    def observe_step(self, saved: float, ran: bool, seconds: float) -> None:
        """A decode step.

        Args:
            saved: Seconds that the draft model's passes would save in it if it was never paused (`Choice.saved`).
            ran: Whether its passes ran.
            seconds: That it takes, or would take, to follow the step's text (`StepCosts.extend`).
        """

    def observe_prompts(self, seconds: float) -> None:
        """Prompts came, which the draft model reads, or would read, in `seconds`."""


def pause_rule(name: str) -> PauseRule:
    """A new rule of that name, not paused.

    Raises:
        ConfigError: There is none.
    """
    if name == "payoff":
        return PayoffPause()
    if name == "zero-length":
        return ZeroLengthPause()
    if name == "never":
        return NeverPause()
    raise ConfigError(f"the rule of pausing must be one of {', '.join(get_args(PauseRuleName))}, got {name!r}")


class PayoffPause:
    """Weighs what drafting with the model saves against what it takes to keep the model up to date.

    Both sides are counted over the latest steps, some 200 of them, whether the draft model is paused or not:

        running ──── saved < spent ───────────────────────────────────────> paused
        paused  ──── saved > 1.5 spent ───────────────────────────────────> running
        paused  ──── 1024 steps, twice as many behind each vain trial ────> trial of 512 steps
        trial   ──── saved >= spent at its end ─> running, else ──────────> paused

    What would be saved is estimated while the model is paused from what its drafts brought before. A trial lets it show
    what they bring now: requests that begin in it have a state of the draft model.
    """

    _FORGETTING = 0.995
    _HYSTERESIS = 1.5
    _FIRST_PAUSE = 1024
    _LONGEST_PAUSE = 16384
    _TRIAL = 512

    def __init__(self) -> None:
        self._saved = self._spent = 0.0
        self._paused = self._on_trial = False
        self._pause = self._FIRST_PAUSE
        # Since the last change.
        self._steps = 0

    @property
    def is_paused(self) -> bool:
        return self._paused

    def observe_step(self, saved: float, ran: bool, seconds: float) -> None:
        del ran
        self._saved = self._saved * self._FORGETTING + saved
        self._spent = self._spent * self._FORGETTING + seconds
        self._steps += 1
        if self._steps < (self._TRIAL if self._on_trial else _LEAST_STEPS):
            return
        if self._paused:
            recovered = self._saved > self._HYSTERESIS * self._spent
            if recovered or self._steps >= self._pause:
                self._change(paused=False, on_trial=not recovered)
        elif self._saved < self._spent:
            self._pause = min(2 * self._pause, self._LONGEST_PAUSE) if self._on_trial else self._FIRST_PAUSE
            self._change(paused=True, on_trial=False)
        else:
            self._on_trial = False

    def observe_prompts(self, seconds: float) -> None:
        self._spent += seconds

    def _change(self, *, paused: bool, on_trial: bool) -> None:
        self._paused, self._on_trial, self._steps = paused, on_trial, 0


class ZeroLengthPause:
    """SmartSpec's rule (section 5, prefill disabling): paused where most of the latest 100 steps had no draft of the
    model, whatever keeping it up to date takes.

    While it is paused no step has one. The pause ends as soon as the passes would have saved time in enough of the
    latest 100 steps.
    """

    _WINDOW = 100

    def __init__(self, threshold: float = 0.7) -> None:
        """Raises ConfigError unless `threshold`, a share of steps, is within 0 and 1."""
        if not 0 <= threshold <= 1:
            raise ConfigError(f"threshold must be a share of steps in [0, 1], got {threshold!r}; the paper's is 0.7")
        self._threshold = threshold
        self._idle: deque[bool] = deque(maxlen=self._WINDOW)
        self._paused = False
        # Since the last change.
        self._steps = 0

    @property
    def is_paused(self) -> bool:
        return self._paused

    def observe_step(self, saved: float, ran: bool, seconds: float) -> None:
        del seconds
        self._idle.append(not (saved > 0.0 if self._paused else ran))
        self._steps += 1
        paused = sum(self._idle) > self._threshold * self._WINDOW
        if paused != self._paused and self._steps >= _LEAST_STEPS:
            self._paused = paused
            self._steps = 0
            # From now on steps are judged otherwise.
            self._idle.clear()

    def observe_prompts(self, seconds: float) -> None:
        """What reading takes is nothing to this rule."""


class NeverPause:
    """The draft model always stays up to date."""

    @property
    def is_paused(self) -> bool:
        return False

    def observe_step(self, saved: float, ran: bool, seconds: float) -> None:
        """Nothing is learnt from it."""

    def observe_prompts(self, seconds: float) -> None:
        """Nothing is learnt from it."""
