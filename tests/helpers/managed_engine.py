"""An engine with the desk that manages it and the HTTP endpoints of the desk, connected without a server."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from byte_tokenizer import write_byte_tokenizer
from engine_texts import by_counts, drafted, ids
from replicas import until
from starlette.applications import Starlette
from starlette.testclient import TestClient

from agentspec import Engine, EngineConfig
from agentspec.fingerprint import fingerprint
from agentspec.integrations.sglang.admin.corpora import Served
from agentspec.integrations.sglang.admin.desk import AdminDesk
from agentspec.integrations.sglang.admin.endpoints import Endpoints
from agentspec.store.namespaces import namespace_id
from agentspec.store.replication.sharing import Sharing

KEY = "the key"
A, B = namespace_id("acme", None), namespace_id("bolt", None)


class ManagedEngine:
    """An engine whose tokens are bytes, with its desk and a client of its endpoints."""

    def __init__(
        self,
        folder: Path,
        *,
        key: str = KEY,
        corpora_bytes: int = 1 << 24,
        upload_bytes: int = 1 << 20,
        files: str = "",
        ranks: int = 1,
        engine: Engine | None = None,
        sharing: Sharing | None = None,
        at_start: Sequence[str] = (),
    ) -> None:
        path = write_byte_tokenizer(folder)
        config = EngineConfig(
            tokenizer=fingerprint(path), vocab_size=257, estimates=by_counts(), max_draft_tokens=8, mode="chain"
        )
        self.engine = engine or Engine(config)
        for corpus in at_start:
            self.engine.attach_corpus(corpus)
        served = Served(
            tokenizer=str(path), identity=self.engine.config.tokenizer, vocab_size=257, most_bytes=corpora_bytes
        )
        self.desk = AdminDesk(
            self.engine,
            served,
            corpora_at_start=at_start,
            sharing=sharing,
            namespace_of=lambda tenant: namespace_id(tenant, None),
        )
        self._ranks = ranks
        app = Starlette()
        Endpoints(self._ask, key=key, upload_bytes=upload_bytes, folder=files).install(app)
        self.client = TestClient(app, headers={"Authorization": f"Bearer {KEY}"})

    async def _ask(self, command: dict[str, Any]) -> list[dict[str, Any]]:
        answer = self.desk.answer(json.loads(json.dumps(command)))
        return [json.loads(json.dumps(answer))] * self._ranks

    def post(self, path: str, body: Any) -> Any:
        return self.client.post(f"/agentspec{path}", json=body)

    def ended(self, answer: Any) -> dict[str, Any]:
        """Waits until the job that an answer names has ended, and returns the job."""
        assert answer.status_code == 202, answer.text
        return self.ended_job(answer.json()["job"]["id"])

    def ended_job(self, job_id: str) -> dict[str, Any]:
        def job() -> dict[str, Any]:
            return self.client.get(f"/agentspec/jobs/{job_id}").json()

        until(lambda: job()["finished"], 60.0)
        return job()

    def add(self, name: str, documents: Sequence[str | list[int]], **to: Any) -> dict[str, Any]:
        """Adds a corpus; returns its job once the corpus is attached or the job has failed."""
        return self.ended(self.post("/corpora", {"name": name, "documents": list(documents), **to}))

    def drafts(self, text: str, namespace: str) -> str:
        """Text that is drafted after `text` for a request of a namespace."""
        return bytes(drafted(self.engine, ids(*text.encode()), namespace)).decode()
