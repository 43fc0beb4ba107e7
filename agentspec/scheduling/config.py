"""Settings of a controller."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

from agentspec.errors import ConfigError

ControllerName = Literal["goodput", "smartspec", "batch-table", "roofline", "fixed", "sweep"]
Objective = Literal["ahead", "run", "step"]
LengthModel = Literal["chain", "tree", "confidence"]
Table = tuple[tuple[int, int], ...]
"""Pairs of a batch size and a length."""


def is_table(table: Table) -> bool:
    """Whether batch sizes ascend from 1 or more, and no length is negative."""
    sizes = [size for size, _ in table]
    return sizes == sorted(set(sizes)) and all(size >= 1 and length >= 0 for size, length in table)


def parse_table(text: str) -> Table:
    """Reads lengths by batch size as they are written in settings, such as 1:7,8:3,32:0; "" is (). Raises ConfigError
    if the text is something else."""
    pairs = [part.split(":") for part in text.split(",") if part.strip()]
    try:
        return tuple((int(size), int(length)) for size, length in pairs)
    except ValueError:
        raise ConfigError(
            f"table must be batch sizes with lengths, got {text!r}; write for example 1:7,8:3,32:0"
        ) from None


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlConfig:
    """Settings of a controller. Raises ConfigError if a field has the wrong type or lies outside its range."""

    controller: ControllerName = "goodput"
    """"goodput": the width with the most expected tokens per second, by the estimates of the current drafts.
    "smartspec": by a moving average of acceptance (SmartSpec, algorithms 1 and 2).
    "batch-table": a length for each batch size, looked up (Su et al., section 4).
    "roofline": the number of tokens that are free by the device's peak figures (SSSD, section 3.2).
    "fixed": always `length`.
    "sweep": each width in turn, for profiles."""

    length: int = 15
    """For "fixed": number of drafted tokens per row, >= 0; 0 is plain decoding."""

    objective: Objective = "ahead"
    """For "goodput": "run" maximises the tokens per second of all steps together. It spends more where drafts are good
    and less where they are not. "ahead" does the same, and also counts that the rest of a draft that was cut while it
    came true is drafted again. "step" maximises the tokens per second of each step alone."""

    margin: float = 0.03
    """For "goodput": the width changes at once if another width promises this share more, >= 0."""

    patience: int = 4
    """For "goodput": the width also changes after this number of consecutive steps that prefer another one, >= 1."""

    probe_share: float = 0.001
    """For "goodput" and "smartspec": share of time spent on trying other widths to learn from them, in [0, 0.1]; 0:
    none."""

    length_model: LengthModel = "chain"
    """For "smartspec": how to predict the number of tokens that a draft yields. "chain": by one acceptance rate
    (equation 8). "tree": by one rate for each depth (equation 10). "confidence": by the drafter's own probabilities,
    where a draft is cut at the first token with at most `min_confidence` (algorithm 3)."""

    min_confidence: float = 0.3
    """For the length model "confidence", in [0, 1]."""

    window: int = 100
    """For "smartspec": number of steps in the moving average, >= 1."""

    acceptance: float = 0.7
    """Probability that a token is accepted if all tokens before it are, in [0, 1]. "smartspec" uses it before the first
    verify step, "batch-table" if neither a table nor accepted tokens were measured."""

    table: Table = ()
    """For "batch-table": pairs of a batch size and its best length. (): the profile's table, or else one computed from
    the profile's times and accepted tokens or, if it has none, `acceptance`."""

    def __post_init__(self) -> None:
        choices = {"controller": ControllerName, "objective": Objective, "length_model": LengthModel}
        for name, known in ((name, get_args(choice)) for name, choice in choices.items()):
            if getattr(self, name) not in known:
                raise ConfigError(
                    f"{name} must be one of {', '.join(known)}, got {getattr(self, name)!r}; choose one of them"
                )
        for name, least in (("length", 0), ("patience", 1), ("window", 1)):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise ConfigError(
                    f"{name} must be an integer >= {least}, got {value!r}; the default suits most servers"
                )
        for name, most in (("margin", math.inf), ("probe_share", 0.1), ("min_confidence", 1.0), ("acceptance", 1.0)):
            value = getattr(self, name)
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            if not is_number or not 0 <= value <= most or value == math.inf:
                shown = "finite and >= 0" if most == math.inf else f"in [0, {most:g}]"
                raise ConfigError(f"{name} must be a number {shown}, got {value!r}; the default suits most servers")
        if not is_table(self.table):
            raise ConfigError(f"table must have ascending batch sizes >= 1 and lengths >= 0, got {self.table!r}")
