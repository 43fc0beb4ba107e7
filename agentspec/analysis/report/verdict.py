"""The verdict of a report: how to serve, why, and what would change that.

none      by the cost profile no speculation pays at the given concurrencies
suffix    suffix drafts reach the accept length that EAGLE-3 heads have on chat
hybrid    suffix drafts are good in some steps, and a draft model can serve the others
model     suffix drafts gain little, and a draft model alone gains more
unknown   the log is too small, too little of it was understood, or the tokenizer is not the served model's
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from agentspec.analysis.measures.entropy import DEPTH, LENGTH_BY_ENTROPY
from agentspec.scheduling import Profile, StepCost

_SUFFIX_LENGTH = 3.0
"""EAGLE-3 heads reach about 3 tokens per step on chat. Above that a draft model's own time does not always pay."""
_HYBRID_LENGTH = 1.9
_PAYS = 1.05
_KINDS = {"suffix": "suffix drafts alone", "hybrid": "suffix drafts and a draft model", "model": "a draft model alone"}
_OWN_SHARE = 0.5
"""From this share of the accepted tokens on, a request's own text explains a difference."""
_MIN_OUTPUTS, _MIN_SESSIONS = 20, 3
_MAX_LOST_SHARE = 0.2
_MIN_UNDERSTOOD = 0.9
"""If less of a log was understood, what was not read could change the verdict."""
_DRAFTER_LENGTH, _DRAFTER_TOKENS, _DRAFTER_SHARE = 2.5, 4, 0.1
"""The draft model that is assumed if none was measured: accept length, drafted tokens, and the time of one pass as a
share of a plain step's."""
_WIDTH_WITH_GRAPHS, _WIDTH_WITHOUT_GRAPHS = 64, 16
"""A server's default of --speculative-num-draft-tokens with captured graphs, as on a GPU, and without, as on a CPU."""
_MB = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """The facts that a verdict is based on."""

    num_outputs: int
    num_sessions: int
    lost_share: float
    """The share of sampled outputs that tokenizing and decoding changes."""
    num_replayed: int = 1000
    """The number of outputs that the accept lengths are of."""
    understood: float = 1.0
    """The share of the log that was understood."""
    not_understood: str = ""
    """What was not understood, with counts."""
    cold: float | None
    """Accept length of a server that has learnt nothing."""
    warm: float | None
    alone: float | None
    """Accept length of drafts from each request's own text alone."""
    entropy: float | None
    """Bits per token."""
    draft_share: float | None
    """The share of steps whose suffix draft promises more than 2 tokens."""
    speedups: Sequence[dict[str, Any]]
    rows: Sequence[dict[str, Any]]
    """The rows of the replay grid."""
    profile: Profile
    """The profile of the device that the verdict is for."""
    concurrency: Sequence[int]
    context: float
    """The mean number of tokens in a request's prompt and half of its output."""
    budget_mb: int
    model: str
    """Path or name of the served model, or a placeholder."""


def verdict(evidence: Evidence) -> dict[str, Any]:
    """The verdict as facts: kind, headline, reasons, flags, command, would_change and by_entropy."""
    kind = _kind(evidence)
    by_entropy = _by_entropy(kind, evidence)
    flags = _flags(kind, evidence)
    words = ["python", "-m", "sglang.launch_server", "--model-path", evidence.model, *flags]
    return {
        "kind": kind,
        "headline": _headline(kind, evidence),
        "reasons": _reasons(kind, evidence),
        "flags": flags,
        "command": shlex.join(words) if kind != "unknown" else "",
        "would_change": _would_change(kind, evidence),
        "by_entropy": by_entropy,
    }


def _is_understood(evidence: Evidence) -> bool:
    return evidence.understood >= _MIN_UNDERSTOOD


def _kind(evidence: Evidence) -> str:
    if not _is_understood(evidence):
        return "unknown"
    length = evidence.warm if evidence.warm is not None else evidence.cold
    if length is None or evidence.num_outputs < _MIN_OUTPUTS or evidence.num_sessions < _MIN_SESSIONS:
        return "unknown"
    if evidence.lost_share > _MAX_LOST_SHARE or evidence.num_replayed < _MIN_OUTPUTS:
        return "unknown"
    pays = any(row["high"] >= _PAYS for row in evidence.speedups)
    drafter_pays = any(drafter_gain(evidence.profile, rows, evidence.context) >= _PAYS for rows in evidence.concurrency)
    if not pays and not drafter_pays:
        return "none"
    if not pays:
        return "model" if drafter_pays else "suffix"
    return _kind_of_length(length) if drafter_pays else "suffix"


