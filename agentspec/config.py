"""What an engine is configured with."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

from agentspec.errors import ConfigError

Mode = Literal["tree", "chain"]

# One below the largest int32, so that every id and the number of ids fit.
MAX_TOKEN_IDS = 2**31 - 1
_MAX_LENGTH = 1 << 16


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """Settings of an `Engine`; the letters are SuffixDecoding's.

    Raises:
        ConfigError: A field has the wrong type or lies outside its range.
    """

    vocab_size: int | None = None
    """Token ids must be in [0, vocab_size); None: in [0, 2**31 - 1)."""

    max_pattern: int = 64
    """P: the longest pattern, in tokens, that is looked up, in [1, 65536]."""

    alpha: float = 4.0
    """The max spec factor: a pattern of p tokens drafts at most floor(alpha * p); finite and > 0."""

    min_token_prob: float = 0.1
    """Nodes whose estimated probability of acceptance is smaller are not drafted; in [0, 1]."""

    mode: Mode = "tree"
    """"tree", or "chain" for drafts in which no node has more than one child."""

    max_draft_tokens: int = 31
    """The most nodes drafted for a request, its root not counted, in [1, 65536]."""

    budget_bytes: int = 256 << 20
    """Upper limit of the memory of the global index, over all namespaces."""

    def __post_init__(self) -> None:
        if self.vocab_size is not None:
            _check_int("vocab_size", self.vocab_size, 1, MAX_TOKEN_IDS, "pass the target model's vocabulary size")
        _check_int("max_pattern", self.max_pattern, 1, _MAX_LENGTH, "the default 64 suits most texts")
        _check_float("alpha", self.alpha, math.ulp(0.0), math.inf, "values from 1 to 4 suit most texts")
        _check_float("min_token_prob", self.min_token_prob, 0.0, 1.0, "pass 0 to draft however unlikely")
        if self.mode not in get_args(Mode):
            raise ConfigError(f"mode must be one of {', '.join(get_args(Mode))}, got {self.mode!r}; choose one of them")
        _check_int("max_draft_tokens", self.max_draft_tokens, 1, _MAX_LENGTH, "to draft less at times, pass max_tokens")
        _check_int("budget_bytes", self.budget_bytes, 0, 2**62, "pass 0 to keep no outputs")


def _check_int(name: str, value: object, low: int, high: int, remedy: str) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise ConfigError(f"{name} must be an integer in [{low}, {high}], got {value!r}; {remedy}")


def _check_float(name: str, value: object, low: float, high: float, remedy: str) -> None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not math.isfinite(value) or not low <= value <= high:  # type: ignore[arg-type, operator]
        shown = f"in [{low:g}, {high:g}]" if high < math.inf else "finite and > 0"
        raise ConfigError(f"{name} must be a number {shown}, got {value!r}; {remedy}")
