"""What suffix drafts and a draft model bring together."""

from __future__ import annotations

import random

import numpy as np
import pytest

from agentspec.evals.clients.replay_requests import ReplayRequest
from agentspec.evals.emulated.draft_hits import AnswerHits
from agentspec.evals.emulated.hit_overlap import overlap, table, walked


def test_steps_go_on_behind_what_they_accept() -> None:
    # Five decoded tokens: two accepted and one of the model's, then one, then the last.
    assert walked([np.array([9, 2, 9, 9, 0, 3])]) == pytest.approx(5 / 3)
    assert walked([np.array([9, 0, 0]), np.array([9, 5])]) == pytest.approx(3 / 3)


def request(rng: random.Random, text: list[int], hits: list[bool]) -> ReplayRequest:
    prompt = np.array([rng.randrange(1000, 2000) for _ in range(20)], np.int32)
    return ReplayRequest(
        prompt, np.array(text, np.int32), "s", 0, "t", True, drafted=AnswerHits(np.array(hits, np.bool_), 0.5)
    )


def test_a_draft_model_that_is_right_where_suffixes_are_brings_nothing() -> None:
    rng = random.Random(0)
    known = [rng.randrange(1000, 2000) for _ in range(40)]
    first = request(rng, known, [False] * 40)
    # Half of each later answer is known, and the other half is new.
    answers = [[*known[:20], *(rng.randrange(3000, 9000) for _ in range(20))] for _ in range(20)]
    same = [request(rng, text, [i < 20 for i in range(40)]) for text in answers]
    other = [request(rng, text, [i >= 20 for i in range(40)]) for text in answers]
    alike, unlike = overlap("alike", [first, *same]), overlap("unlike", [first, *other])
    assert alike.suffix_hits == unlike.suffix_hits > 0.3
    assert alike.both_hits > 1.5 * alike.independent and unlike.both_hits < 0.5 * unlike.independent
    assert alike.gain < 1.05 and unlike.gain > 1.3
    # A hash knows nothing of where suffixes are right.
    assert alike.gain < alike.hashed_gain
    assert len(table([alike, unlike]).splitlines()) == 4
