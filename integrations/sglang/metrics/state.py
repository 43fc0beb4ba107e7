"""What the plugin holds and in which state it is, for Prometheus."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any

import agentspec
from agentspec.engine import Engine
from agentspec.integrations.sglang.drafting.breaker import Breaker

logger = logging.getLogger("agentspec")

_SECONDS = 2.0

_GAUGES = {
    "breaker_open": "1 while drafting pauses after repeated failures, else 0",
    "open_requests": "Requests that the engine follows",
    "outputs": "Finished outputs that are drafted from, over all namespaces",
    "output_tokens": "Their tokens",
    "namespaces": "Namespaces that have finished outputs in memory",
    "drafter_tau": "Accepted tokens that a suffix draft has to promise for the draft model not to be run; -1: it is not known",
    "drafter_paused": "1 while the draft model is paused, because following the text costs more than its drafts save",
}
_COUNTERS = {
    "breaker_openings": "How often drafting paused after repeated failures",
    "evicted_outputs": "Finished outputs dropped to stay within the memory budget",
    "spared_prompt_tokens": "Prompt tokens that an earlier turn's index had already",
}
_MEMORY = ("requests", "conversations", "outputs")


class StateMetrics:
    """Reads the state every few seconds on a thread of its own, so that the step pays nothing and an idle server tells
    it too.

    Made in the scheduler process after SGLang has set up its multiprocess directory; see StoreMetrics.
    """

    def __init__(self, labels: dict[str, str], engine: Engine, breaker: Breaker) -> None:
        from prometheus_client import Counter, Gauge

        names = list(labels)
        self._engine = engine
        self._breaker = breaker
        self._readers: dict[str, Callable[[], float]] = {}
        self._others: list[Callable[[], None]] = []

        def gauge(name: str, text: str, *more: str) -> Any:
            return Gauge(f"agentspec:{name}", text, [*names, *more], multiprocess_mode="mostrecent")

        def made(name: str) -> Any:
            return gauge(name, _GAUGES[name]).labels(**labels)

        # Of a draft model only where there is one.
        self._make = made
        self._gauges = {name: made(name) for name in _GAUGES if not name.startswith("drafter_")}
        memory = gauge("memory_bytes", "Memory of the engine's indexes, by what they are of", "kind")
        self._memory = {kind: memory.labels(**labels, kind=kind) for kind in _MEMORY}
        self._counters = {
            name: Counter(f"agentspec:{name}", text, names).labels(**labels) for name, text in _COUNTERS.items()
        }
        self._counted = dict.fromkeys(_COUNTERS, 0)
        gauge("build_info", "Always 1; tells which agentspec is active", "version").labels(
            **labels, version=agentspec.__version__
        ).set(1)
        self.update()

    def start(self) -> None:
        threading.Thread(target=self._run, name="agentspec-metrics", daemon=True).start()

    def read(self, name: str, reader: Callable[[], float]) -> None:
        """Has a gauge of the draft model set to what `reader` returns; it is called on another thread."""
        self._gauges[name] = self._make(name)
        self._readers[name] = reader

    def also(self, update: Callable[[], None]) -> None:
        """Has `update` called whenever the state is read; it is called on another thread."""
        self._others.append(update)

    def update(self) -> None:
        """Takes over the state as it is now."""
        for update in self._others:
            update()
        stats = self._engine.stats()
        values: dict[str, float] = {
            "breaker_open": int(self._breaker.is_open),
            "open_requests": stats.open_requests,
            "outputs": stats.outputs,
            "output_tokens": stats.output_tokens,
            "namespaces": stats.namespaces,
            **{name: reader() for name, reader in list(self._readers.items())},
        }
        for name, value in values.items():
            self._gauges[name].set(value)
        for kind, size in zip(
            _MEMORY, (stats.request_bytes, stats.conversation_bytes, stats.global_bytes), strict=True
        ):
            self._memory[kind].set(size)
        counts = {
            "breaker_openings": self._breaker.num_openings,
            "evicted_outputs": stats.evicted_outputs,
            "spared_prompt_tokens": stats.spared_tokens,
        }
        for name, count in counts.items():
            self._counters[name].inc(max(count - self._counted[name], 0))
            self._counted[name] = count

    def _run(self) -> None:
        tick = threading.Event()
        while not tick.wait(_SECONDS):
            try:
                self.update()
            except Exception:
                logger.exception("agentspec could not tell its state to Prometheus")
