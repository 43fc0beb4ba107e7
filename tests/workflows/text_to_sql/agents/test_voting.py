from __future__ import annotations

import random
from collections import Counter

from agentspec.workflows.text_to_sql.agents.voting import vote
from agentspec.workflows.text_to_sql.sql.execute import Cell, Execution
from agentspec.workflows.text_to_sql.sql.score import same_result

FAILED = Execution(error="no such table")


def ran(*cells: Cell) -> Execution:
    return Execution(("c",), tuple((cell,) for cell in cells))


def test_the_most_frequent_result_wins_whatever_the_order_of_its_rows() -> None:
    counted = vote([ran(3), ran(1, 2), FAILED, ran(2, 1.0), ran(1, 2)])
    assert counted.order == (1, 0) and counted.is_decided


def test_half_of_the_votes_decides_nothing() -> None:
    assert not vote([ran(1), ran(2)]).is_decided
    assert not vote([ran(1), FAILED]).is_decided
    assert not vote([FAILED, FAILED]).is_decided and vote([FAILED]).order == ()
    assert vote([]).order == ()
    # Duplicate rows count: these are multisets.
    assert vote([ran(1, 1), ran(1), ran(1, 1)]).order == (0, 1)


def test_drawn_votes_agree_with_counting_pairs() -> None:
    rng = random.Random(1)
    for _ in range(300):
        drawn = [
            rng.choice([FAILED, ran(1), ran(1, 2), ran(2, 1), ran("1"), ran(None)]) for _ in range(rng.randint(1, 6))
        ]
        counted = vote(drawn)
        votes = [sum(same_result(one, other, ordered=False) for other in drawn) for one in drawn]
        assert counted.is_decided == (2 * max(votes) > len(drawn))
        assert [votes[place] for place in counted.order] == sorted((votes[p] for p in counted.order), reverse=True)
        assert sum(votes[place] for place in counted.order) == sum(
            Counter(one.ok for one in drawn)[ok] for ok in (True,)
        )
