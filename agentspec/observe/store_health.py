"""Checks whether a server's store works, from the server's own report."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from agentspec.observe.counts import Change
from agentspec.observe.findings import Finding, error, info, ok, warning

_SLOW_LAG = 2.0
"""The lag in seconds from which the store counts as slow."""


def check_store_health(block: Mapping[str, Any], changed: Change) -> Iterator[Finding]:
    """Yields findings on the block `store` of a rank."""
    store = block.get("store")
    settings = block.get("settings") or {}
    asked = str(settings.get("store") or "")
    if not isinstance(store, Mapping):
        if asked == "memory://":
            yield info("store", "memory://: nothing outlives this server")
        else:
            yield warning(
                "store",
                f"there is none, though {asked or 'the default SQLite file'} was asked for",
                means="it could not be used at the start: nothing outlives this server, and other replicas learn nothing",
                remedy="the server's log says why ('cannot be used'); --agentspec-store URL names another",
            )
        return
    last_error = store.get("last_error") or {}
    last = f"; the last error: {last_error['message']}" if last_error.get("message") else ""
    url = store.get("url")
    counts: Mapping[str, int] = changed.counts.get("store", {})
    if not store.get("connected", True):
        yield error(
            "store",
            f"{url} does not answer ({store.get('queued_outputs', 0)} outputs wait){last}",
            means="decoding goes on, but this server learns nothing from other replicas and they nothing from it",
            remedy="check that the store runs and can be reached: `agentspec store info --store URL`; no restart is needed",
        )
    elif not store.get("ready", True):
        yield info(
            "store",
            f"{url} is still being loaded",
            means="what was learned before is not drafted from yet",
            remedy="wait; loading goes on while the server runs",
        )
    else:
        yield ok(
            "store",
            f"{url}: {counts.get('delivered_outputs', 0)} outputs written, {counts.get('received_outputs', 0)} "
            f"received, {store.get('queued_outputs', 0)} wait",
        )
    if dropped := counts.get("dropped_outputs", 0):
        yield warning(
            "store-dropped",
            f"{dropped} finished outputs were dropped, as too many waited for the store",
            means="they are drafted from here, but no restart or other replica will know them",
            remedy="a faster store, or more replicas, so that each has fewer outputs to write",
        )
    if skipped := counts.get("skipped_records", 0):
        yield warning(
            "store-records",
            f"{skipped} records could not be used{last}",
            means="they are damaged, of a newer version, encrypted with another key, or of another model or tokenizer",
            remedy="`agentspec store verify --store URL` names them; all replicas need the same AGENTSPEC_STORE_KEY_FILE",
        )
    if broken := store.get("broken_logs", 0):
        yield warning(
            "store-logs",
            f"{broken} logs cannot be appended to or read{last}",
            means="something else stands in their place; outputs of those namespaces wait",
            remedy="remove the key that stands there; the last error names it",
        )
    lag = store.get("lag_seconds")
    if lag and lag["p99"] > _SLOW_LAG:
        yield warning(
            "store-lag",
            f"outputs of other replicas arrive after {lag['p50']:.2f} s (median) and {lag['p99']:.2f} s (99 %)",
            means="the store is slow, or the clocks of the replicas differ",
            remedy="check the network to the store and the clocks",
        )
