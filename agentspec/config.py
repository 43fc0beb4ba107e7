"""What an engine is configured with."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

from agentspec.errors import ConfigError
from agentspec.estimates import Estimates

Mode = Literal["tree", "chain"]
Rule = Literal["calibrated", "suffixdecoding"]

# Far above any tokenizer. A sealed segment has two bits for each id up to the largest it has, so the bound also
# holds the memory that a single token can cost.
MAX_TOKEN_IDS = 2**24
_MAX_LENGTH = 1 << 16
# Sealed segments sort contexts of twice that, so that a pattern can be followed as far again.
_MAX_PATTERN = 64
# Where a controller cuts drafts to what pays on the device at hand, less likely tokens are drafted too: that costs next to
# nothing. Without one, every drafted token is verified.
SERVED_MIN_TOKEN_PROB = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """Settings of an `Engine`; the letters are SuffixDecoding's.

    Raises:
        ConfigError: A field has the wrong type or lies outside its range.
    """

    vocab_size: int | None = None
    """Token ids must be in [0, vocab_size); None: in [0, 2**24)."""

    max_pattern: int = 64
    """P: the longest pattern, in tokens, that is looked up, in [1, 64]."""

    alpha: float = 4.0
    """Of the rule "suffixdecoding", the max spec factor: a pattern of p tokens drafts at most floor(alpha * p); finite
    and > 0."""

    min_token_prob: float = 0.045
    """Nodes whose estimated probability of acceptance is smaller are not drafted; in [0, 1]."""

    mode: Mode = "tree"
    """"tree", or "chain" for drafts in which no node has more than one child."""

    max_draft_tokens: int = 31
    """The most nodes drafted for a request, its root not counted, in [1, 65536]."""

    rule: Rule = "calibrated"
    """"calibrated": one tree from all sources, best first, by estimates that `agentspec tune` fits (SSSD, algorithm 1).
    "suffixdecoding": SuffixDecoding's algorithm 1, one tree from one pattern in one source, by shares of counts."""

    budget_bytes: int = 256 << 20
    """Upper limit of the memory of the global index, over all namespaces. What is being sealed, merged or evicted
    takes up to twice its own size besides, for the time."""

    conversation_bytes: int = 128 << 20
    """Upper limit of the memory of finished requests' indexes, kept for the next turns of their conversations."""

    prompt_tail: int = 16
    """So many tokens of a prompt's end are kept before its output in the global index, so that the first tokens of
    an answer can match; in [0, 1024]."""

    max_growing_tokens: int = 8192
    """A namespace's outputs are sealed when so many tokens have come together, in [64, 2**24]."""

    num_threads: int = 1
    """Threads that share out a batch, the caller's included, in [1, 64]."""

    background: bool = False
    """Build, seal, merge and free on threads of the engine's own: no call waits for them, and a text is drafted from
    as soon as it is indexed. Otherwise each call does its own work to the end."""

    tokenizer: str = ""
    """Whatever names the tokenizer, best a hash of it: segments of other tokenizers are refused."""

    learning_rate: float = 0.03
    """How fast estimates follow what verification accepts, in [0, 1]; 0: not at all."""

    estimates: Estimates | None = None
    """What estimates start from, as Estimates.with_corpora() completes them; None: those that come with agentspec."""

    @staticmethod
    def served(max_draft_tokens: int) -> EngineConfig:
        """The engine of a server whose settings are the defaults, with so many nodes drafted at most."""
        return EngineConfig(max_draft_tokens=max_draft_tokens, min_token_prob=SERVED_MIN_TOKEN_PROB)

    def __post_init__(self) -> None:
        if self.vocab_size is not None:
            _check_int("vocab_size", self.vocab_size, 1, MAX_TOKEN_IDS, "pass the target model's vocabulary size")
        _check_int("max_pattern", self.max_pattern, 1, _MAX_PATTERN, "the default 64 suits most texts")
        _check_float("alpha", self.alpha, math.ulp(0.0), math.inf, "values from 1 to 4 suit most texts")
        _check_float("min_token_prob", self.min_token_prob, 0.0, 1.0, "pass 0 to draft however unlikely")
        if self.mode not in get_args(Mode):
            raise ConfigError(f"mode must be one of {', '.join(get_args(Mode))}, got {self.mode!r}; choose one of them")
        _check_int("max_draft_tokens", self.max_draft_tokens, 1, _MAX_LENGTH, "to draft less at times, pass max_tokens")
        if self.rule not in get_args(Rule):
            raise ConfigError(f"rule must be one of {', '.join(get_args(Rule))}, got {self.rule!r}; choose one of them")
        _check_int("conversation_bytes", self.conversation_bytes, 0, 2**62, "pass 0 to keep none")
        _check_int("prompt_tail", self.prompt_tail, 0, 1024, "the default 16 suits most texts")
        _check_int("max_growing_tokens", self.max_growing_tokens, 64, 2**24, "the default 8192 suits most texts")
        _check_int("num_threads", self.num_threads, 1, 64, "pass 1 to draft on the calling thread alone")
        if not isinstance(self.background, bool):
            raise ConfigError(f"background must be True or False, got {self.background!r}; pass one of them")
        if not isinstance(self.tokenizer, str):
            raise ConfigError(f"tokenizer must be a string, got {self.tokenizer!r}; pass a hash of it in hexadecimal")
        _check_float("learning_rate", self.learning_rate, 0.0, 1.0, "pass 0 to keep estimates as they are")
        _check_int("budget_bytes", self.budget_bytes, 0, 2**62, "pass 0 to keep no outputs")
        if self.estimates is not None and not isinstance(self.estimates, Estimates):
            raise ConfigError(
                f"estimates must be Estimates or None, got {self.estimates!r}; pass what Estimates.load() returns"
            )


def _check_int(name: str, value: object, low: int, high: int, remedy: str) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise ConfigError(f"{name} must be an integer in [{low}, {high}], got {value!r}; {remedy}")


def _check_float(name: str, value: object, low: float, high: float, remedy: str) -> None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not math.isfinite(value) or not low <= value <= high:  # type: ignore[arg-type, operator]
        shown = f"in [{low:g}, {high:g}]" if high < math.inf else "finite and > 0"
        raise ConfigError(f"{name} must be a number {shown}, got {value!r}; {remedy}")
