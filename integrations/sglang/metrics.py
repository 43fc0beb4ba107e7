"""The metrics of a server for Prometheus: one table of all metrics, and the classes that count and update them.

class           what                                                   updated
Counters        the worker's counts, split by the source of a draft   at once
LabelledCounts  counts of one owner, split by one label               at once
ControlMetrics  the controller's plans and the observed steps         once in each step
StateMetrics    the state of the engine                               every few seconds, on a thread of its own
AdminMetrics    corpora and jobs                                      with the state
StoreMetrics    the store's health                                    with each health report

`/server_info` shows the first two as well, so they exist without Prometheus. The others exist only if the server
exports metrics.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

import agentspec
from agentspec.integrations.sglang import arguments, compat
from agentspec.integrations.sglang.admin.jobs import ENDED, OPEN
from agentspec.scheduling import Reason, StepPlan

if TYPE_CHECKING:
    from agentspec.engine import Engine
    from agentspec.integrations.sglang.admin.desk import AdminDesk
    from agentspec.integrations.sglang.drafting.breaker import Breaker
    from agentspec.integrations.sglang.sglang_types import ServerArgs

logger = logging.getLogger("agentspec")

_SECONDS = 2.0
"""Time between two readings of the state."""

# The values of the label `source`: where the likeliest token of a row's draft came from. Labels never hold a request, a
# tenant or text, so their values are few.
SOURCES = ("none", "request", "global", "corpus", "model")
# The value of `source` for counts that belong to a whole step or to no draft.
ALL_SOURCES = "all"


class Metric(NamedTuple):
    """A metric of the table. Prometheus knows it as `agentspec:NAME`, and a counter as `agentspec:NAME_total`."""

    help: str
    kind: Literal["gauge", "counter"] = "gauge"
    label: str = ""
    """The label besides those that all metrics have; empty if there is none."""
    values: tuple[str, ...] = ()
    """Values of the label that are exported from the start, so that "nothing yet" differs from "not active"."""


def _counter(text: str, label: str = "", values: tuple[str, ...] = ()) -> Metric:
    return Metric(text, "counter", label, values)


_OF_A_STEP = ("source", (ALL_SOURCES,))
COUNTED = {
    "drafted_tokens": _counter("Tokens drafted for verification, roots not counted", "source", SOURCES),
    "accepted_tokens": _counter(
        "Drafted tokens that verification accepted, bonus tokens not counted", "source", SOURCES
    ),
    "verify_steps": _counter("Verified rows: one request in one step", "source", SOURCES),
    "steps": _counter("Decode steps of the whole batch", *_OF_A_STEP),
    "drafter_steps": _counter("Decode steps in which the draft model drafted", *_OF_A_STEP),
    "drafter_paused_steps": _counter(
        "Decode steps in which the draft model was paused, so that it did not follow the text", *_OF_A_STEP
    ),
    "draft_errors": _counter("Failures in drafting; each made its rows root-only and cost speed only", *_OF_A_STEP),
    "control_errors": _counter(
        "Failures of the controller; each let its step verify all that was drafted", *_OF_A_STEP
    ),
    "verified_tokens": _counter("Tokens of verifications, roots and padding included", *_OF_A_STEP),
    "drafting_seconds": _counter("Seconds spent in drafting on the step", *_OF_A_STEP),
}
"""Counts of the worker."""
OWNED = {
    "rows_without_draft": _counter("Verified rows without a draft, by why they had none", "reason"),
    "requests": _counter("Requests that were opened, by what is done with their output", "handling"),
    "carriage_returns": _counter("Texts in which a token holds a carriage return", "text"),
    "replay_requests": _counter("Requests to a server that replays recorded answers", "outcome"),
    "replay_finished": _counter("Requests that ended with a recorded answer"),
    "replay_forced_tokens": _counter("Tokens of recorded answers in finished outputs"),
    "replay_diverged": _counter("Finished outputs that are not the recorded ones"),
}
"""Counts of other owners, which know the values of their labels."""
CONTROL = {
    "step_width": Metric(
        "Tokens verified a row in the last step, padding included, the mean where rows differ; 1 is plain decoding"
    ),
    "step_budget": Metric("Drafted tokens verified in the last step, over all rows"),
    "step_predicted_seconds": Metric("Predicted for the last step's verification"),
    "step_observed_seconds": Metric("Measured of the last step's verification; 0 where it was not"),
    "step_predicted_tokens": Metric("Accepted and bonus tokens expected of the last step, over all rows"),
    "step_observed_tokens": Metric("Accepted and bonus tokens of the last step, over all rows"),
    # A gauge shows only the last step. Errors of the predictions show in sums.
    "measured_steps": _counter("Steps whose verification was measured"),
    "predicted_verify_seconds": _counter("Predicted for verifications, of those that were measured"),
    "observed_verify_seconds": _counter("Measured of verifications"),
    "predicted_tokens": _counter("Accepted and bonus tokens expected of steps"),
    "observed_tokens": _counter("Accepted and bonus tokens of steps"),
    "step_plans": _counter("Steps by why they were as wide as they were", "reason", get_args(Reason)),
}
STATE = {
    "breaker_open": Metric("1 while drafting pauses after repeated failures, else 0"),
    "open_requests": Metric("Requests that the engine follows"),
    "outputs": Metric("Finished outputs that are drafted from, over all namespaces"),
    "output_tokens": Metric("Their tokens"),
    "namespaces": Metric("Namespaces that have finished outputs in memory"),
    "memory_bytes": Metric(
        "Memory of the engine's indexes, by what they are of",
        label="kind",
        values=("requests", "conversations", "outputs"),
    ),
    "build_info": Metric("Always 1; tells which agentspec is active", label="version", values=(agentspec.__version__,)),
    "breaker_openings": _counter("How often drafting paused after repeated failures"),
    "evicted_outputs": _counter("Finished outputs dropped to stay within the memory budget"),
    "spared_prompt_tokens": _counter("Prompt tokens that an earlier turn's index had already"),
}
DRAFT_MODEL = {
    "drafter_expected_tokens": Metric("Accepted tokens that a draft of the draft model is expected to bring"),
    "drafter_paused": Metric(
        "1 while the draft model is paused, because following the text costs more than its drafts save"
    ),
}
"""Where there is one."""
STORE = {
    "store_connected": Metric("1 while the store answers, else 0"),
    "store_lag_seconds": Metric(
        "From an output's end on another replica to its arrival here, 99th percentile of the latest"
    ),
    "store_queued_outputs": Metric("Finished outputs that wait for the store"),
    "store_bytes": Metric("What the store holds of this model, as last counted by the replica that keeps it tidy"),
    "store_namespaces": Metric("Namespaces in the store, counted likewise"),
    "store_dropped_outputs": _counter("Finished outputs dropped because the queue was full"),
    "store_errors": _counter("Failures of the store; each cost drafts only"),
    "store_delivered_outputs": _counter("Finished outputs written to the store"),
    "store_received_outputs": _counter("Outputs of other replicas received"),
    "store_skipped_records": _counter("Records in the store that could not be used"),
    "store_deletions": _counter("Deletions carried out"),
}
ADMIN = {
    "corpora": Metric("Corpora that are drafted from"),
    "corpora_bytes": Metric("Memory that they map"),
    "jobs": Metric("Jobs of the server's administrator that have not ended", label="state", values=OPEN),
    "ended_jobs": _counter("Jobs that have ended, by how", "state", ENDED),
}
METRICS: Mapping[str, Metric] = COUNTED | OWNED | CONTROL | STATE | DRAFT_MODEL | STORE | ADMIN


def metric_labels(server_args: ServerArgs) -> dict[str, str]:
    """The labels of all metrics of this scheduler. Each replica of `--dp-size` has its own rank as in SGLang's metrics: of
    gauges with the same labels, Prometheus would see the latest alone."""
    rank = compat.data_parallel_rank()
    return {
        "model_name": arguments.served_model_name(server_args),
        **({} if rank is None else {"dp_rank": str(rank)}),
    }


class Exported:
    """Metrics of the table that are registered with Prometheus. For one thread.

    Make it in the scheduler process after SGLang has set up its multiprocess directory. If prometheus_client were
    imported earlier, it would use value classes for a single process.
    """

    def __init__(self, names: Iterable[str], labels: Mapping[str, str]) -> None:
        """`labels`: the labels of all metrics, with their values."""
        self._labels = dict(labels)
        self._metrics: dict[str, Any] = {}
        self._children: dict[tuple[str, str], Any] = {}
        self._totals: dict[tuple[str, str], float] = {}
        for name in names:
            self.register(name, METRICS[name].values)

    def __contains__(self, name: str) -> bool:
        return name in self._metrics

    def register(self, name: str, values: Sequence[str] = ()) -> None:
        """Registers a metric. The `values` of its label are exported at once."""
        from prometheus_client import Counter, Gauge

        text, kind, label, _ = METRICS[name]
        names = [*self._labels, *([label] if label else [])]
        if kind == "gauge":
            self._metrics[name] = Gauge(f"agentspec:{name}", text, names, multiprocess_mode="mostrecent")
        else:
            self._metrics[name] = Counter(f"agentspec:{name}", text, names)
        for value in values if label else [""]:
            self._child(name, value)

    def set(self, name: str, amount: float, value: str = "") -> None:
        """Sets a gauge."""
        self._child(name, value).set(amount)

    def add(self, name: str, amount: float, value: str = "") -> None:
        """Adds to a counter."""
        self._child(name, value).inc(amount)

    def reach(self, name: str, total: float, value: str = "") -> None:
        """Raises a counter to a total that was counted elsewhere. It never goes down."""
        more = total - self._totals.get((name, value), 0.0)
        self._child(name, value).inc(max(more, 0.0))
        self._totals[name, value] = total

    def _child(self, name: str, value: str) -> Any:
        if (name, value) not in self._children:
            label = METRICS[name].label
            more = {label: value} if label else {}
            self._children[name, value] = self._metrics[name].labels(**self._labels, **more)
        return self._children[name, value]


class Counters:
    """The worker's counts by name and source. After `export` they are mirrored to Prometheus.

    Owned by one scheduler thread. Others read `snapshot`.
    """

    def __init__(self) -> None:
        self._counts: dict[str, dict[str, float]] = {name: {} for name in COUNTED}
        self._exported: Exported | None = None

    def add(self, name: str, amount: float, source: str = ALL_SOURCES) -> None:
        by_source = self._counts[name]
        by_source[source] = by_source.get(source, 0) + amount
        if self._exported is not None and amount:
            self._exported.add(name, amount, source)

    def total(self, name: str) -> float:
        return sum(self._counts[name].values())

    def snapshot(self) -> dict[str, object]:
        """The totals by name, and under `by_source` their split by source."""
        totals: dict[str, object] = {
            name: self.total(name) if name == "drafting_seconds" else int(self.total(name)) for name in self._counts
        }
        totals["by_source"] = {name: dict(by_source) for name, by_source in self._counts.items() if by_source}
        return totals

    def export(self, labels: Mapping[str, str]) -> None:
        """Registers the counts with Prometheus, with the values so far."""
        self._exported = Exported(COUNTED, labels)
        for name, by_source in self._counts.items():
            for source, amount in by_source.items():
                self._exported.add(name, amount, source)


class LabelledCounts:
    """Counts of one metric, split by a label whose values are known beforehand. After `export` they are mirrored to
    Prometheus. Owned by one thread. Others read `snapshot`.
    """

    def __init__(self, name: str, values: Sequence[str]) -> None:
        self._name = name
        self._counts = dict.fromkeys(values, 0)
        self._exported: Exported | None = None

    def add(self, value: str, amount: int = 1) -> None:
        """Adds to the count of a label's value. Raises KeyError for an unknown value: labels must be bounded."""
        self._counts[value] += amount
        if self._exported is not None:
            self._exported.add(self._name, amount, value)

    def snapshot(self) -> dict[str, int]:
        """The counts above zero, by value."""
        return {value: n for value, n in self._counts.items() if n}

    def export(self, labels: Mapping[str, str]) -> None:
        """Registers the counts with Prometheus, with the values so far."""
        self._exported = Exported((), labels)
        self._exported.register(self._name, list(self._counts))
        for value, n in self._counts.items():
            self._exported.add(self._name, n, value)


