"""Work that takes longer than a request. Jobs run one after another on a thread of their own and have ids."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from agentspec.errors import AgentspecError, ManagementError
from agentspec.integrations.sglang.admin.wire import JsonObject

logger = logging.getLogger("agentspec")

State = Literal["queued", "running", "done", "failed", "cancelled"]
OPEN: tuple[State, ...] = ("queued", "running")
ENDED: tuple[State, ...] = ("done", "failed", "cancelled")


class JobCancelled(Exception):
    """Raised in a job's work to end it after it was cancelled."""


@dataclass(slots=True, eq=False)
class Job:
    """A piece of work. The jobs' thread sets everything but `stop`; others read a copy, shown()."""

    id: str
    kind: str
    """"add_corpus" or "forget_namespace"."""
    subject: str
    """The corpus's name or the namespace's id."""
    work: Callable[[Job], JsonObject]
    """Returns the result. If `can_stop`, it checks `stop` from time to time."""
    can_stop: bool
    abandon: Callable[[], None] = lambda: None
    """Called instead of `work` if the job is cancelled before it runs."""
    state: State = "queued"
    created: float = field(default_factory=time.time)
    """Times are in seconds since 1970."""
    started: float | None = None
    finished: float | None = None
    progress: JsonObject = field(default_factory=dict)
    result: JsonObject | None = None
    error: str | None = None
    stop: threading.Event = field(default_factory=threading.Event)

    def shown(self) -> JsonObject:
        return {
            "id": self.id,
            "kind": self.kind,
            "subject": self.subject,
            "state": self.state,
            "created": self.created,
            "started": self.started,
            "finished": self.finished,
            "progress": dict(self.progress),
            "result": self.result,
            "error": self.error,
        }


class Jobs:
    """All jobs of this process: the waiting ones, the running one, and the latest that ended. For any thread."""

    def __init__(self, *, most_waiting: int = 16, most_ended: int = 256) -> None:
        self._most_waiting = most_waiting
        self._most_ended = most_ended
        self._lock = threading.Condition()  # guards all below
        self._jobs: dict[str, Job] = {}  # in the order of their submission
        self._waiting: deque[Job] = deque()
        self._ended: dict[str, int] = dict.fromkeys(ENDED, 0)
        self._thread: threading.Thread | None = None

    def submit(self, job: Job) -> None:
        """Adds a job to the end of the queue. Raises ManagementError if too many jobs wait."""
        with self._lock:
            if len(self._waiting) >= self._most_waiting:
                job.abandon()
                raise ManagementError(
                    f"at most {self._most_waiting} jobs may wait, and the queue is full; try again when some are done",
                    429,
                )
            self._jobs[job.id] = job
            self._waiting.append(job)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="agentspec-admin", daemon=True)
                self._thread.start()
            self._lock.notify()

    def find(self, job_id: str) -> JsonObject:
        """The state of a job. Raises ManagementError if there is no such job, or it is not remembered any more."""
        with self._lock:
            return self._job(job_id).shown()

    def all(self) -> list[JsonObject]:
        """The states of all remembered jobs, the latest first."""
        with self._lock:
            return [job.shown() for job in reversed(self._jobs.values())]

    def cancel(self, job_id: str) -> JsonObject:
        """Removes a job from the queue, or asks the running one to stop. Its state changes once it has stopped. Raises
        ManagementError if there is no such job, it has ended, or it cannot be stopped."""
        with self._lock:
            job = self._job(job_id)
            if job.state == "queued":
                self._waiting.remove(job)
                job.abandon()
                self._end(job, "cancelled")
            elif job.state != "running":
                raise ManagementError(f"job {job_id} has ended: it is {job.state}", 409)
            elif not job.can_stop:
                raise ManagementError(f"a running job of the kind {job.kind} cannot be stopped; it is short", 409)
            else:
                job.stop.set()
            return job.shown()

    def counts(self) -> dict[str, int]:
        """Number of jobs by state: the current ones for `queued` and `running`, all since the start for the others."""
        with self._lock:
            counts: dict[str, int] = {state: sum(job.state == state for job in self._jobs.values()) for state in OPEN}
            return counts | self._ended

    def _job(self, job_id: str) -> Job:
        if job_id not in self._jobs:
            raise ManagementError(
                f"there is no job {job_id}; only the last {self._most_ended} ended jobs are kept", 404
            )
        return self._jobs[job_id]

    def _run(self) -> None:
        while True:
            with self._lock:
                while not self._waiting:
                    self._lock.wait()
                job = self._waiting.popleft()
                job.state, job.started = "running", time.time()
            state, error, result = self._outcome(job)
            with self._lock:
                job.error, job.result = error, result
                self._end(job, state)

    def _outcome(self, job: Job) -> tuple[State, str | None, JsonObject | None]:
        try:
            return "done", None, job.work(job)
        except JobCancelled:
            return "cancelled", None, None
        except (AgentspecError, OSError) as error:
            return "failed", str(error), None
        except Exception as error:
            logger.exception("agentspec: a job of the kind %s failed", job.kind)
            return "failed", f"{type(error).__name__}; the server's log has more", None

    def _end(self, job: Job, state: State) -> None:
        job.state, job.finished = state, time.time()
        self._ended[state] += 1
        # Releases the objects that the work refers to.
        job.work, job.abandon = _nothing, lambda: None
        over = [old.id for old in self._jobs.values() if old.state not in OPEN][: -self._most_ended]
        for old in over:
            del self._jobs[old]


def _nothing(job: Job) -> JsonObject:
    del job
    return {}
