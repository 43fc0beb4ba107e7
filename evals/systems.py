"""The servers that evals compare, and the draft models of the small model that some of them load."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from agentspec.evals.text_to_sql import MODEL_FOLDER

STANDALONE_FOLDER = MODEL_FOLDER.with_name("tiny-sql-draft")
EAGLE3_FOLDER = MODEL_FOLDER.with_name("tiny-sql-eagle3")

# Trees of a draft model: two branches a step over four steps; the best seven nodes and the root are verified.
_TREE = ("--speculative-num-steps", "4", "--speculative-eagle-topk", "2", "--speculative-num-draft-tokens", "8")
STANDALONE = ("--speculative-draft-model-path", str(STANDALONE_FOLDER))
HEAD_STEPS = (3, 5, 7)
"""Numbers of a draft model's passes that are tried."""
_EAGLE3 = ("--speculative-draft-model-path", str(EAGLE3_FOLDER))


def chains(steps: int) -> tuple[str, ...]:
    """Arguments of a draft model that drafts chains of this number of tokens."""
    return ("--speculative-num-steps", str(steps), "--speculative-eagle-topk", "1")


def width(tokens: int) -> tuple[str, ...]:
    """Arguments for verifying at most this number of tokens of a row in a step."""
    return ("--speculative-num-draft-tokens", str(tokens))


@dataclass(frozen=True)
class System:
    """A server: its label, its --speculative-algorithm ("none" for plain decoding), further arguments and environment
    variables."""

    label: str
    algorithm: str
    arguments: tuple[str, ...] = ()
    variables: Mapping[str, str] = field(default_factory=dict)
    needs_profile: bool = False
    """Whether its controller decides by a profile."""

    @property
    def is_ours(self) -> bool:
        return self.algorithm == "AGENTSPEC"

    @property
    def has_drafter(self) -> bool:
        return "--speculative-draft-model-path" in self.arguments

    @property
    def words(self) -> tuple[str, ...]:
        """What distinguishes it from other servers, for records of a run: variables as NAME=VALUE, then arguments."""
        variables = (f"{name}={value}" for name, value in self.variables.items())
        return (*variables, "--speculative-algorithm", self.algorithm, *self.arguments)


SYSTEMS = {
    "none": System("SGLang", "none"),
    "ngram": System("SGLang + NGRAM", "NGRAM"),
    "standalone": System("SGLang + STANDALONE", "STANDALONE", (*STANDALONE, *_TREE)),
    "eagle3": System("SGLang + EAGLE-3", "EAGLE3", (*_EAGLE3, *_TREE)),
    "agentspec": System("SGLang + agentspec", "AGENTSPEC"),
}


def fixed_length(length: int) -> System:
    """Suffix drafts of `length` tokens in each step, as far as there are drafts, whatever they cost."""
    return System(f"agentspec, {length} tokens", "AGENTSPEC", ("--agentspec-baseline", f"fixed:length={length}"))


WIDER_NGRAM = {
    f"ngram-{tokens}": System(f"SGLang + NGRAM, {tokens} tokens", "NGRAM", width(tokens)) for tokens in (32, 64)
}


def chains_alone(algorithm: str, label: str, head: tuple[str, ...] = ()) -> dict[str, System]:
    """SGLang's own chains of a draft model by number of passes; comparisons are with the best of them."""
    return {
        f"{algorithm.lower()}-{steps}": System(
            f"SGLang + {label}, {steps} steps", algorithm, (*head, *chains(steps), *width(steps + 1))
        )
        for steps in HEAD_STEPS
    }


# The shipped head's own probabilities predict acceptance as well as its acceptance head does.
OWN_ESTIMATES = {"AGENTSPEC_ACCEPTANCE_HEAD": "none"}


def hybrid_with(head: tuple[str, ...], label: str, **settings: str) -> System:
    """agentspec beside EAGLE-3, whose arguments are `head`, with settings by name."""
    variables = {f"AGENTSPEC_{name.upper()}": value for name, value in settings.items()}
    return System(label, "AGENTSPEC", head, {**OWN_ESTIMATES, **variables})


