"""Checks the state that a running server reports.

Each check looks at one thing and says what it saw, with figures, also where all is well. Counts are those of the time that
was looked at: since the start, or between two readings.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from agentspec.observe.client import ServerState
from agentspec.observe.control_checks import check_controller, check_drafter
from agentspec.observe.counts import Change
from agentspec.observe.draftless_checks import check_drafts
from agentspec.observe.findings import Finding, error, info, ok, warning
from agentspec.observe.store_health import check_store_health


def check_server(state: ServerState, metrics: str | None) -> list[Finding]:
    """Checks the whole server: whether agentspec is active, and whether Prometheus can see it. `metrics` is what
    `/metrics` answers; None where there are none."""
    missing = [rank for rank, block in enumerate(state.ranks) if block is None]
    algorithm = state.server.get("speculative_algorithm")
    if missing or not state.ranks:
        return [
            error(
                "active",
                f"{len(missing)} of {len(state.ranks)} ranks have no block `agentspec` in /server_info; the "
                f"server's speculative algorithm is {algorithm or 'none'}",
                means="agentspec does not run: SGLang logs and swallows what fails in a plugin, and serves without it",
                remedy="start with --speculative-algorithm AGENTSPEC, with agentspec installed beside SGLang; if that "
                "was done, look for 'agentspec' in the server's log",
            )
        ]
    version = next(block.get("version") for block in state.ranks if block is not None)
    return [
        ok("active", f"agentspec {version} on {len(state.ranks)} rank(s)"),
        *([_replay()] if any(block and block.get("replay") for block in state.ranks) else []),
        _metrics(metrics),
    ]


def _replay() -> Finding:
    return error(
        "replay",
        "the server was started with AGENTSPEC_REPLAY",
        means="the model's own answers are overwritten with recorded ones, which is for measurements only",
        remedy="unset the variable AGENTSPEC_REPLAY",
    )


def check_rank(block: Mapping[str, Any], changed: Change, *, expected_tokenizer: str = "") -> list[Finding]:
    """Checks one rank by its block `agentspec` and its counts over a period. `expected_tokenizer` is what the served
    one should be, as fingerprint() names it; "": it is not checked."""
    checks: list[Callable[[], Iterator[Finding]]] = [
        lambda: _breaker(block, changed),
        lambda: _errors(changed),
        lambda: check_drafts(block, changed),
        lambda: check_controller(block, changed),
        lambda: check_drafter(block, changed),
        lambda: _tokenizer(block, expected_tokenizer),
        lambda: _line_ends(changed),
        lambda: _namespaces(block, changed),
        lambda: _memory(block, changed),
        lambda: check_store_health(block, changed),
    ]
    return [finding for check in checks for finding in check()]


def of_rank(findings: list[Finding], rank: int) -> list[Finding]:
    """Returns the findings with the rank's number added."""
    return [replace(finding, rank=rank) for finding in findings]


def _metrics(metrics: str | None) -> Finding:
    if metrics is not None and re.search(r"^agentspec_\w+[{ ]", metrics, re.MULTILINE):
        return info(
            "metrics",
            "/metrics has agentspec's; whoever asks as Prometheus 2 does gets names like agentspec_steps_total",
            means="the alerts and the dashboard ask for agentspec:steps_total",
            remedy="relabel names as integrations/prometheus/prometheus.yml does",
        )
    if metrics is not None and re.search(r"^agentspec:\w+[{ ]", metrics, re.MULTILINE):
        return ok("metrics", "/metrics has agentspec's")
    if metrics is None:
        seen = "/metrics is not there"
    else:
        seen = "/metrics has none of agentspec's"
    return info(
        "metrics",
        seen,
        means="Prometheus, its alerts and the dashboard see nothing of agentspec",
        remedy="start the server with --enable-metrics",
    )


def _breaker(block: Mapping[str, Any], changed: Change) -> Iterator[Finding]:
    breaker = block.get("breaker") or {}
    openings = changed.counts.get("breaker", {}).get("openings", 0)
    if breaker.get("open"):
        yield error(
            "breaker",
            f"it is open, for the {breaker.get('openings')}. time",
            means="drafting failed several times in a row and pauses for 1000 steps; the server decodes plainly",
            remedy="the server's log has the error: look for 'agentspec could not draft'",
        )
    elif openings:
        yield warning(
            "breaker",
            f"it opened {openings} times and is closed now",
            means="drafting failed repeatedly and paused each time for 1000 steps",
            remedy="the server's log has the errors: look for 'agentspec could not draft'",
        )
    else:
        yield ok("breaker", "closed")


