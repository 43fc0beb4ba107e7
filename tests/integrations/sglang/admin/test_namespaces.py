"""Reports on namespaces, and that forgotten outputs are gone from memory, from the store and from replicas."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from engine_texts import ids, keep
from managed_engine import A, B, ManagedEngine
from replicas import SCOPE, Replica, until

from agentspec.errors import StoreUnavailableError
from agentspec.store.urls import open_store

pytest.importorskip("starlette", reason="`make setup` installs it")


def test_namespaces_are_told_by_their_ids_with_what_they_hold(tmp_path: Path) -> None:
    managed = ManagedEngine(tmp_path)
    for namespace, text in (
        (A, b"select name from singer"),
        (A, b"select age"),
        (B, b"insert"),
        ("private:x", b"none"),
    ):
        keep(managed.engine, ids(*text), namespace)
    managed.engine.flush()
    began = time.time()
    managed.desk.last_use.touch(B)
    listed = managed.client.get("/agentspec/namespaces").json()
    assert listed["total"] == 2 and [of["namespace"] for of in listed["namespaces"]] == [A, B]
    assert [(of["outputs"], of["tokens"]) for of in listed["namespaces"]] == [(2, 33), (1, 6)]
    assert listed["namespaces"][0]["last_used"] is None and listed["namespaces"][1]["last_used"] >= began
    assert len(managed.client.get("/agentspec/namespaces?limit=1").json()["namespaces"]) == 1
    for limit in ("0", "x", "100000000"):
        assert managed.client.get(f"/agentspec/namespaces?limit={limit}").status_code == 400

    by_name = managed.post("/namespaces/stats", {"tenant": "acme"}).json()
    assert by_name == managed.client.get(f"/agentspec/namespaces/{A}").json()
    assert by_name["outputs"] == 2 and by_name["corpora"] == [] and "acme" not in str(by_name)
    assert managed.post("/namespaces/stats", {"tenant": "nobody"}).status_code == 404
    assert managed.client.get("/agentspec/namespaces/private:x").status_code == 400


def test_what_is_forgotten_is_gone_and_the_rest_stays(tmp_path: Path) -> None:
    managed = ManagedEngine(tmp_path)
    for namespace in (A, B):
        keep(managed.engine, ids(*b"select name from singer"), namespace)
    managed.engine.flush()
    # This open request has already matched text of the namespace.
    managed.engine.open("open", ids(*b"select n"), A)
    assert len(managed.engine.draft(["open"]).tokens) > 1
    job = managed.ended(managed.post("/namespaces/forget", {"tenant": "acme"}))
    assert job["state"] == "done" and job["subject"] == A and "acme" not in str(job)
    assert job["result"] == {"namespace": A, "outputs": 1, "tokens": 23, "store": None}
    assert len(managed.engine.draft(["open"]).tokens) == 1 and managed.drafts("na", A) == ""
    assert managed.drafts("na", B) == "me from "
    assert managed.ended(managed.client.delete(f"/agentspec/namespaces/{B}"))["state"] == "done"
    assert managed.drafts("select n", B) == ""


def test_the_store_and_other_replicas_forget_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_store(f"sqlite:///{tmp_path}/store.sqlite3", SCOPE)
    with Replica(store) as one, Replica(store) as other:
        managed = ManagedEngine(tmp_path, engine=one.engine, sharing=one.sharing)
        for namespace in (A, B):
            one.finish(f"of-{namespace}", [5, 6, 7, 8], namespace)
        until(lambda: other.num_outputs() == 2)

        def fails(*_: object) -> None:
            raise StoreUnavailableError("the connection was lost")

        with monkeypatch.context() as patch:
            patch.setattr(store, "append", fails)
            failed = managed.ended(managed.post("/namespaces/forget", {"tenant": "acme"}))
        assert failed["state"] == "failed" and "the connection was lost; send the request again" in failed["error"]
        assert one.drafts([5], A) == [] and other.drafts([5], A) == [6, 7, 8]

        job = managed.ended(managed.post("/namespaces/forget", {"tenant": "acme"}))
        assert job["result"]["store"] == {"entries": 1, "snapshots": 0}
        until(lambda: other.num_outputs() == 1)
        assert other.drafts([5], A) == [] and other.drafts([5], B) == one.drafts([5], B) == [6, 7, 8]
        assert store.scan(A) == [] and len(store.scan(B)) == 1
