"""Requests that clients abort while they wait or run: none may hang or stay open, and no answer may change."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from agentspec.errors import ServerError
from agentspec.evals.parity.client import Answer, ParityClient, ask, together
from agentspec.evals.parity.requests import Ask, Round
from agentspec.evals.parity.rows import difference, first_difference
from agentspec.integrations.servers.server import RunningServer

CLIENTS = 16
CLOSE_SECONDS = 20.0
"""Time in which aborted requests have to be closed after the last answer."""
# How a request ends, with its frequency out of 12. A client aborts by a separate request, or by hanging up: at once, after a
# while, or when the first tokens have come.
_ENDS = ("answered",) * 4 + ("aborted",) * 3 + ("aborted at once",) + ("hung up",) * 2 + ("hung up at an event",) * 2
_LONGEST_WAIT = 0.6


@dataclass(slots=True)
class AbortReport:
    """The results of the requests."""

    cut_short: int = 0
    """Answers that the server ended because of an abort."""
    whole: int = 0
    """Answers that were compared as a whole."""
    first_difference: str = ""

    def judge(self, ask: Ask, end: str, expected: Answer, got: Answer) -> None:
        """Compares an answer: a whole one must be the expected one, and one that was cut short must agree with it as far as
        both go."""
        if not got.status:
            return
        reason = got.choices[0].finish_reason.get("type") if got.choices else None
        problem = ""
        if end.startswith("aborted") and (reason == "abort" or got.status != expected.status):
            self.cut_short += 1
            for theirs, ours in zip(expected.choices, got.choices, strict=False):
                # SGLang does not trim an aborted answer, which keeps tokens that a step accepted beyond the answer's end.
                place = first_difference(theirs.tokens, ours.tokens)
                if place < min(len(theirs.tokens), len(ours.tokens)):
                    problem = f"{len(ours.tokens)} tokens differ from those of the whole one from {place} on"
        else:
            self.whole += 1
            problem = got.note or difference(expected, got)
        if problem and not self.first_difference:
            self.first_difference = f"{ask.kind}{', streamed' * ask.is_streamed}, {end}: {problem}; asked {ask.body}"


def abort_storm(
    server: RunningServer, rounds: Sequence[Round], expected: Sequence[Sequence[Answer]], number: int
) -> AbortReport:
    """Sends `number` of the requests in `rounds` from 16 clients and aborts most of them; then asks a round without
    aborts. `expected`: plain SGLang's answers to the rounds.

    Raises:
        ServerError: A request got no answer in time, or is still open in agentspec's block of /server_info.
    """
    # The beginning of a sampled answer is unknown, and an abort ends all choices of a request together.
    known = [
        (ask, answer)
        for round_, answers in zip(rounds, expected, strict=True)
        for ask, answer in zip(round_.asks, answers, strict=True)
        if ask.body["sampling_params"]["temperature"] == 0 and len(answer.choices) == 1
    ]
    report = AbortReport()
    asyncio.run(_storm(server, known, report, number))
    check_closed(server)
    rng = random.Random("after aborts/0")
    asks, answers = zip(*(rng.choice(known) for _ in range(6 * CLIENTS)), strict=True)
    for asked, theirs, ours in zip(asks, answers, ask(server, Round(CLIENTS, 0.0, asks), 0), strict=True):
        report.judge(asked, "after the aborts", theirs, ours)
    return report


async def _storm(server: RunningServer, known: Sequence[tuple[Ask, Answer]], report: AbortReport, number: int) -> None:
    numbers = iter(range(number))
    async with ParityClient(server.url) as client:

        async def one() -> None:
            for place in numbers:
                rng = random.Random(f"aborts/0/{place}")
                ask, expected = rng.choice(known)
                end = rng.choice(_ENDS)
                # A server aborts every request whose id starts with the given one.
                rid = f"parity-{place}."
                ask = replace(ask, body={**ask.body, "rid": rid}, is_streamed=rng.random() < 0.5 or "event" in end)
                report.judge(ask, end, expected, await _ended(client, ask, rid, end, rng))

        await together([one() for _ in range(CLIENTS)])


async def _ended(client: ParityClient, ask: Ask, rid: str, end: str, rng: random.Random) -> Answer:
    """Sends a request and ends it; status 0 if the client hung up."""
    event = asyncio.Event()
    sent = asyncio.create_task(client.ask(ask, event.set))
    try:
        if end.startswith("aborted"):
            await asyncio.sleep(0.0 if end == "aborted at once" else rng.uniform(0, _LONGEST_WAIT))
            await client.abort(rid)
        elif end == "hung up":
            await asyncio.wait([sent], timeout=rng.uniform(0, _LONGEST_WAIT))
        elif end == "hung up at an event":
            waiting = asyncio.create_task(event.wait())
            await asyncio.wait([sent, waiting], return_when=asyncio.FIRST_COMPLETED)
            waiting.cancel()
        if end.startswith("hung up") and not sent.done():
            return Answer(0)
        return await sent
    finally:
        sent.cancel()


def check_closed(server: RunningServer) -> None:
    """Waits until agentspec has no open request."""
    deadline = time.monotonic() + CLOSE_SECONDS
    while (state := server.agentspec_state()) is not None:
        still_open = int(state["engine"]["open_requests"])
        if not still_open:
            return
        if time.monotonic() > deadline:
            raise ServerError(f"{still_open} requests are still open in the engine, and all were answered or aborted")
        time.sleep(0.2)
