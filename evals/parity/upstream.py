"""Differences that plain SGLang shows against itself: the same request in another batch gets another answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from agentspec.evals.parity.client import Answer, ask
from agentspec.evals.parity.requests import Round
from agentspec.evals.parity.rows import difference
from agentspec.integrations.servers.server import RunningServer


def mark_upstream(
    server: RunningServer,
    differences: Sequence[dict[str, Any]],
    rounds: Sequence[Round],
    expected: Sequence[Sequence[Answer]],
) -> int:
    """Sets `is_upstream` of each difference, and returns for how many it is true.

    Each request is sent alone, and among the others of its round in the reverse order. Where one of both answers differs
    from the first one, what another server answered proves nothing.

    Args:
        server: Plain SGLang, started again.
        differences: As Compared keeps them.
        rounds: What was asked.
        expected: The answers of plain SGLang at first.

    Raises:
        ServerError: A request got no answer.
    """
    reverse: dict[int, list[Answer]] = {}
    for found in differences:
        number, place = found["round"], found["place"]
        round_, first = rounds[number], expected[number][place]
        if number not in reverse:
            backward = Round(round_.clients, round_.gap, round_.asks[::-1])
            reverse[number] = ask(server, backward, seed=number)[::-1]
        (alone,) = ask(server, Round(1, 0.0, (round_.asks[place],)), seed=number)
        again = (alone, reverse[number][place])
        found["is_upstream"] = any(bool(answer.note or difference(first, answer)) for answer in again)
    return sum(found["is_upstream"] for found in differences)
