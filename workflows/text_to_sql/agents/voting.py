"""Self-consistency: chooses the statement whose result is the most frequent."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from agentspec.workflows.text_to_sql.sql.execute import Execution
from agentspec.workflows.text_to_sql.sql.score import result_key


@dataclass(frozen=True, slots=True)
class Vote:
    """The result of a vote.

    `order` holds the indices of candidates that ran, one for each distinct result, with the most frequent result first.
    Each result is represented by its first candidate, and ties are in the order of the candidates. `is_decided` says
    that more than half of all candidates, failed ones included, have the first result.
    """

    order: tuple[int, ...]
    is_decided: bool


def vote(executions: Sequence[Execution]) -> Vote:
    """Count the results as multisets of rows."""
    groups: dict[object, list[int]] = {}
    for place, execution in enumerate(executions):
        if execution.ok:
            groups.setdefault(result_key(execution), []).append(place)
    ranked = sorted(groups.values(), key=lambda places: (-len(places), places[0]))
    is_decided = bool(ranked) and 2 * len(ranked[0]) > len(executions)
    return Vote(tuple(places[0] for places in ranked), is_decided)
