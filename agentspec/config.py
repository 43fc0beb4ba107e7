"""The settings of an engine."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

from agentspec.errors import ConfigError
from agentspec.estimates import Estimates

Mode = Literal["tree", "chain"]
Rule = Literal["calibrated", "suffixdecoding"]

# Larger than any tokenizer's vocabulary. A sealed segment stores two bits for each id up to its largest one, so this
# also bounds the memory that a single token can cost.
MAX_TOKEN_IDS = 2**24
_MAX_LENGTH = 1 << 16
# Sealed segments sort contexts of twice this length, so a pattern can be continued by as many tokens as it has.
_MAX_PATTERN = 64
_SERVED_MIN_TOKEN_PROB = 0.02
_SERVED_SHARE = 0.16


def served_min_token_prob(max_draft_tokens: int) -> float:
    """The least estimate of a token that servers draft by default: the more tokens a draft has room for, the less likely
    ones it takes.

    A server's controller cuts each draft to what pays on its device, so drafting less likely tokens costs little there.
    Without a controller, every drafted token is verified.
    """
    return min(_SERVED_MIN_TOKEN_PROB, _SERVED_SHARE / max(max_draft_tokens, 1))


def parse_min_token_prob(text: str, max_draft_tokens: int) -> float:
    """Reads min_token_prob as it is written in settings: a number in [0, 1], or "auto" for served_min_token_prob().
    Raises ConfigError if the text is something else."""
    if text == "auto":
        return served_min_token_prob(max_draft_tokens)
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value <= 1:
        raise ConfigError(
            f"min_token_prob must be auto or a number >= 0 and <= 1, got {text!r}; auto follows the width of the drafts"
        )
    return value


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """Settings of an `Engine`. The symbols are those of the SuffixDecoding paper. Raises ConfigError if a field has the
    wrong type or lies outside its range."""

    vocab_size: int | None = None
    """Token ids must be in [0, vocab_size), or in [0, 2**24) if this is None."""

    max_pattern: int = 64
    """P: length of the longest pattern that is looked up, in tokens, in [1, 64]."""

    alpha: float = 4.0
    """The max spec factor of the rule "suffixdecoding": a match of p tokens drafts at most floor(alpha * p) tokens;
    finite and > 0."""

    min_token_prob: float = 0.045
    """Nodes whose estimated probability of acceptance is below this are not drafted; in [0, 1]."""

    mode: Mode = "tree"
    """"tree", or "chain" for drafts in which no node has more than one child."""

    own_text: bool = True
    """Whether a request drafts from its own prompt and output. False leaves other sources alone, to measure them."""

    max_draft_tokens: int = 31
    """Maximum number of nodes drafted per request, its root not counted, in [1, 65536]."""

    rule: Rule = "calibrated"
    """"calibrated" drafts one tree from all sources, best node first, by estimates that `agentspec tune` fits (SSSD,
    algorithm 1). "suffixdecoding" drafts one tree from one pattern in one source, by relative counts (SuffixDecoding,
    algorithm 1)."""

    budget_bytes: int = 256 << 20
    """Upper limit of the global index's memory in bytes, over all namespaces. While data is sealed, merged or evicted,
    it temporarily takes up to twice its own size in addition. With `background`, outputs that come meanwhile may exceed the
    limit until that work is done, by half for whoever calls Engine.wait_indexed() between them."""

    conversation_bytes: int = 128 << 20
    """Upper limit, in bytes, of the memory of the indexes that finished requests leave for their conversations' next
    turns."""

    prompt_tail: int = 16
    """Number of tokens from the end of a prompt that the global index stores before the output, so that the first
    tokens of an answer can match; in [0, 1024]."""

    max_growing_tokens: int = 8192
    """Number of unsealed tokens at which a namespace's outputs are sealed, in [64, 2**24]."""

    max_siblings: int = 8
    """Number of open requests of the same namespace and of the same group, or with the same prompt, whose outputs a request
    drafts from while they grow, in [0, 64]. The rule "suffixdecoding" drafts from none."""

    num_threads: int = 1
    """Number of threads that draft a batch, the calling thread included, in [1, 64]."""

    background: bool = False
    """Whether the engine builds, seals, merges and frees on threads of its own. If so, no call waits for that work, and
    a text can be drafted from once it is indexed. If not, each call finishes its own work before it returns."""

    tokenizer: str = ""
    """A name of the tokenizer, preferably a hash of it. Segments of other tokenizers are refused."""

    learning_rate: float = 0.06
    """How fast estimates follow what verification accepts, in [0, 1]. 0 turns learning off."""

    estimates: Estimates | None = None
    """Initial estimates, completed by Estimates.with_corpora(). None uses those that come with agentspec."""

    @staticmethod
    def served(max_draft_tokens: int) -> EngineConfig:
        """Configuration of the engine in a server with default settings, except for `max_draft_tokens`."""
        return EngineConfig(max_draft_tokens=max_draft_tokens, min_token_prob=served_min_token_prob(max_draft_tokens))

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
        _check_int("max_siblings", self.max_siblings, 0, 64, "pass 0 to draft from finished outputs only")
        _check_int("num_threads", self.num_threads, 1, 64, "pass 1 to draft on the calling thread alone")
        for name in ("own_text", "background"):
            if not isinstance(value := getattr(self, name), bool):
                raise ConfigError(f"{name} must be True or False, got {value!r}; pass one of them")
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
