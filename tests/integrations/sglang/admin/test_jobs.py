"""Jobs run one after another, and each is reported until long after it has ended."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest
from engine_texts import ids, keep
from managed_engine import A, B, ManagedEngine
from replicas import SCOPE, Replica, until

from agentspec.errors import ConfigError, ManagementError, StoreUnavailableError
from agentspec.integrations.sglang.admin.jobs import Job, JobCancelled, Jobs
from agentspec.store.urls import open_store

pytest.importorskip("starlette", reason="`make setup` installs it")


def ended(jobs: Jobs, job_id: str) -> dict[str, Any]:
    deadline = time.monotonic() + 30.0
    while not jobs.find(job_id)["finished"]:
        assert time.monotonic() < deadline
        time.sleep(0.002)
    return jobs.find(job_id)


def test_jobs_run_in_their_order_and_tell_what_they_came_to() -> None:
    jobs, ran = Jobs(), []

    def work(job: Job) -> dict[str, Any]:
        assert jobs.find(job.id)["state"] == "running"
        ran.append(job.id)
        return {"number": len(ran)}

    for name in "abc":
        jobs.submit(Job(name, "kind", "subject", work, can_stop=True))
    assert ended(jobs, "c")["result"] == {"number": 3} and ran == ["a", "b", "c"]
    assert [job["id"] for job in jobs.all()] == ["c", "b", "a"]
    assert jobs.counts() == {"queued": 0, "running": 0, "done": 3, "failed": 0, "cancelled": 0}


@pytest.mark.parametrize(
    ("error", "told"),
    [(ConfigError("it must be so"), "it must be so"), (KeyError("secret text"), "KeyError; the server's log has more")],
)
def test_a_failure_is_told_and_the_next_job_runs(error: Exception, told: str) -> None:
    jobs = Jobs()

    def work(job: Job) -> dict[str, Any]:
        raise error

    jobs.submit(Job("a", "kind", "subject", work, can_stop=True))
    jobs.submit(Job("b", "kind", "subject", lambda _: {}, can_stop=True))
    assert ended(jobs, "b")["state"] == "done"
    failed = jobs.find("a")
    assert (failed["state"], failed["error"], failed["result"]) == ("failed", told, None)


def test_jobs_that_wait_or_listen_can_be_cancelled_and_what_waits_has_a_bound() -> None:
    jobs, begun, abandoned = Jobs(most_waiting=2), threading.Event(), []

    def work(job: Job) -> dict[str, Any]:
        begun.set()
        assert job.stop.wait(30.0)
        raise JobCancelled

    jobs.submit(Job("a", "kind", "subject", work, can_stop=True))
    assert begun.wait(30.0)
    for name in "bcd":
        job = Job(name, "kind", "subject", work, can_stop=True, abandon=lambda name=name: abandoned.append(name))
        if name != "d":
            jobs.submit(job)
            continue
        with pytest.raises(ManagementError, match="at most 2 jobs may wait"):
            jobs.submit(job)
    assert jobs.cancel("b")["state"] == "cancelled" and abandoned == ["d", "b"]
    jobs.cancel("a")
    assert ended(jobs, "a")["state"] == "cancelled"
    jobs.cancel("c")
    assert ended(jobs, "c")["state"] == "cancelled"
    with pytest.raises(ManagementError, match="has ended"):
        jobs.cancel("c")
    with pytest.raises(ManagementError, match="there is no job d") as refused:
        jobs.find("d")
    assert refused.value.status == 404


def test_only_the_latest_that_ended_are_known() -> None:
    jobs = Jobs(most_ended=3)
    for number in range(8):
        jobs.submit(Job(str(number), "kind", "subject", lambda _: {}, can_stop=False))
        ended(jobs, str(number))
    assert [job["id"] for job in jobs.all()] == ["7", "6", "5"] and jobs.counts()["done"] == 8


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
