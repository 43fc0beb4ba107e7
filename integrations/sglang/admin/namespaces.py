"""Lists what is kept of each namespace, and forgets it. Tenants are known by their hashed ids only."""

from __future__ import annotations

import re
import threading
import time
from collections import OrderedDict
from collections.abc import Callable

from agentspec.engine import Engine, NamespaceStats
from agentspec.errors import ManagementError, StoreError
from agentspec.integrations.sglang.admin.jobs import Job
from agentspec.integrations.sglang.admin.wire import JsonObject
from agentspec.store.replication.interfaces import OutputSharing

NAMESPACE = re.compile(r"[0-9a-f]{32}")
_MOST_TIMES = 1 << 16


class LastUse:
    """The time of the last request of each of the most recent namespaces. One thread writes; any thread may read."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._times: OrderedDict[str, float] = OrderedDict()

    def touch(self, namespace: str) -> None:
        with self._lock:
            self._times[namespace] = time.time()
            self._times.move_to_end(namespace)
            if len(self._times) > _MOST_TIMES:
                self._times.popitem(last=False)

    def of(self, namespace: str) -> float | None:
        """Seconds since 1970; None if the namespace had no request since the server started."""
        with self._lock:
            return self._times.get(namespace)

    def forget(self, namespace: str) -> None:
        with self._lock:
            self._times.pop(namespace, None)


class Namespaces:
    """Lists and forgets namespaces. Safe to use from any thread."""

    def __init__(
        self, engine: Engine, sharing: OutputSharing | None, last_use: LastUse, corpora_of: Callable[[str], list[str]]
    ) -> None:
        """`corpora_of`: returns the names of the corpora that a namespace may draft from."""
        self._engine = engine
        self._sharing = sharing
        self._last_use = last_use
        self._corpora_of = corpora_of

    def all(self, most: int) -> JsonObject:
        """At most `most` namespaces, those with the most memory first."""
        found = [stats for stats in self._engine.namespaces() if NAMESPACE.fullmatch(stats.name)]
        found.sort(key=lambda stats: (-stats.num_bytes, stats.name))
        return {"total": len(found), "namespaces": [self._shown(stats) for stats in found[:most]]}

    def find(self, namespace: str) -> JsonObject:
        """What is kept of a namespace. Raises ManagementError if nothing is known of it."""
        stats = next((stats for stats in self._engine.namespaces() if stats.name == namespace), None)
        if stats is None and self._last_use.of(namespace) is None:
            raise ManagementError(
                "nothing is kept of this namespace, and it had no request since the server started; check the tenant's "
                "name and --agentspec-namespace-from",
                404,
            )
        shown = self._shown(stats or NamespaceStats(namespace, 0, 0, 0))
        return {**shown, "corpora": self._corpora_of(namespace)}

    def forgetting(self, namespace: str) -> Callable[[Job], JsonObject]:
        """The work of a job that forgets a namespace's finished outputs, here, in the store and on other replicas."""

        def work(job: Job) -> JsonObject:
            stats = next((stats for stats in self._engine.namespaces() if stats.name == namespace), None)
            job.progress = {"stage": "memory"}
            self._engine.delete_namespace(namespace)
            self._last_use.forget(namespace)
            stored = None
            if self._sharing is not None:
                job.progress = {"stage": "store"}
                try:
                    deleted = self._sharing.forget(namespace)
                except StoreError as error:
                    raise ManagementError(
                        "the namespace was deleted from this server's memory, but not from the store and other "
                        f"replicas: {error}; send the request again"
                    ) from None
                stored = {"entries": deleted.entries, "snapshots": deleted.snapshots}
            return {
                "namespace": namespace,
                "outputs": stats.num_outputs if stats else 0,
                "tokens": stats.num_tokens if stats else 0,
                "store": stored,
            }

        return work

    def _shown(self, stats: NamespaceStats) -> JsonObject:
        return {
            "namespace": stats.name,
            "outputs": stats.num_outputs,
            "tokens": stats.num_tokens,
            "bytes": stats.num_bytes,
            "last_used": self._last_use.of(stats.name),
        }