class ControlMetrics:
    """The controller's plans and the observed steps. For one thread."""

    def __init__(self, labels: Mapping[str, str]) -> None:
        self._exported = Exported(CONTROL, labels)

    def observe(self, plan: StepPlan, seconds: float, num_tokens: int) -> None:
        """Exports a verified step: its plan, its seconds (0 if not measured), and its number of written tokens."""
        exported = self._exported
        exported.set("step_width", float(plan.width))
        exported.set("step_budget", float(plan.num_nodes.sum()))
        exported.set("step_predicted_seconds", plan.seconds)
        exported.set("step_observed_seconds", seconds)
        exported.set("step_predicted_tokens", plan.expected_tokens)
        exported.set("step_observed_tokens", float(num_tokens))
        exported.add("step_plans", 1, plan.reason)
        if seconds > 0.0:
            exported.add("measured_steps", 1)
            exported.add("predicted_verify_seconds", plan.seconds)
            exported.add("observed_verify_seconds", seconds)
        exported.add("predicted_tokens", plan.expected_tokens)
        exported.add("observed_tokens", num_tokens)


class StateMetrics:
    """The state of the plugin and the sizes of its indexes. They are read every few seconds on a thread of their own,
    so that steps are not slowed down and an idle server reports them too."""

    def __init__(self, labels: Mapping[str, str], engine: Engine, breaker: Breaker) -> None:
        self._engine = engine
        self._breaker = breaker
        self._readers: dict[str, Callable[[], float]] = {}
        self._others: list[Callable[[], None]] = []
        self._exported = Exported(STATE, labels)
        self._exported.set("build_info", 1, agentspec.__version__)
        self.update()

    def start(self) -> None:
        threading.Thread(target=self._run, name="agentspec-metrics", daemon=True).start()

    def read(self, name: str, reader: Callable[[], float]) -> None:
        """Sets a gauge of the draft model to the result of `reader` from now on. It is called on another thread."""
        self._exported.register(name)
        self._readers[name] = reader

    def also(self, update: Callable[[], None]) -> None:
        """Calls `update` whenever the state is read, on another thread."""
        self._others.append(update)

    def update(self) -> None:
        """Exports the current state."""
        for update in self._others:
            update()
        stats, exported = self._engine.stats(), self._exported
        exported.set("breaker_open", int(self._breaker.is_open))
        for name in ("open_requests", "outputs", "output_tokens", "namespaces"):
            exported.set(name, getattr(stats, name))
        for name, reader in list(self._readers.items()):
            exported.set(name, reader())
        exported.set("memory_bytes", stats.request_bytes, "requests")
        exported.set("memory_bytes", stats.conversation_bytes, "conversations")
        exported.set("memory_bytes", stats.global_bytes, "outputs")
        exported.reach("breaker_openings", self._breaker.num_openings)
        exported.reach("evicted_outputs", stats.evicted_outputs)
        exported.reach("spared_prompt_tokens", stats.spared_tokens)

    def _run(self) -> None:
        tick = threading.Event()
        while not tick.wait(_SECONDS):
            try:
                self.update()
            except Exception:
                logger.exception("agentspec could not update its Prometheus metrics")


