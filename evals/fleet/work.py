"""What a fleet is asked, and how its answers are counted."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count, cycle, islice
from typing import Any

from agentspec.errors import ConfigError
from agentspec.evals.clients.client import PreparedSender, Reply
from agentspec.evals.run.calls import Asking, Done, closed_loop
from agentspec.evals.workloads.task import Unit
from agentspec.integrations.servers.server import RunningServer
from agentspec.workflows.text_to_sql import draw_questions

TENANTS = 4
HANG_SECONDS = 120.0
# A client whose call failed waits for this long.
_RETRY_SECONDS = 0.5
_COUNTED = ("calls", "lost", "changed", "hung", "tokens", "steps")


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
        for name in _COUNTED:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.seconds += other.seconds
        self.errors += other.errors

    def figures(self) -> dict[str, Any]:
        return {
            **{name: getattr(self, name) for name in _COUNTED},
            "accept_length": round(self.accept_length, 3),
            "slowest_call_seconds": round(max(self.seconds, default=0.0), 3),
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
        return await self.send_encoded(json.dumps({**body, **self._tenant}).encode())


class Asker:
    """Asks questions, and compares every answer with those of one plain server.

    Args:
        asking: How servers are asked.
        questions: Those of all kinds.
        taught: Questions of a kind that a replica learns from.
        asked: Questions of that kind that are asked after them.
    """

    def __init__(
        self, asking: Asking, questions: Sequence[Unit], taught: Sequence[Unit] = (), asked: Sequence[Unit] = ()
    ) -> None:
        self.questions, self.taught, self.asked = questions, taught, asked
        self._asking = asking
        self._answers: dict[Unit, list[Any]] = {}

    @staticmethod
    def of_agents(asking: Asking, number: int, of_a_kind: int, seed: int) -> Asker:
        """Asks the agents' questions: `number` of all kinds, and for learning and asking `of_a_kind` about one database."""
        drawn = draw_questions(dict(asking.databases), split="heldout", seed=seed)
        questions = list(islice(drawn, number))
        kind = questions[0].database
        alike = list(islice((each for each in drawn if each.database == kind), 2 * of_a_kind))
        return Asker(asking, questions, alike[:of_a_kind], alike[of_a_kind:])

    def learn_answers(self, plain: RunningServer, clients: int) -> Tally:
        """Asks one plain server everything; raises ConfigError if it loses a call, because nothing can be compared then."""
        told = self.ask(plain.url, [*self.questions, *self.taught, *self.asked], clients)
        if told.lost:
            raise ConfigError(f"the plain server lost calls, so nothing can be compared: {told.figures()['errors']}")
        return told

    def ask(self, url: str, questions: Sequence[Unit], clients: int, tenant: str = "") -> Tally:
        """Asks questions at a URL. The first complete answers to a question are the expected ones from then on."""

        async def work() -> list[Done]:
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


@contextmanager
def traffic(asker: Asker, router: RunningServer, clients: int) -> Iterator[Tally]:
    """Clients that ask a fleet through its router while a `with` block runs, for several tenants in turn. Gives their
    counts, which are complete after the block."""
    tally, stopping = Tally(), threading.Event()
    questions = cycle(asker.questions)

    def run() -> None:
        for number in count():
            if stopping.is_set():
                return
            some = list(islice(questions, clients))
            counted = asker.ask(router.url, some, clients, f"tenant-{number % TENANTS}")
            tally.add(counted)
            if counted.lost:
                stopping.wait(_RETRY_SECONDS)

    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(run)
        try:
            yield tally
        finally:
            stopping.set()
        running.result()
