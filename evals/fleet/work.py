"""What a fleet is asked, and how its answers are counted."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from types import TracebackType
from typing import Any, Self

from agentspec.evals.clients.client import PreparedSender, Reply
from agentspec.evals.run.calls import Asking, closed_loop
from agentspec.integrations.servers.server import RunningServer
from agentspec.workflows.text_to_sql import Question, draw_questions

TENANTS = 4
HANG_SECONDS = 120.0
# A client whose call failed waits for this long.
_RETRY_SECONDS = 0.5


@dataclass(kw_only=True)
class Tally:
    """Counts of calls. They can be added up."""

    calls: int = 0
    lost: int = 0
    """Calls without an answer."""
    changed: int = 0
    """Questions that were answered otherwise than by one plain server."""
    tokens: int = 0
    """Decoded tokens, without those that come from prefills."""
    steps: int = 0
    hung: int = 0
    """Calls that took longer than HANG_SECONDS, whether or not there was an answer then."""
    seconds: list[float] = field(default_factory=list)
    """Of each call."""
    errors: list[str] = field(default_factory=list)

    @property
    def accept_length(self) -> float:
        return self.tokens / self.steps if self.steps else 0.0

    def count(self, reply: Reply) -> None:
        self.calls += 1
        self.seconds.append(reply.seconds)
        self.hung += reply.seconds > HANG_SECONDS
        if reply.error:
            self.lost += 1
            self.errors.append(reply.error[:200])
        else:
            self.tokens += reply.tokens - 1
            self.steps += reply.steps

    def add(self, other: Tally) -> None:
        for name in ("calls", "lost", "changed", "hung", "tokens", "steps"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.seconds += other.seconds
        self.errors += other.errors

    def figures(self) -> dict[str, Any]:
        slowest = max(self.seconds, default=0.0)
        return {
            **{name: getattr(self, name) for name in ("calls", "lost", "changed", "hung", "tokens", "steps")},
            "accept_length": round(self.accept_length, 3),
            "slowest_call_seconds": round(slowest, 3),
            "errors": sorted(set(self.errors))[:5],
        }


class FleetSender(PreparedSender):
    """Sends requests of a tenant. Answers come whole, because the router can send such a request again when a replica
    fails, but cannot take back what it has streamed."""

    def __init__(self, url: str, tenant: str) -> None:
        super().__init__(url, ())
        self._tenant = {"extra_key": tenant} if tenant else {}

    async def send(self, body: Mapping[str, Any]) -> Reply:
        """As Sender.send."""
        self._encoded[id(body)] = json.dumps({**body, **self._tenant}).encode()
        try:
            return await super().send(body)
        finally:
            del self._encoded[id(body)]


class Asker:
    """Asks the agents' questions, and compares every answer with those of one plain server.

    Args:
        asking: How servers are asked.
        number: Number of questions of all kinds.
        of_a_kind: Number of questions about one database that a replica learns from, and of those asked after them.
        seed: Of the questions.
    """

    def __init__(self, asking: Asking, number: int, of_a_kind: int, seed: int) -> None:
        self._asking = asking
        drawn = draw_questions(dict(asking.databases), split="heldout", seed=seed)
        self.questions = list(islice(drawn, number))
        kind = self.questions[0].database
        alike = list(islice((each for each in drawn if each.database == kind), 2 * of_a_kind))
        self.taught, self.asked = alike[:of_a_kind], alike[of_a_kind:]
        self._answers: dict[Question, list[Any]] = {}

    def learn_answers(self, plain: RunningServer, clients: int) -> Tally:
        """Asks one plain server everything."""
        every = [*self.questions, *self.taught, *self.asked]
        return self.ask(plain.url, every, clients)

    def ask(self, url: str, questions: Sequence[Question], clients: int, tenant: str = "") -> Tally:
        """Asks questions at a URL. The first complete answers to a question are the expected ones from then on."""

        async def work() -> list[Any]:
            async with FleetSender(url, tenant) as sender:
                return await closed_loop(sender, questions, clients, self._asking)

        tally = Tally()
        for question, done in zip(questions, asyncio.run(work()), strict=True):
            for reply in done.replies:
                tally.count(reply)
            if not any(reply.error for reply in done.replies):
                outputs = [reply.output for reply in done.replies]
                tally.changed += self._answers.setdefault(question, outputs) != outputs
        return tally


class Traffic:
    """Clients that ask a fleet through its router while a `with` block runs, for several tenants in turn."""

    def __init__(self, asker: Asker, router: RunningServer, clients: int) -> None:
        self.tally = Tally()
        self._asker, self._url, self._clients = asker, router.url, clients
        self._stopping = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="traffic", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopping.set()
        self._thread.join()
        if self._error is not None and error is None:
            raise self._error

    def _run(self) -> None:
        try:
            for number, some in enumerate(_rounds(self._asker.questions, self._clients)):
                if self._stopping.is_set():
                    return
                tally = self._asker.ask(self._url, some, self._clients, f"tenant-{number % TENANTS}")
                self.tally.add(tally)
                if tally.lost:
                    self._stopping.wait(_RETRY_SECONDS)
        except BaseException as error:  # noqa: BLE001 - __exit__ raises it
            self._error = error


def _rounds(questions: Sequence[Question], size: int) -> Iterable[list[Question]]:
    """Endless rounds of `size` questions, in order."""
    at = 0
    while True:
        yield [questions[(at + offset) % len(questions)] for offset in range(size)]
        at += size
