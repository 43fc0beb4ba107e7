"""Checks whether rows have drafts, and explains why others have none."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from agentspec.observe.counts import Change
from agentspec.observe.findings import Finding, Severity, info, warning

# With fewer rows than this, shares are not meaningful.
_FEW_ROWS = 50
# Reasons that are normal, because no draft was possible.
_EXPECTED = ("no_room",)
_MANY = 0.5
"""The share of rows without a draft from which there is a warning."""
_MAJOR = 0.25
"""A reason is reported if it explains at least this share of the rows without a draft."""
_LOW_ACCEPTANCE = 0.1
_FAULTS = ("breaker", "failed", "refused", "no_memory")


class _Advice(NamedTuple):
    means: str
    remedy: str


_LOG_HAS_IT = "the server's log has the error: look for 'agentspec could not draft'"
_ADVICE = {
    "no_match": _Advice(
        means="the text's end occurred nowhere before: the work does not repeat, what it repeats was evicted ({evicted} "
        "outputs), is in another namespace, or has other tokens (CRLF lines, another template)",
        remedy="run `agentspec doctor LOGS --tokenizer MODEL` on recorded requests: it says how much repeats, and in "
        "which tokens",
    ),
    "no_match_at_start": _Advice(
        means="an answer's first tokens find nothing: the end of its prompt is not what stood before earlier answers, of "
        "which 16 tokens are kept",
        remedy="let prompts of one kind end alike, as with the template's own words: their answers then have drafts from "
        "the first token on",
    ),
    "no_outputs": _Advice(
        means="nothing has finished in the namespaces of these requests, so they draft from their own text alone",
        remedy="wait for answers, or `agentspec store import LOGS` before the first request; if there were answers, "
        "--agentspec-namespace-from {field} may give each request a namespace of its own",
    ),
    "below_threshold": _Advice(
        means="matches were found, but nothing that is accepted with a probability of {probability}",
        remedy="fit estimates to your logs (`agentspec tune`), or lower --agentspec-min-token-prob",
    ),
    "not_indexed": _Advice(
        means="answers begin before their prompts are indexed",
        remedy="none for long prompts with short answers; else more cores, as prompts are indexed on another thread",
    ),
    "no_memory": _Advice(means="the engine had no memory", remedy="give the server's process more memory"),
    "disabled_by_request": _Advice(
        means="the requests asked for no drafts",
        remedy="leave out custom_params.agentspec.no_draft where drafts are wanted",
    ),
    "penalties": _Advice(
        means="the requests have a repetition, frequency or presence penalty, which changes with every token, so they are "
        "decoded without drafts",
        remedy="leave the penalties out where they are not needed: agents rarely need them",
    ),
    "before_min_tokens": _Advice(
        means="the requests have min_new_tokens, and drafts begin when an answer has that many",
        remedy="leave min_new_tokens out, or lower it",
    ),
    "hidden_states": _Advice(
        means="the requests ask for hidden states, which SGLang mixes up where it verifies trees",
        remedy="leave return_hidden_states out where the states are not needed",
    ),
    "refused": _Advice(
        means="the engine refused the requests' tokens",
        remedy="the server's log says why: look for 'agentspec does not draft for one request'",
    ),
    "breaker": _Advice(means="drafting failed several times in a row and paused", remedy=_LOG_HAS_IT),
    "failed": _Advice(means="drafting failed in these steps", remedy=_LOG_HAS_IT),
    "cut_by_controller": _Advice(
        means="there were drafts, but by estimates and costs verifying them does not pay",
        remedy="see the finding `controller`; --agentspec-baseline fixed verifies all that is drafted",
    ),
    "left_by_policy": _Advice(
        means="the rows were left to the draft model, which made no draft",
        remedy="a lower --agentspec-tau keeps more suffix drafts",
    ),
}


def check_drafts(block: Mapping[str, Any], changed: Change) -> Iterator[Finding]:
    """Yields findings on a rank: the rows with drafts, why other rows have none, and how much is accepted."""
    counters = changed.counts.get("counters", {})
    rows = int(counters.get("verify_steps", 0))
    drafted, accepted = int(counters.get("drafted_tokens", 0)), int(counters.get("accepted_tokens", 0))
    reasons: dict[str, int] = {
        name: n for name, n in changed.counts.get("rows_without_draft", {}).items() if n and name not in _EXPECTED
    }
    without = sum(reasons.values())
    if rows < _FEW_ROWS:
        yield info(
            "drafts",
            f"{rows} rows were verified so far, {drafted} tokens drafted",
            means="that is too little to judge by",
            remedy="ask again after some requests",
        )
        return
    if drafted == 0:
        severity, means = Severity.ERROR, "agentspec is active but brings nothing"
    elif without > _MANY * rows:
        severity, means = Severity.WARNING, "most rows decode plainly"
    else:
        severity, means = Severity.OK, ""
    length = (accepted + rows) / rows
    yield Finding(
        severity=severity,
        name="drafts",
        seen=f"{without} of {rows} rows had none ({without / rows:.0%}); {accepted} of {drafted} drafted tokens were "
        f"accepted, {length:.2f} tokens a verification",
        means=means,
        remedy="see the reasons below" if means and reasons else "",
    )
    if drafted and accepted < _LOW_ACCEPTANCE * drafted:
        yield warning(
            "acceptance",
            f"{accepted} of {drafted} drafted tokens were accepted ({accepted / drafted:.0%})",
            means="what is found does not go on as it did before: the work hardly repeats, or estimates are too sure",
            remedy="fit estimates to your logs: `agentspec tune LOGS --out FILE`, then --agentspec-estimates FILE",
        )
    if severity is not Severity.OK:
        for reason, n in sorted(reasons.items(), key=lambda item: -item[1]):
            if n >= _MAJOR * without:
                yield _reason(reason, n, rows, block)


def _reason(reason: str, n: int, rows: int, block: Mapping[str, Any]) -> Finding:
    settings = block.get("settings") or {}
    engine = block.get("engine") or {}
    known = {
        "evicted": engine.get("evicted_outputs", 0),
        "field": settings.get("namespace_from", "auto"),
        "probability": f"{block['min_token_prob']:.2g}" if "min_token_prob" in block else "?",
    }
    advice = _ADVICE.get(reason, _Advice(means="", remedy=""))
    return Finding(
        severity=Severity.ERROR if reason in _FAULTS else Severity.WARNING,
        name=f"no-draft-{reason.replace('_', '-')}",
        seen=f"{n} of {rows} rows ({n / rows:.0%})",
        means=advice.means.format_map(known),
        remedy=advice.remedy.format_map(known),
    )