class StoreMetrics:
    """Exports `Sharing.health()`. For one thread."""

    def __init__(self, labels: Mapping[str, str]) -> None:
        self._exported = Exported(STORE, labels)

    def __call__(self, health: Mapping[str, Any]) -> None:
        lag, exported = health["lag_seconds"], self._exported
        exported.set("store_connected", int(health["connected"]))
        exported.set("store_lag_seconds", lag["p99"] if lag else 0.0)
        exported.set("store_queued_outputs", health["queued_outputs"])
        exported.set("store_bytes", health["stored_bytes"])
        exported.set("store_namespaces", health["stored_namespaces"])
        for name, metric in STORE.items():
            if metric.kind == "counter":
                exported.reach(name, int(health[name.removeprefix("store_")]))


class AdminMetrics:
    """Exports the desk's corpora and jobs whenever it is called. For one thread."""

    def __init__(self, labels: Mapping[str, str], desk: AdminDesk) -> None:
        self._desk = desk
        self._exported = Exported(ADMIN, labels)

    def __call__(self) -> None:
        corpora, counts = self._desk.corpora.all(), self._desk.jobs.counts()
        self._exported.set("corpora", len(corpora))
        self._exported.set("corpora_bytes", sum(corpus.num_bytes for corpus in corpora))
        for state in OPEN:
            self._exported.set("jobs", counts[state], state)
        for state in ENDED:
            self._exported.reach("ended_jobs", counts[state], state)