# Suffix drafts and those of a draft model in one batch.
HYBRIDS = {
    "hybrid": hybrid_with(_EAGLE3, "agentspec + EAGLE-3"),
    "hybrid-standalone": System("agentspec + STANDALONE", "AGENTSPEC", STANDALONE),
}


def _controlled(label: str, baseline: str, *, needs_profile: bool = False) -> System:
    """Suffix drafts, whose lengths a controller chooses."""
    return System(label, "AGENTSPEC", (), {"AGENTSPEC_BASELINE": baseline}, needs_profile)


def with_profile(system: System, profile: Path) -> System:
    """The system, whose controller reads a profile."""
    return replace(system, variables={**system.variables, "AGENTSPEC_PROFILE": str(profile)})


# The rules that the papers' controllers decide by.
RIVAL_CONTROLLERS = {
    "smartspec": _controlled("agentspec, SmartSpec's chains", "smartspec"),
    "smartspec-tree": _controlled("agentspec, SmartSpec's trees", "smartspec:length_model=tree"),
    "smartspec-confidence": _controlled("agentspec, SmartSpec by confidence", "smartspec:length_model=confidence"),
    "batch-table": _controlled("agentspec, lengths by batch size", "batch-table", needs_profile=True),
    "roofline": _controlled("agentspec, roofline", "roofline", needs_profile=True),
    **{f"fixed-{length}": fixed_length(length) for length in (2, 4, 7, 11, 15)},
    "fixed": System("agentspec, all that is drafted", "AGENTSPEC", ("--agentspec-baseline", "fixed")),
}


def _model_alone(drafter: tuple[str, ...], label: str, steps: int, **variables: str) -> System:
    """Chains of a draft model in every step, and no suffix drafts. All of them are verified."""
    words = ("--agentspec-tau", "inf", "--agentspec-min-token-prob", "0", "--agentspec-baseline", "fixed")
    arguments = (*drafter, *chains(steps), *words)
    return System(label, "AGENTSPEC", arguments, variables)


_LONGEST_CHAIN = 10
_UNSTOPPED = {"AGENTSPEC_ACCEPTANCE_HEAD": "none", "AGENTSPEC_STOP_THRESHOLD": "1"}
# A draft model's drafts of fixed lengths, and drafts that end by SpecDec++ and by the cost model.
STOPPING = {
    f"{prefix}chain-{name}": _model_alone(drafter, f"{label}, {what}", steps, **variables)
    for prefix, label, drafter in (("", "STANDALONE", STANDALONE), ("eagle3-", "EAGLE-3", _EAGLE3))
    for name, what, steps, variables in (
        *((str(steps), f"chains of {steps}", steps, _UNSTOPPED) for steps in range(2, _LONGEST_CHAIN + 1, 2)),
        ("head", "SpecDec++", _LONGEST_CHAIN, {"AGENTSPEC_STOP_THRESHOLD": "head"}),
        ("own", "stopped by cost", _LONGEST_CHAIN, {}),
    )
}


def tau_sweep(head: tuple[str, ...]) -> dict[str, System]:
    """SuffixDecoding's hybrid beside EAGLE-3 by its threshold tau (table 3 of its appendix), in drafted tokens."""
    return {
        f"tau-{tau}": hybrid_with(head, f"SuffixDecoding + EAGLE-3, tau {tau}", baseline=f"suffixdecoding:tau={tau}")
        for tau in ("0", "1", "2", "4", "6", "inf")
    }


def alpha_sweep(head: tuple[str, ...]) -> dict[str, System]:
    """SuffixDecoding's drafts alone by alpha, drafted tokens per token of the match (table 4 of its appendix)."""
    return {
        f"alpha-{alpha}": hybrid_with(
            head, f"SuffixDecoding, alpha {alpha}", baseline=f"suffixdecoding:tau=0,alpha={alpha}"
        )
        for alpha in ("1", "2", "4", "8")
    }


SWEEPS = {**tau_sweep(_EAGLE3), **alpha_sweep(_EAGLE3)}
