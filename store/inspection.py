"""Checks without a server how well a store's contents can be drafted from."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing

import numpy as np
from numpy.typing import NDArray

from agentspec.analysis.replay import Tokenizer
from agentspec.analysis.replay.runs import LENGTH
from agentspec.errors import ConfigError, RecordError
from agentspec.observe.findings import Finding, Severity, error, info, ok, warning
from agentspec.observe.log_checks import LITTLE
from agentspec.observe.repeats import Repeats, repeats_by_namespace
from agentspec.store.base import Scope, scan_all
from agentspec.store.codec import Codec
from agentspec.store.records import OutputRecord
from agentspec.store.urls import Place

_SHOWN = 5
_MOST_TOKENS = 20_000_000
"""Maximum number of tokens examined in each scope; hashing and sorting them takes some seconds and a gigabyte."""
_OFTEN = 0.5


def check_store(
    place: Place,
    key: bytes | None,
    tokenizer: Tokenizer | None,
    fingerprint: str,
    on_entry: Callable[[int], None] = lambda done: None,
) -> list[Finding]:
    """Findings on each model in a store.

    Args:
        key: Of encrypted values.
        tokenizer: The served model's, with its `fingerprint`; None: what needs text is not looked at.
        on_entry: Told how many entries were read.

    Raises:
        ConfigError: Nothing is stored there.
        StoreError: It cannot be opened.
    """
    scopes = place.scopes()
    if not scopes:
        raise ConfigError(f"nothing is stored in {place.url}: no model has been served with it")
    findings = _tokenizers(scopes, fingerprint)
    for scope in scopes:
        known = tokenizer if fingerprint == scope.tokenizer else None
        findings += _check_scope(place, scope, key, known, on_entry)
    return findings


def _tokenizers(scopes: list[Scope], fingerprint: str) -> list[Finding]:
    named = ", ".join(f"{scope.model} ({scope.tokenizer[:12]})" for scope in scopes)
    if not fingerprint:
        return [ok("models", named)]
    if any(scope.tokenizer == fingerprint for scope in scopes):
        return [ok("tokenizer", f"{fingerprint[:12]} is that of a model in {named}")]
    return [
        error(
            "tokenizer",
            f"the one given is {fingerprint[:12]}; the store has {named}",
            means="a server with that tokenizer drafts from nothing that is stored here",
            remedy="serve the model with the tokenizer it had, or import logs anew: `agentspec store import LOGS "
            "--tokenizer MODEL`",
        )
    ]


def _check_scope(
    place: Place, scope: Scope, key: bytes | None, tokenizer: Tokenizer | None, on_entry: Callable[[int], None]
) -> list[Finding]:
    outputs: list[tuple[str, NDArray[np.int32]]] = []
    faults: dict[str, int] = {}
    tokens = done = 0
    codec = Codec(scope, key)
    with closing(place.open(scope, create=False)) as store:
        for space in store.namespaces():
            for entry in scan_all(store, space.namespace):
                done += 1
                on_entry(done)
                try:
                    record = codec.decode(entry.namespace, entry.data)
                except RecordError as error:
                    faults[error.fault] = faults.get(error.fault, 0) + 1
                    continue
                if isinstance(record, OutputRecord) and tokens < _MOST_TOKENS:
                    outputs.append((entry.namespace, record.tokens[record.num_prompt_tail :]))
                    tokens += len(outputs[-1][1])
    findings = [_unreadable(scope, fault, n) for fault, n in faults.items()]
    if outputs:
        findings += _repeats(scope, outputs)
    elif not faults:
        findings.append(info("outputs", f"{scope.model}: the logs are empty"))
    if tokenizer is not None and outputs:
        findings += _texts(scope, [of for _, of in outputs], tokenizer)
    return findings


def _unreadable(scope: Scope, fault: str, n: int) -> Finding:
    return error(
        f"records-{fault}",
        f"{scope.model}: {n} entries cannot be read",
        means=f"they are {fault}, so servers skip them",
        remedy="pass the key that servers have with --key-file"
        if fault == "encrypted"
        else "`agentspec store verify` names them, with --delete-damaged it removes what is damaged",
    )


def _repeats(scope: Scope, outputs: list[tuple[str, NDArray[np.int32]]]) -> list[Finding]:
    by_namespace = repeats_by_namespace(outputs)
    sizes = {name: sum(of == name for of, _ in outputs) for name in by_namespace}
    places, own, elsewhere = (
        sum(getattr(found, field) for found in by_namespace.values()) for field in ("places", "own", "elsewhere")
    )
    places = max(places, 1)
    largest = sorted(by_namespace, key=lambda name: -sizes[name])[:_SHOWN]
    each = "; ".join(_shown(name, sizes[name], by_namespace[name]) for name in largest)
    more = f"; and {len(by_namespace) - _SHOWN} more" if len(by_namespace) > _SHOWN else ""
    seen = (
        f"{scope.model}: at {own / places:.0%} of {places} places in {len(outputs)} outputs the next {LENGTH} tokens were "
        f"said before in the same namespace: {each}{more}"
    )
    findings = [
        ok("repeats", seen)
        if own / places >= LITTLE
        else warning(
            "repeats",
            seen,
            means="what finished hardly repeats; prompts, which may, are not stored",
            remedy="`agentspec replay LOGS` tells what drafts from prompts and outputs would bring",
        )
    ]
    if elsewhere > max(own, LITTLE * places):
        findings.append(
            warning(
                "namespace",
                f"{scope.model}: at {elsewhere / places:.0%} of places they were said before in another namespace "
                f"alone; {len(outputs)} outputs are in {len(by_namespace)} namespaces",
                means="requests that say the same are told apart as different tenants'",
                remedy="if they are one tenant's, name a field that says so with --agentspec-namespace-from; what all "
                "may see can be a corpus: `agentspec corpus build`",
            )
        )
    return findings


def _shown(name: str, outputs: int, found: Repeats) -> str:
    return f"{name[:8]} {found.own / max(found.places, 1):.0%} of {outputs} outputs"


def _texts(scope: Scope, outputs: list[NDArray[np.int32]], tokenizer: Tokenizer) -> list[Finding]:
    """What is seen of their texts, which are never shown."""
    others = returns = 0
    for tokens in outputs:
        text = tokenizer.decode(tokens)
        returns += "\r\n" in text
        written = tokenizer.encode(text)
        # Specials, such as the end of the turn, are no text.
        same = len(written) <= len(tokens) and np.array_equal(written, tokens[: len(written)])
        others += not same
    often = others > _OFTEN * len(outputs)
    return [
        Finding(
            severity=Severity.WARNING if often else Severity.OK,
            name="tokens",
            seen=f"{scope.model}: {others} of {len(outputs)} outputs have other tokens when their text is tokenized anew",
            means="as part of a later prompt they are not the tokens that were written" if often else "",
            remedy="send answers back as token ids (input_ids) where the client can" if often else "",
        ),
        Finding(
            severity=Severity.INFO if returns else Severity.OK,
            name="line-ends",
            seen=f"{scope.model}: {returns} of {len(outputs)} outputs have CRLF lines",
        ),
    ]
