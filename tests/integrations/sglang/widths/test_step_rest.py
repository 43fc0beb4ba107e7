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
    passes_launch: float = 0.0
    extend_launch: float = 0.0
    end: float | None = None
    num_tokens: int = 256


@dataclass
class End:
    """An event of a device that comes to an end at `at`, in seconds, while the host's clock goes its own way."""

    at: float
    is_over: bool

    def query(self) -> bool:
        return self.is_over

    def elapsed_time(self, other: End) -> float:
        return (other.at - self.at) * 1e3


REQUESTS = [object(), object()]


def run(rest: StepRest, steps: int, *, verify: float, other: float, drafter: float = 0.0, began: float = 0.0) -> float:
    """Runs steps that wait for their results, one after another; returns the time at which the next one would begin."""
    now = began
    for _ in range(steps):
        rest.begin(now, REQUESTS)
        now += verify + drafter
        rest.planned(Step(verify, drafter, end=now))
        rest.verifies(in_order=False)
        now += other
    return now


def test_nothing_is_known_of_few_steps() -> None:
    rest = StepRest()
    now = run(rest, 5, verify=0.01, other=0.004)
    assert rest.seconds == 0.0, "between five steps are four intervals, and the last one may not be over"
    rest.begin(now, REQUESTS)
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
        now = run(rest, 1, verify=0.01, other=0.004, began=now)
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
        others = [object(), object()]
        now += 10.0
        for _ in range(2):
            rest.begin(now, others)
            rest.planned(Step(0.01, end=now + 0.01))
            rest.verifies(in_order=False)
            now += 0.014
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
    late = [Step(end=number * 0.014 + 0.01) for number in range(40)]
    for number, step in enumerate(late):
        if number == 8:
            assert rest.seconds == 0.0
            for earlier in late[:8]:
                earlier.seconds = 0.01
        rest.begin(number * 0.014, REQUESTS)
        rest.planned(step)
        rest.verifies(in_order=False)
    assert rest.seconds == pytest.approx(0.004)


def in_stream_order(
    rest: StepRest, steps: int, *, device: float, host: float, passes: float = 0.0, extend: float = 0.0, rest_of: float
) -> None:
    """Runs steps in stream order that take the device `device` and `rest_of` seconds, and the host `host`, `passes` and
    `extend`."""
    work = host + passes + extend
    took = max(device + rest_of, work)
    ends = [End(0.0, True)]
    for number in range(steps):
        now = number * took
        rest.begin(now, REQUESTS)
        ends[-1].is_over = work > device + rest_of
        ends.append(End(now + took, False))
        rest.planned(Step(device, passes_launch=passes, extend_launch=extend, end=ends[-1]))
        rest.verifies(in_order=True)
        rest.launched(now + work - host / 2)
        rest.resumed(now + took - host / 2)
    rest.begin(steps * took, REQUESTS)


@pytest.mark.parametrize("device", [0.006, 0.002])
def test_the_host_s_time_is_told_from_its_wait(device: float) -> None:
    """The host needs 3 ms for a step, 1 ms more for the passes and 0.5 ms more for draft-extend. The device needs more,
    or less."""
    rest = StepRest()
    assert rest.least(passes=True, extends=True) == 0.0
    in_stream_order(rest, 40, device=device, host=0.003, passes=0.001, extend=0.0005, rest_of=0.0005)
    found = [rest.least(passes=passes, extends=extends) for passes in (False, True) for extends in (False, True)]
    assert found == pytest.approx([0.003, 0.0035, 0.004, 0.0045])


@pytest.mark.parametrize("launches", [(2.0,), (2.0, 0.001)])
def test_a_first_launch_that_compiles_kernels_does_not_make_the_passes_dear(launches: tuple[float, ...]) -> None:
    rest = StepRest()
    for passes in (*launches, *[0.0] * 4):
        rest.host.observe(0.003 + passes, Step(passes_launch=passes))
    assert rest.least(passes=True, extends=False) < 0.005


def test_the_rest_is_learnt_where_the_device_never_idles() -> None:
    """A device that waits for its host says nothing of what a step costs it."""
    rest = StepRest()
    in_stream_order(rest, 40, device=0.006, host=0.003, rest_of=0.0005)
    assert rest.seconds == pytest.approx(0.0005)
    in_stream_order(rest, 40, device=0.006, host=0.02, rest_of=0.0005)
    assert rest.seconds == pytest.approx(0.0005) and rest.least(passes=False, extends=False) == pytest.approx(0.02)


def test_the_wait_for_prompts_is_not_the_host_s_time() -> None:
    """The step after prompts waits for them, and no result of a decode step ends this wait."""
    rest = StepRest()
    in_stream_order(rest, 40, device=0.006, host=0.003, rest_of=0.0005)
    for number in range(40):
        now = 10.0 + number
        rest.begin(now, REQUESTS)
        rest.planned(Step(0.006, end=End(now + 0.006, True)))
        rest.verifies(in_order=True)
        rest.launched(now + 0.002)
        rest.prompts(1, 1000)
    assert rest.least(passes=False, extends=False) == pytest.approx(0.003)
