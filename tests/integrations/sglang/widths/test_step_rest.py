"""The time that decode steps take besides verification and drafting."""

from __future__ import annotations

import random
from dataclasses import dataclass
from statistics import fmean

import pytest

from agentspec.integrations.sglang.widths.step_rest import StepRest


@dataclass
class Step:
    seconds: float = 0.0
    drafter_seconds: float = 0.0
    num_tokens: int = 256


REQUESTS = [object(), object()]


def run(rest: StepRest, steps: int, *, verify: float, other: float, drafter: float = 0.0, began: float = 0.0) -> float:
    """Runs steps one after another; returns the time at which the next one would begin."""
    now = began
    for _ in range(steps):
        rest.begin(now, REQUESTS)
        rest.planned(Step(verify, drafter))
        now += verify + drafter + other
    return now


def test_nothing_is_known_of_few_steps() -> None:
    rest = StepRest()
    run(rest, 4, verify=0.01, other=0.004)
    assert rest.seconds == 0.0, "four begun are three done"
    rest.begin(4 * 0.014, REQUESTS)
    assert rest.seconds == pytest.approx(0.004)


def test_a_drafter_s_time_is_its_own() -> None:
    rest = StepRest()
    run(rest, 20, verify=0.01, other=0.004, drafter=0.003)
    assert rest.seconds == pytest.approx(0.004)


def test_what_runs_between_steps_does_not_count() -> None:
    rest = StepRest()
    now = 0.0
    for _ in range(20):
        now = run(rest, 2, verify=0.01, other=0.004, began=now)
        rest.interrupted()
        now += 5.0
    assert rest.seconds == pytest.approx(0.004)


@pytest.mark.parametrize(
    ("most", "tokens", "share", "together", "wanted"),
    [
        (1, 20, 1.0, 1, 0.0),
        (8, 20, 1.0, 1, 0.006 * 7 / 8),
        (8, 20, 0.5, 1, 0.003 * 7 / 8),
        (8, 20, 1 / 3, 3, 0.006 * 7 / 8),
        (8, 300, 1.0, 1, 0.0),
    ],
)
def test_prompts_that_are_read_together_are_part_of_a_step(
    most: int, tokens: int, share: float, together: int, wanted: float
) -> None:
    """A reading takes 6 ms, 1 ms for each request and 10 us for each token. The 6 ms count if requests share them. A share
    of the steps is followed by `together` readings."""
    rest, rng = StepRest(), random.Random(0)
    now = run(rest, 20, verify=0.01, other=0.004)
    found = []
    for number in range(256):
        rest.begin(now, REQUESTS)
        rest.planned(Step(0.01))
        now += 0.014
        for _ in range(together if int((number + 1) * share) > int(number * share) else 0):
            requests, read = rng.randint(1, most), rng.randint(tokens, 2 * tokens)
            rest.prompts(requests, read)
            now += 0.006 + requests * 0.001 + read * 1e-5
        found.append(rest.seconds)
    assert fmean(found[64:]) == pytest.approx(0.004 + wanted, rel=0.15)


def test_the_time_without_requests_does_not_count() -> None:
    """All requests have ended, and two others come ten seconds later."""
    rest = StepRest()
    now = run(rest, 20, verify=0.01, other=0.004)
    for _ in range(20):
        rest.prompts(2, 10)
        rest.begin(now + 10.0, others := [object(), object()])
        rest.planned(Step(0.01))
        rest.begin(now + 10.014, others)
        rest.planned(Step(0.01))
        now += 10.028
    assert rest.seconds == pytest.approx(0.004)


def test_a_reading_that_compiles_kernels_hardly_counts() -> None:
    rest = StepRest()
    now = run(rest, 20, verify=0.01, other=0.004)
    for number in range(60):
        rest.prompts(2, 10)
        now = run(rest, 1, verify=0.01, other=0.004, began=now + (60.0 if number == 40 else 0.005))
    assert rest.seconds < 0.004 + 0.006


def test_a_lasting_change_is_followed_and_an_outlier_is_not() -> None:
    rest = StepRest()
    now = run(rest, 20, verify=0.01, other=0.004)
    now = run(rest, 2, verify=0.01, other=1.0, began=now)
    assert rest.seconds == pytest.approx(0.004)
    run(rest, 40, verify=0.01, other=0.008, began=now)
    assert rest.seconds == pytest.approx(0.008)


def test_verifications_may_be_known_late_or_never() -> None:
    rest = StepRest()
    late = [Step() for _ in range(8)]
    for number, step in enumerate(late):
        rest.begin(number * 0.014, REQUESTS)
        rest.planned(step)
    assert rest.seconds == 0.0
    for step in late:
        step.seconds = 0.01
    rest.begin(8 * 0.014, REQUESTS)
    assert rest.seconds == pytest.approx(0.004)
    for number in range(9, 40):
        rest.begin(number * 0.014, REQUESTS)
        rest.planned(Step())
    assert rest.seconds == pytest.approx(0.004)
