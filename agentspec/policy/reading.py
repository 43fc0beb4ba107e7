"""Whether a drafter should read prompts at all."""

from __future__ import annotations

from collections import deque
from typing import Literal, Protocol, get_args

from agentspec.errors import ConfigError

_FORGETTING = 0.995
"""What a step counts after the next one: some 200 are remembered."""


ReadingRule = Literal["payoff", "zero-length", "always"]


class PromptRule(Protocol):
    """Decides before each prompt whether the drafter is to read it."""

    def observe_step(self, saved: float, length: int) -> None:
        """A decode step: the seconds that drafting with the model would have saved in it, were all prompts read, and
        how many tokens a row it would have proposed; 1 will do for any number of them."""

    def observe_prompts(self, seconds: float) -> None:
        """Prompts came, whose reading takes `seconds`."""

    def pays(self) -> bool: ...


def prompt_rule(name: str) -> PromptRule:
    """The rule of that name, new.

    Raises:
        ConfigError: There is none.
    """
    if name == "payoff":
        return PromptReading()
    if name == "zero-length":
        return ZeroLengthReading()
    if name == "always":
        # The share of steps without a draft is never larger.
        return ZeroLengthReading(1.0)
    raise ConfigError(f"prompt reading must be one of {', '.join(get_args(ReadingRule))}, got {name!r}")


class PromptReading:
    """Weighs what model drafts could save against the time of reading every prompt.

    A head cannot read later what it did not read when the target did, so that this is decided for each prompt before
    anything is known of its answer (SmartSpec, section 5, turns draft prefills off by the share of steps without
    drafts). Both sides are counted whether prompts are read or not, so that the answer can change either way.
    """

    def __init__(self) -> None:
        # Until some steps are seen, prompts are read.
        self._saved = 1.0
        self._spent = 0.0

    def observe_step(self, saved: float, length: int) -> None:
        del length
        self._saved = self._saved * _FORGETTING + saved
        self._spent *= _FORGETTING

    def observe_prompts(self, seconds: float) -> None:
        self._spent += seconds

    def pays(self) -> bool:
        return self._saved >= self._spent


class ZeroLengthReading:
    """SmartSpec's own rule (section 5, prefill disabling): prompts are read unless most of the latest steps had no
    draft, whatever reading costs."""

    _WINDOW = 100

    def __init__(self, threshold: float = 0.7) -> None:
        """Raises ConfigError unless `threshold`, a share of steps, is within 0 and 1."""
        if not 0 <= threshold <= 1:
            raise ConfigError(f"threshold must be a share of steps in [0, 1], got {threshold!r}; the paper's is 0.7")
        self.threshold = threshold
        self._steps: deque[bool] = deque(maxlen=self._WINDOW)

    def observe_step(self, saved: float, length: int) -> None:
        del saved
        self._steps.append(length == 0)

    def observe_prompts(self, seconds: float) -> None:
        """What reading takes is nothing to this rule."""

    def pays(self) -> bool:
        return sum(self._steps) <= self.threshold * len(self._steps)
