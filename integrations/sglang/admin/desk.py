"""Answers the commands of the HTTP process in the process that drafts.

A command is handled on the scheduler's thread between two steps. So it only reads state or submits a job. Work that
reads a file or waits is a job.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path

from agentspec.engine import Engine
from agentspec.errors import ConfigError, ManagementError
from agentspec.integrations.sglang.admin.corpora import Corpora, Served
from agentspec.integrations.sglang.admin.jobs import Job, Jobs
from agentspec.integrations.sglang.admin.namespaces import NAMESPACE, LastUse, Namespaces
from agentspec.integrations.sglang.admin.wire import JsonObject
from agentspec.store.replication.interfaces import OutputSharing

logger = logging.getLogger("agentspec")


class AdminDesk:
    """Answers commands. There is one in each data-parallel rank, on its first tensor-parallel rank, which drafts."""

    def __init__(
        self,
        engine: Engine,
        served: Served,
        *,
        corpora_at_start: Sequence[str],
        sharing: OutputSharing | None,
        namespace_of: Callable[[str], str],
    ) -> None:
        """`namespace_of`: returns a tenant's namespace for its name."""
        self.last_use = LastUse()
        self.jobs = Jobs()
        self.corpora = Corpora(engine, served, corpora_at_start)
        self._engine = engine
        self._most_bytes = served.most_bytes
        self._namespaces = Namespaces(engine, sharing, self.last_use, self._corpora_of)
        self._namespace_of = namespace_of
        self._commands: dict[str, Callable[[JsonObject], JsonObject]] = {
            "stats": self._stats,
            "corpora": lambda _: {"corpora": [corpus.shown() for corpus in self.corpora.all()]},
            "corpus": lambda command: self.corpora.find(command["name"]).shown(),
            "add_corpus": self._add_corpus,
            "remove_corpus": lambda command: {"removed": self.corpora.remove(command["name"]).shown()},
            "namespaces": lambda command: self._namespaces.all(command["most"]),
            "namespace": lambda command: self._namespaces.find(self._chosen(command)),
            "forget_namespace": self._forget_namespace,
            "jobs": lambda _: {"jobs": self.jobs.all()},
            "job": lambda command: self.jobs.find(command["id"]),
            "cancel_job": lambda command: self.jobs.cancel(command["id"]),
        }

    def answer(self, command: JsonObject) -> JsonObject:
        """Carries out a command. Returns an HTTP `status` and a `body`. Raises nothing."""
        try:
            body = self._commands[command["do"]](command)
            return {"status": 202 if "job" in body else 200, "body": body}
        except ManagementError as error:
            return {"status": error.status, "body": {"error": str(error)}}
        except ConfigError as error:
            return {"status": 400, "body": {"error": str(error)}}
        except Exception:
            logger.exception("agentspec could not carry out a command of its administrator")
            return {"status": 500, "body": {"error": "this failed; the server's log says why"}}

    def _stats(self, command: JsonObject) -> JsonObject:
        del command
        stats = self._engine.stats()
        return {
            "engine": {name: getattr(stats, name) for name in stats.__slots__},
            "corpora": {
                "number": stats.corpora,
                "bytes": self.corpora.num_bytes(),
                "room_bytes": self.corpora.room(),
                "most_bytes": self._most_bytes,
            },
            "jobs": self.jobs.counts(),
        }

    def _add_corpus(self, command: JsonObject) -> JsonObject:
        namespaces = tuple(
            dict.fromkeys([*command["namespaces"], *(self._namespace_of(tenant) for tenant in command["tenants"])])
        )
        # For the engine, no namespaces means all. Nobody may get that by leaving something out.
        if bool(namespaces) == command["all"]:
            raise ManagementError("a corpus needs either `all` as true, or tenants or namespaces; give one of these")
        name = command["name"]
        if self._engine.config.rule != "calibrated":
            raise ManagementError(
                "corpora need a server without the baseline suffixdecoding, which drafts from none", 409
            )
        work, abandon = self.corpora.adding(name, namespaces, Path(command["path"]), is_upload=command["upload"])
        return self._submit(Job(command["id"], "add_corpus", name, work, can_stop=True, abandon=abandon))

    def _forget_namespace(self, command: JsonObject) -> JsonObject:
        namespace = self._chosen(command)
        work = self._namespaces.forgetting(namespace)
        return self._submit(Job(command["id"], "forget_namespace", namespace, work, can_stop=False))

    def _submit(self, job: Job) -> JsonObject:
        self.jobs.submit(job)
        return {"job": job.shown()}

    def _chosen(self, command: JsonObject) -> str:
        tenant = command.get("tenant")
        namespace: str = command["namespace"] if tenant is None else self._namespace_of(tenant)
        if not NAMESPACE.fullmatch(namespace):
            raise ManagementError("a namespace must be 32 hexadecimal digits, as GET /agentspec/namespaces shows them")
        return namespace

    def _corpora_of(self, namespace: str) -> list[str]:
        return [corpus.name for corpus in self.corpora.all() if corpus.serves(namespace)]
