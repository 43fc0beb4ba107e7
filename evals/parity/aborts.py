"""Requests that clients abort while they wait or run, beside the rounds of `agentspec bench parity`: none may hang or stay open."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from agentspec.errors import ServerError
from agentspec.evals.parity.client import ANSWER_SECONDS, Answer, ParityClient, ask, together
from agentspec.evals.parity.requests import Ask, Round
from agentspec.evals.parity.rows import difference, first_difference
from agentspec.integrations.servers.server import RunningServer
from agentspec.progress import Progress

CLIENTS = 16
_CLOSE_SECONDS = 20.0
"""Time in which aborted requests have to be closed after the last answer."""
# How a request ends, with its frequency out of 12. A client aborts by a separate request, or by hanging up: at once, after a
# while, or when the first tokens have come.
_ENDS = ("answered",) * 4 + ("aborted",) * 3 + ("aborted at once",) + ("hung up",) * 2 + ("hung up at an event",) * 2
_LONGEST_WAIT = 0.6


@dataclass(slots=True)
class AbortReport:
    """The results of the requests."""

    requests: int = 0
    ends: dict[str, int] = field(default_factory=dict)
    """Number of requests by how they were ended."""
    cut_short: int = 0
    """Answers that the server ended because of an abort."""
    whole: int = 0
    """Answers that were compared as a whole."""
    differences: int = 0
    first_difference: str = ""


def abort_storm(
    server: RunningServer,
    rounds: Sequence[Round],
    expected: Sequence[Sequence[Answer]],
    number: int,
    seed: int,
    label: str = "",
    *,
    seconds: float = ANSWER_SECONDS,
) -> AbortReport:
    """Sends `number` of the requests in `rounds` from 16 clients and aborts most of them; then asks a round without
    aborts.

    A whole answer must be the expected one. An answer that was cut short must agree with it as far as both go.

    Args:
        expected: Plain SGLang's answers to the rounds.
        seconds: Time limit of each answer.

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
    report = AbortReport(requests=number)
    asyncio.run(_storm(server, known, report, number, seed, label, seconds))
    _check_closed(server)
    rng = random.Random(f"after aborts/{seed}")
    asks, answers = zip(*(rng.choice(known) for _ in range(6 * CLIENTS)), strict=True)
    after = ask(server, Round(CLIENTS, 0.0, asks), seed, seconds=seconds)
    for asked, theirs, ours in zip(asks, answers, after, strict=True):
        _note(report, asked, ours.note or difference(theirs, ours), "after the aborts")
    return report


async def _storm(
    server: RunningServer,
    known: Sequence[tuple[Ask, Answer]],
    report: AbortReport,
    number: int,
    seed: int,
    label: str,
    seconds: float,
) -> None:
    ends: Counter[str] = Counter()
    numbers = iter(range(number))
    with Progress(f"{label}, aborts", number) as progress:
        async with ParityClient(server.url, seconds=seconds) as client:

            async def one() -> None:
                for place in numbers:
                    rng = random.Random(f"aborts/{seed}/{place}")
                    ask, expected = rng.choice(known)
                    end = rng.choice(_ENDS)
                    ends[end] += 1
                    # A server aborts every request whose id starts with the given one.
                    rid = f"parity-{seed}-{place}."
                    ask = replace(ask, body={**ask.body, "rid": rid}, is_streamed=rng.random() < 0.5 or "event" in end)
                    got = await _ended(client, ask, rid, end, rng)
                    _check(report, ask, end, expected, got)
                    progress.update(place, "requests")

            await together([one() for _ in range(CLIENTS)])
    report.ends = dict(sorted(ends.items()))


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
            if not sent.done():
                return Answer(0)
        elif end == "hung up at an event":
            waiting = asyncio.create_task(event.wait())
            await asyncio.wait([sent, waiting], return_when=asyncio.FIRST_COMPLETED)
            waiting.cancel()
            if not sent.done():
                return Answer(0)
        return await sent
    finally:
        sent.cancel()


def _check(report: AbortReport, ask: Ask, end: str, expected: Answer, got: Answer) -> None:
    if not got.status:
        return
    reason = got.choices[0].finish_reason.get("type") if got.choices else None
    aborted = end.startswith("aborted") and (reason == "abort" or got.status != expected.status)
    if not aborted:
        report.whole += 1
        _note(report, ask, difference(expected, got), end)
        return
    report.cut_short += 1
    for theirs, ours in zip(expected.choices, got.choices, strict=False):
        # SGLang does not trim an aborted answer, which keeps tokens that a step accepted beyond the answer's end.
        place = first_difference(theirs.tokens, ours.tokens)
        if place < min(len(theirs.tokens), len(ours.tokens)):
            _note(report, ask, f"{len(ours.tokens)} tokens differ from those of the whole one from {place} on", end)


def _note(report: AbortReport, ask: Ask, problem: str, end: str) -> None:
    if problem:
        report.differences += 1
        how = f"{ask.kind}{', streamed' if ask.is_streamed else ''}, {end}"
        report.first_difference = report.first_difference or f"{how}: {problem}; asked {ask.body}"


def _check_closed(server: RunningServer) -> None:
    """Waits until agentspec has no open request."""
    deadline = time.monotonic() + _CLOSE_SECONDS
    while (state := server.agentspec_state()) is not None:
        still_open = int(state["engine"]["open_requests"])
        if not still_open:
            return
        if time.monotonic() > deadline:
            raise ServerError(f"{still_open} requests are still open in the engine, and all were answered or aborted")
        time.sleep(0.2)