def _kind_of_length(length: float) -> str:
    """What suits an accept length of suffix drafts where a draft model would pay too."""
    return "model" if length < _HYBRID_LENGTH else "suffix" if length >= _SUFFIX_LENGTH else "hybrid"


def _by_entropy(kind: str, evidence: Evidence) -> dict[str, Any] | None:
    """What the entropy alone says, beside the replay's verdict; None where either is not known."""
    replayed = evidence.warm if evidence.warm is not None else evidence.cold
    if kind == "unknown" or evidence.entropy is None or replayed is None:
        return None
    line = LENGTH_BY_ENTROPY["warm" if evidence.warm is not None else "cold"]
    expected = line.expected(evidence.entropy)
    own = _kind_of_length(expected["mean"])
    text = (
        f"From the entropy alone, {evidence.entropy:.2f} bits, one would expect {expected['mean']:.1f} tokens per step, and in "
        f"9 of 10 sets like the {line.num_sets} measured ones between {expected['low']:.1f} and {expected['high']:.1f}. "
        f"That asks for {_KINDS[own]}"
    )
    if own == kind:
        return {"kind": own, "accept_length": expected, "text": f"{text}, as the replay does."}
    if _kind_of_length(replayed) == own:
        why = "The replay's verdict differs because it also weighs the time of steps on this device"
    elif replayed > expected["mean"]:
        why = f"The replay reached {replayed:.1f}, because repeats are longer than the {DEPTH} tokens that the entropy looks at"
        if evidence.alone is not None and evidence.alone - 1.0 >= _OWN_SHARE * (replayed - 1.0):
            why = (
                f"The replay reached {replayed:.1f}, because much is copied from a request's own prompt, which the entropy "
                f"of outputs does not look at: without other outputs it reached {evidence.alone:.1f}"
            )
    else:
        why = (
            f"The replay reached {replayed:.1f} only, because the {DEPTH} tokens before it often determine the next token "
            "here, and yet repeats end soon"
        )
    return {"kind": own, "accept_length": expected, "text": f"{text}. {why}; trust the replay."}


def drafter_gain(profile: Profile, rows: int, context: float) -> float:
    """The speed-up that the assumed draft model gives in steps of `rows` rows."""
    plain = profile.target.seconds(context * rows, rows)
    verifying = profile.target.seconds(context * rows, rows * (_DRAFTER_TOKENS + 1))
    drafter = profile.drafter or StepCost(0.0, 0.0, _DRAFTER_SHARE * profile.target.delta)
    taken = verifying + drafter.drafting(context * rows, rows, _DRAFTER_TOKENS)
    return _DRAFTER_LENGTH * plain / taken if taken > 0 else 0.0


def best_width(rows: Sequence[dict[str, Any]]) -> int:
    """The smallest width, from 8 on, whose accept length is within 3 % of the best one; 16 without a grid."""
    lengths = {
        row["width"]: row["accept_length_warm"] or row["accept_length_cold"] for row in rows if row["tau"] == 0.0
    }
    if not lengths:
        return _WIDTH_WITHOUT_GRAPHS
    best = max(lengths.values())
    return int(min(width for width, length in lengths.items() if length >= 0.97 * best and width >= 8))


def _default_width(profile: Profile) -> int:
    return _WIDTH_WITHOUT_GRAPHS if profile.key.graphs == "none" else _WIDTH_WITH_GRAPHS


def _flags(kind: str, evidence: Evidence) -> list[str]:
    if kind in ("none", "unknown"):
        return []
    if kind == "model":
        return ["--speculative-algorithm", "EAGLE3", "--speculative-draft-model-path", "DRAFTER"]
    flags = ["--speculative-algorithm", "AGENTSPEC"]
    width = best_width(evidence.rows)
    if width > _default_width(evidence.profile):  # A server picks narrower steps by itself.
        flags += ["--speculative-num-draft-tokens", str(width)]
    if evidence.budget_mb != 256:
        flags += ["--agentspec-budget-mb", str(evidence.budget_mb)]
    if kind == "hybrid":
        flags += ["--speculative-draft-model-path", "DRAFTER", "--agentspec-base", "EAGLE3"]
    return flags


