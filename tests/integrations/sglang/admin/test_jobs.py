"""Jobs run one after another, and each is reported until long after it has ended."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from replicas import until

from agentspec.errors import ConfigError, ManagementError
from agentspec.integrations.sglang.admin.jobs import Job, JobCancelled, Jobs


def ended(jobs: Jobs, job_id: str) -> dict[str, Any]:
    until(lambda: jobs.find(job_id)["finished"])
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
