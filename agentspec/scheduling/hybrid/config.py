"""Settings of a hybrid policy."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

from agentspec.config import served_min_token_prob
from agentspec.errors import ConfigError

HybridRule = Literal["expected", "score", "match-length"]
Tau = float | Literal["auto"]
UnionUse = Literal["auto", "always", "never"]

_ALLOWED_TAU = 'tau must be "auto", a number >= 0 or "inf"'
_TAU_REMEDY = "pass auto to let it be found, 0 to draft from suffixes only, inf from the model only"


def parse_tau(text: str) -> Tau:
    """Reads tau as it is written in settings: auto, a number >= 0, or inf. Raises ConfigError if the text is something
    else."""
    if text.strip().lower() == "auto":
        return "auto"
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not value >= 0:
        raise ConfigError(f"{_ALLOWED_TAU}, got {text!r}; {_TAU_REMEDY}")
    return value


@dataclass(frozen=True, slots=True, kw_only=True)
class HybridConfig:
    """Settings of a `HybridPolicy`. Raises ConfigError if a field has the wrong type or lies outside its range."""

    rule: HybridRule = "expected"
    """How suffix drafts are weighed against the draft model.
    "expected": by the expected goodput of the whole step, with the time of the draft model's passes.
    "score": row by row. A row uses its suffix draft if SCORE > tau (SuffixDecoding, hybrid decoding).
    "match-length": row by row. A row uses its suffix draft if the match has `min_match` tokens (TensorRT-LLM)."""

    tau: Tau = "auto"
    """A number makes SuffixDecoding's choice under every rule: a row verifies its suffix draft alone if that promises
    more accepted tokens than tau, else the draft model's tree. With "auto" the rule finds tau. 0 allows suffix drafts only, under every rule; inf allows the draft
    model's drafts only. The rule "match-length" accepts no other values than these three.

    The unit is drafted tokens. The paper's SCORE sums D(N) over a tree that includes its root (algorithm 1), and its
    accept lengths count the bonus token. So a tau of the paper is greater by 1: its 5 to 7 are 4 to 6 here."""

    min_match: int = 4
    """For the rule "match-length": the shortest match that counts as strong, in tokens, >= 1."""

    trees: bool = True
    """Whether drafts may be trees. If not, they are chains, which are never merged, and the draft model's tree is cut
    to its likeliest chain."""

    union: UnionUse = "auto"
    """For the rule "expected": whether a row that has two drafts verifies the union of both. "auto": if
    tau is "auto". "never": the draft that promises more is verified or, if tau is a number, the draft model's. Chains
    are never united."""

    max_nodes: int = 15
    """Maximum number of nodes per row, its root not counted, >= 1."""

    min_token_prob: float = served_min_token_prob(15)
    """Minimum estimated probability of acceptance. Tokens of the draft model and nodes of merged trees below it are
    left out; in [0, 1]."""

    prior_accepted: float = 3.0
    """Expected accept length of the draft model's drafts before it has been tried; finite and >= 0."""

    def __post_init__(self) -> None:
        if self.rule not in get_args(HybridRule):
            known = ", ".join(get_args(HybridRule))
            raise ConfigError(f"rule must be one of {known}, got {self.rule!r}; choose one of them")
        if self.tau != "auto" and not (_is_number(self.tau) and self.tau >= 0):
            raise ConfigError(f"{_ALLOWED_TAU}, got {self.tau!r}; {_TAU_REMEDY}")
        if self.rule == "match-length" and self.tau not in ("auto", 0, math.inf):
            raise ConfigError(
                f'tau must be "auto", 0 or inf under the rule "match-length", got {self.tau!r}; set min_match instead'
            )
        for name, remedy in (
            ("min_match", "the default 4 suits most texts"),
            ("max_nodes", "pass the tokens verified a row less one, the root"),
        ):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise ConfigError(f"{name} must be an integer >= 1, got {value!r}; {remedy}")
        if self.union not in get_args(UnionUse):
            known = ", ".join(get_args(UnionUse))
            raise ConfigError(f"union must be one of {known}, got {self.union!r}; choose one of them")
        if not isinstance(self.trees, bool):
            raise ConfigError(f"trees must be True or False, got {self.trees!r}; pass one of them")
        for name, high in (("min_token_prob", 1.0), ("prior_accepted", math.inf)):
            value = getattr(self, name)
            if not _is_number(value) or not math.isfinite(value) or not 0 <= value <= high:
                shown = "in [0, 1]" if high == 1.0 else "finite and >= 0"
                raise ConfigError(f"{name} must be a number {shown}, got {value!r}; the default suits most texts")


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