def _headline(kind: str, evidence: Evidence) -> str:
    length = _length_text(evidence)
    if not _is_understood(evidence):
        # Rounded down, so that it does not show the share that suffices.
        share, needed = math.floor(100 * evidence.understood), round(100 * _MIN_UNDERSTOOD)
        what = f" Not understood: {evidence.not_understood}." if evidence.not_understood else ""
        return (
            f"No verdict: only {share} % of the log was understood, and it takes {needed} %. The figures are of that part "
            f"alone.{what}"
        )
    if kind == "unknown":
        if evidence.lost_share > _MAX_LOST_SHARE:
            return "The tokenizer changes outputs when it decodes them again: pass the served model's tokenizer."
        if evidence.num_replayed < min(_MIN_OUTPUTS, evidence.num_outputs):
            return f"Only {evidence.num_replayed} outputs were replayed, too few for a verdict: raise --seconds or --replay."
        return "The log is too small to say what these outputs gain: pass more outputs of more sessions."
    gains = _gain_text(evidence.speedups)
    return {
        "suffix": f"Serve with suffix drafts alone: {length}{gains}.",
        "hybrid": f"Serve with suffix drafts and a draft model: suffix drafts give {length}{gains}.",
        "model": f"Serve with a draft model alone: suffix drafts give {length}, fewer than draft models usually reach.",
        "none": f"Serve without speculation at these concurrencies: suffix drafts give {length}, which does not pay.",
    }[kind]


def _length_text(evidence: Evidence) -> str:
    values = [value for value in (evidence.cold, evidence.warm) if value is not None]
    if not values:
        return "no draft could be measured"
    low, high = f"{min(values):.1f}", f"{max(values):.1f}"
    return f"{low if low == high else f'{low} to {high}'} tokens per step"


def _gain_text(speedups: Sequence[dict[str, Any]]) -> str:
    if not speedups:
        return ""
    first = min(speedups, key=lambda row: row["concurrency"])
    return f", {first['low']:.1f} to {first['high']:.1f} times plain decoding at concurrency {first['concurrency']}"


def _reasons(kind: str, evidence: Evidence) -> list[str]:
    reasons = []
    if evidence.cold is not None:
        reasons.append(f"A server that has learnt nothing reaches {evidence.cold:.2f} tokens per step on these calls.")
    if evidence.warm is not None:
        reasons.append(f"A server that has learnt the other outputs of this log reaches {evidence.warm:.2f}.")
    if evidence.draft_share is not None:
        reasons.append(f"In {evidence.draft_share:.0%} of the steps a suffix draft promises more than 2 tokens.")
    for row in evidence.speedups:
        reasons.append(
            f"At concurrency {row['concurrency']} under the profile {row['profile']}: {row['low']:.2f} to "
            f"{row['high']:.2f} times plain decoding."
        )
    if kind in ("suffix", "hybrid"):
        key = evidence.profile.key
        graphs = "without captured graphs" if key.graphs == "none" else "with captured graphs"
        reasons.append(
            f"The flags are for {key.device} {graphs}, where a row verifies up to "
            f"{_default_width(evidence.profile)} tokens by default."
        )
    if kind in ("model", "hybrid"):
        reasons.append(
            f"A draft model of {_DRAFTER_LENGTH:g} tokens per step was assumed, as no log can show what one reaches."
        )
    if evidence.num_outputs < 100:
        reasons.append(f"Only {evidence.num_outputs} outputs were read, so the figures may be far off.")
    return reasons


def _would_change(kind: str, evidence: Evidence) -> list[str]:
    changes = {
        "suffix": [
            "A draft model that is known to reach more tokens per step than these drafts: then use both.",
            f"Outputs that repeat less: below {_SUFFIX_LENGTH:g} tokens per step a draft model is worth its time.",
        ],
        "hybrid": [
            f"More of the same outputs: from {_SUFFIX_LENGTH:g} tokens per step on suffix drafts suffice.",
            "No draft model for the served model: suffix drafts alone still pay.",
        ],
        "model": [
            f"Outputs that repeat more: from {_HYBRID_LENGTH:g} tokens per step on both together are better.",
            "No draft model for the served model: then suffix drafts alone, which the controller shortens where needed.",
        ],
        "none": ["A lower concurrency, or a device with more compute.", "A profile measured on your own server."],
        "unknown": ["At least 100 outputs of 20 sessions.", "The tokenizer of the served model."],
    }[kind]
    if not _is_understood(evidence):
        changes = ["A log in a format that is understood; the inputs of this report name what was not."]
    if kind != "unknown" and evidence.profile.r2 is None:
        changes = [
            *changes,
            "A profile measured where you serve (`agentspec profile`): this one is derived from a paper.",
        ]
    slowest = min(evidence.speedups, key=lambda row: row["low"], default=None)
    if slowest is not None and slowest["low"] < 1.0 and kind in ("suffix", "hybrid"):
        changes.append(f"A load that is always at concurrency {slowest['concurrency']}, where a slow-down is possible.")
    return changes


def budget_mb(index_bytes: float) -> int:
    """The smallest power of two of at least 256 MB that holds an index of that size twice."""
    return max(256, 1 << math.ceil(math.log2(max(2 * index_bytes / _MB, 1.0))))