def _errors(changed: Change) -> Iterator[Finding]:
    counters = changed.counts.get("counters", {})
    drafting, control = int(counters.get("draft_errors", 0)), int(counters.get("control_errors", 0))
    if not drafting and not control:
        yield ok("errors", "none of drafting, none of the controller")
        return
    yield warning(
        "errors",
        f"{drafting} of drafting, {control} of the controller, in {counters.get('steps', 0)} steps",
        means="each cost the drafts of its rows, or the controller's choice in its step; outputs are not concerned",
        remedy="the server's log has each with its traceback: look for 'agentspec'",
    )


def _tokenizer(block: Mapping[str, Any], expected: str) -> Iterator[Finding]:
    scope = block.get("scope") or {}
    served = str(scope.get("tokenizer", ""))
    if served.startswith("name:"):
        yield warning(
            "tokenizer",
            f"it goes by its name, {served.removeprefix('name:')}, as its file was not found",
            means="outputs of another tokenizer under the same name would be taken for the same tokens",
            remedy="serve from a local folder with its tokenizer.json, or pass --tokenizer-path",
        )
    elif expected and served and expected != served:
        yield error(
            "tokenizer",
            f"the server's is {served[:12]}, the one given here {expected[:12]}",
            means="corpora, imported logs and tools that use the other one have other tokens, which never match",
            remedy="build corpora and import logs with the served model's own tokenizer (--tokenizer)",
        )
    elif served:
        yield ok("tokenizer", f"SHA-256 {served[:12]}..., model {scope.get('model')} in the store")


def _line_ends(changed: Change) -> Iterator[Finding]:
    returns = changed.counts.get("carriage_returns")
    requests = sum(changed.counts.get("requests", {}).values())
    if not returns or not returns.get("prompts"):
        return
    prompts, outputs = returns["prompts"], returns.get("outputs", 0)
    if outputs < prompts / 2:
        yield warning(
            "line-ends",
            f"{prompts} of {requests} prompts have carriage returns (CRLF lines), {outputs} outputs do",
            means="a model that writes LF copies CRLF text in other tokens, so that what it copies is not found",
            remedy="send files with LF line ends: replace \\r\\n by \\n before the request is made",
        )


def _namespaces(block: Mapping[str, Any], changed: Change) -> Iterator[Finding]:
    requests: Mapping[str, int] = changed.counts.get("requests", {})
    total = sum(requests.values())
    field = (block.get("settings") or {}).get("namespace_from", "auto")
    private, unshared = requests.get("private", 0), requests.get("no_store", 0)
    if total and private > total / 2:
        yield warning(
            "namespace",
            f"{private} of {total} requests lack the field that names their tenant ({field})",
            means="they draft from their own text alone, and nothing of them is kept",
            remedy="have the gateway set that field, or choose another with --agentspec-namespace-from",
        )
    if total and unshared > total / 2:
        yield info(
            "no-store",
            f"{unshared} of {total} requests asked that nothing of them be kept",
            means="later requests cannot draft from them",
            remedy="leave out custom_params.agentspec.no_store where texts may be learned from",
        )
    engine = block.get("engine") or {}
    outputs, spaces = engine.get("outputs", 0), engine.get("namespaces", 0)
    if spaces >= 20 and outputs < 2 * spaces:
        yield warning(
            "namespace",
            f"{spaces} namespaces share {outputs} outputs",
            means="nearly every request is a tenant of its own and finds nothing that others have said",
            remedy=f"the field {field} differs from request to request: name one that is the same for a tenant with "
            "--agentspec-namespace-from, or none, if all requests are one tenant's",
        )


def _memory(block: Mapping[str, Any], changed: Change) -> Iterator[Finding]:
    evicted = int(changed.counts.get("engine", {}).get("evicted_outputs", 0))
    engine, settings = block.get("engine") or {}, block.get("settings") or {}
    if settings.get("budget_mb") == 0:
        yield warning(
            "memory",
            "--agentspec-budget-mb is 0",
            means="no finished output is kept, so that requests draft from their own text alone",
            remedy="--agentspec-budget-mb 256",
        )
    elif evicted > engine.get("outputs", 0):
        yield warning(
            "memory",
            f"{evicted} outputs were dropped for lack of memory, {engine.get('outputs', 0)} are kept in "
            f"{settings.get('budget_mb')} MiB",
            means="what repeats after a while may be gone by then",
            remedy=f"--agentspec-budget-mb {2 * int(settings.get('budget_mb', 256))} or more",
        )
    else:
        yield ok("memory", f"{engine.get('outputs', 0)} outputs are kept, {evicted} were dropped")
