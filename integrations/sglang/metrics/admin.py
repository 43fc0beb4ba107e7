"""Corpora and jobs, for Prometheus."""

from __future__ import annotations

from agentspec.integrations.sglang.admin.desk import AdminDesk
from agentspec.integrations.sglang.admin.jobs import ENDED, OPEN


class AdminMetrics:
    """Takes over what the desk has whenever it is called. For one thread; made where StateMetrics is."""

    def __init__(self, labels: dict[str, str], desk: AdminDesk) -> None:
        from prometheus_client import Counter, Gauge

        names = list(labels)
        self._desk = desk

        def gauge(name: str, text: str, *more: str) -> Gauge:
            return Gauge(f"agentspec:{name}", text, [*names, *more], multiprocess_mode="mostrecent")

        self._corpora = gauge("corpora", "Corpora that are drafted from").labels(**labels)
        self._bytes = gauge("corpora_bytes", "Memory that they map").labels(**labels)
        jobs = gauge("jobs", "Jobs of the server's administrator that have not ended", "state")
        self._open = {state: jobs.labels(**labels, state=state) for state in OPEN}
        ended = Counter("agentspec:ended_jobs", "Jobs that have ended, by how", [*names, "state"])
        self._ended = {state: ended.labels(**labels, state=state) for state in ENDED}
        self._counted = dict.fromkeys(ENDED, 0)

    def __call__(self) -> None:
        corpora = self._desk.corpora.all()
        self._corpora.set(len(corpora))
        self._bytes.set(sum(corpus.num_bytes for corpus in corpora))
        counts = self._desk.jobs.counts()
        for state in OPEN:
            self._open[state].set(counts[state])
        for state in ENDED:
            self._ended[state].inc(counts[state] - self._counted[state])
            self._counted[state] = counts[state]
