from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from draft_states import profile
from every import every
from numpy.typing import NDArray

from agentspec.errors import ConfigError
from agentspec.scheduling import (
    ControlConfig,
    OnlineCosts,
    Profile,
    ServingCosts,
    StepCost,
    StepPlan,
    StepState,
    make_controller,
)
from agentspec.simulation import (
    Acceptance,
    Arrivals,
    RunLog,
    ServerConfig,
    acceptance_at_rate,
    draw_requests,
    measure,
    simulate,
)


class FixedWidth:
    """Plans `width` tokens per row, or the largest width allowed, and counts the calls that it receives."""

    name = "stand-in"

    def __init__(self, width: int) -> None:
        self.costs = OnlineCosts()
        self._width = width
        self.accepted: list[list[int]] = []
        self.states: list[StepState] = []
        self.seconds: list[float] = []

    def plan(self, state: StepState) -> StepPlan:
        self.states.append(state)
        width = min(self._width, state.max_width)
        drafted = np.minimum(np.diff(state.drafts.offsets) - 1, width - 1).astype(np.int32)
        return StepPlan(width, drafted, float(len(drafted)), 0.0, "length")

    def observe(self, plan: StepPlan, num_accepted: NDArray[np.int32], seconds: float, *, context: int) -> None:
        self.accepted.append(num_accepted.tolist())
        self.seconds.append(seconds)

    def describe(self) -> dict[str, float | str | None]:
        return {}


COSTS = ServingCosts(request_seconds=0.5, prefill=StepCost(0.0, 0.02, 0.2), step=StepCost(0.0, 0.03, 0.3), overlap=True)


def profile_of(alpha: float, gamma: float, delta: float, drafter: StepCost | None = None) -> Profile:
    return profile(StepCost(alpha, gamma, delta), drafter=drafter)


def by_hand(cached: int = 0) -> Acceptance:
    """Two requests of 10 prompt tokens with outputs of 4 and 3 tokens. Only the first draft of the first is right."""
    return Acceptance(
        name="by hand",
        prompt_tokens=np.array([10, 10], np.int32),
        cached_tokens=np.array([0, cached], np.int32),
        starts=np.array([0, 3, 5]),
        num_nodes=np.full(5, 2, np.uint8),
        estimates=np.tile(np.array([1, 0.5], np.float32), (5, 1)),
        parents=np.tile(np.array([-1, 0], np.int8), (5, 1)),
        accepted=np.array([[0, 1], [0, 0], [0, 0], [0, 0], [0, 0]], np.uint8),
    )


def served(
    acceptance: Acceptance, arrivals: Arrivals, n: int, seed: int, config: ServerConfig, width: int, profile: Profile
) -> RunLog:
    return simulate(draw_requests(acceptance, arrivals, n, seed), profile, config, FixedWidth(width))


def test_every_step_by_hand() -> None:
    # With seed 0 the first request is drawn first. The second arrives while the first is prefilled.
    requests = draw_requests(by_hand(), Arrivals(intervals=(0.05,), cv=0.0), 2, 0)
    assert requests.output_tokens.tolist() == [4, 3]
    controller = FixedWidth(2)
    log = simulate(requests, profile_of(0.001, 0.01, 0.1), ServerConfig(), controller)
    assert log.seconds == pytest.approx(
        [
            0.1 + 10 * 0.01,  # prefill of the first request, from 0.05 on
            0.1 + 10 * 0.01,  # prefill of the second request
            0.1 + 4 * 0.01 + 20 * 0.001,  # both rows verify two tokens; the first row gains two tokens, the second one
            0.1 + 4 * 0.01 + 23 * 0.001,
        ]
    )
    assert log.start == pytest.approx([0.05, 0.25, 0.45, 0.61])
    assert controller.accepted == [[1, 0], [0, 0]]
    assert log.first_token == pytest.approx([0.25, 0.45])
    assert log.finished == pytest.approx([0.773, 0.773])
    assert log.admitted == pytest.approx([0.05, 0.25])
    metrics = measure(log, Arrivals(intervals=(0.05,), cv=0.0))
    assert metrics.latencies.latency_mean == pytest.approx((0.723 + 0.673) / 2)
    assert metrics.latencies.ttft_mean == pytest.approx((0.2 + 0.35) / 2)
    assert metrics.latencies.tpot_mean == pytest.approx((0.523 / 3 + 0.323 / 2) / 2)
    assert metrics.latencies.queueing_mean == pytest.approx(0.15 / 2)
    assert metrics.steps.goodput == pytest.approx(5 / 0.323)
    assert metrics.steps.width_mean == 2 and metrics.steps.rows_mean == 2
    assert metrics.throughput == pytest.approx(7 / 0.723)


def test_cached_prompts_and_chunks_by_hand() -> None:
    requests = draw_requests(by_hand(cached=4), Arrivals(intervals=(0.05,), cv=0.0), 2, 0)
    log = simulate(requests, profile_of(0.001, 0.01, 0.1), ServerConfig(prefill_tokens=8), FixedWidth(1))
    # The first request's 10 tokens come in chunks of 8 and 2. The second chunk is batched with the second request's 6
    # uncached tokens; its 4 cached tokens are only read.
    prefills = [seconds for seconds, width in zip(log.seconds, log.width, strict=True) if not width]
    assert prefills == pytest.approx([0.1 + 8 * 0.01, 0.1 + 8 * 0.01 + (8 + 4) * 0.001])
    assert log.rows[:2] == [0, 2]


def test_serving_takes_time_beside_verification() -> None:
    requests = draw_requests(by_hand(), Arrivals(intervals=(0.05,), cv=0.0), 2, 0)
    log = simulate(requests, profile_of(0.001, 0.01, 0.1), ServerConfig(costs=COSTS), FixedWidth(2))
    # The times are those of test_every_step_by_hand, plus what a decode step takes beside its verification of 4 tokens.
    assert log.seconds == pytest.approx([0.4, 0.4, 0.16 + 0.42, 0.163 + 0.42])
    # Requests reach the scheduler later than clients send them.
    assert log.start == pytest.approx([0.55, 0.95, 1.35, 1.93])
    # No step follows the last one, so its answers do not wait for another step.
    assert log.finished == pytest.approx([2.513, 2.513])


def test_plain_decoding_verifies_nothing() -> None:
    requests = draw_requests(by_hand(), Arrivals(intervals=(0.05,), cv=0.0), 2, 0)
    config = ServerConfig(costs=COSTS, plain=True)
    log = simulate(requests, profile_of(0.001, 0.01, 0.1), config, FixedWidth(1))
    assert log.seconds == pytest.approx([0.4, 0.4, 0.36, 0.36, 0.33])
    # The second request gets its last token when the fourth step ends, and is answered when the fifth one ends.
    assert log.finished == pytest.approx([log.start[4] + 0.33] * 2)
    assert log.rows[4] == 1


def test_a_place_is_free_when_the_answer_is_sent() -> None:
    requests = draw_requests(by_hand(), Arrivals(clients=2), 3, 0)
    log = simulate(
        requests, profile_of(0, 0.01, 0.1), ServerConfig(costs=COSTS, plain=True, max_running=2), FixedWidth(1)
    )
    first, last = np.argsort(log.finished)[[0, 2]]
    assert log.arrival[last] == pytest.approx(log.finished[first])
    assert log.admitted[last] >= log.arrival[last] + COSTS.request_seconds - 1e-9


@every("seed", range(8))
def test_random_runs_give_every_request_its_tokens_within_the_limits(seed: int) -> None:
    rng = np.random.default_rng(seed)
    acceptance = acceptance_at_rate("0.7", 20, int(rng.integers(1, 40)), int(rng.integers(1, 60)), 7, seed)
    config = ServerConfig(
        max_running=int(rng.integers(1, 12)),
        kv_tokens=int(rng.integers(100, 400)),
        prefill_tokens=int(rng.integers(1, 64)),
        reserved_tokens=int(rng.integers(0, 4)),
        max_width=int(rng.integers(1, 9)),
        whole_batches=bool(seed % 2),
        widths=(1, 2, 4, 8) if seed % 3 else (),
        costs=COSTS if seed > 3 else None,
    )
    arrivals = Arrivals(intervals=(0.3,), cv=2.0) if seed % 4 else Arrivals(clients=5)
    controller = FixedWidth(8)
    requests = draw_requests(acceptance, arrivals, 40, seed)
    log = simulate(requests, profile_of(0.0001, 0.001, 0.02), config, controller)
    assert (log.generated == requests.output_tokens).all()
    assert sum(log.tokens) == requests.output_tokens.sum()
    assert 0 < log.peak_kv_tokens <= config.kv_tokens
    assert max(log.rows) <= config.max_running and max(log.width) <= config.max_width
    assert (log.admitted >= log.arrival).all() and (log.first_token > log.admitted).all()
    assert (log.finished >= log.first_token).all()
    ends = np.array(log.start) + log.seconds
    assert (np.array(log.start[1:]) >= ends[:-1] - 1e-9).all(), "steps do not overlap"
    for state in controller.states:
        assert set(state.widths) <= set(config.widths) and state.max_width <= config.max_width
    again = simulate(requests, profile_of(0.0001, 0.001, 0.02), config, FixedWidth(8))
    assert again.start == log.start and (again.finished == log.finished).all()


def test_a_full_cache_retracts_and_computes_again() -> None:
    acceptance = acceptance_at_rate("0.5", 4, 10, 60, 4, 0)
    profile = profile_of(0.0, 0.001, 0.01)
    tight = ServerConfig(kv_tokens=100, reserved_tokens=0)
    log = served(acceptance, Arrivals(intervals=(1e-9,)), 4, 0, tight, 1, profile)
    assert log.retractions > 0 and log.peak_kv_tokens <= 100
    assert (log.generated == 60).all()
    roomy = served(acceptance, Arrivals(intervals=(1e-9,)), 4, 0, ServerConfig(), 1, profile)
    assert roomy.retractions == 0
    assert log.finished.max() > roomy.finished.max()
    with pytest.raises(ConfigError, match="70 tokens, got 69"):
        served(acceptance, Arrivals(clients=1), 1, 0, ServerConfig(kv_tokens=69), 1, profile)


@pytest.mark.parametrize("load", [0.5, 0.8])
def test_waiting_of_one_at_a_time_is_that_of_an_m_d_1_queue(load: float) -> None:
    profile = profile_of(0.0, 0.1, 0.2)
    service = (0.2 + 0.1 * 5) + 2 * (0.2 + 0.1)
    acceptance = acceptance_at_rate("0.5", 1, 5, 3, 1, 0)
    arrivals = Arrivals(intervals=(service / load,))
    log = served(acceptance, arrivals, 15_000, 0, ServerConfig(max_running=1), 1, profile)
    expected = load * service / (2 * (1 - load))
    assert (log.admitted - log.arrival).mean() == pytest.approx(expected, rel=0.08)


def test_whole_batches_admit_when_nothing_runs() -> None:
    acceptance = acceptance_at_rate("0.5", 1, 5, 20, 1, 0)
    arrivals = Arrivals(intervals=(0.2,), cv=0.0)
    log = served(acceptance, arrivals, 30, 0, ServerConfig(whole_batches=True, max_running=4), 1, profile_of(0, 0, 0.1))
    for admitted in np.unique(log.admitted):
        running = (log.admitted < admitted) & (log.finished > admitted)
        assert not running.any()
    assert max(log.rows) == 4


def test_every_step_is_drafted_for_unless_it_has_room_for_roots_only() -> None:
    acceptance = acceptance_at_rate("0.5", 1, 5, 40, 7, 0)
    drafter = StepCost(0.0, 0.001, 0.01)
    for width in (1, 4):
        plain = served(acceptance, Arrivals(clients=1), 1, 0, ServerConfig(), width, profile_of(0, 0.01, 0.1))
        modelled = served(
            acceptance, Arrivals(clients=1), 1, 0, ServerConfig(), width, profile_of(0, 0.01, 0.1, drafter)
        )
        copied = ServerConfig(draft_seconds=0.002)
        suffix = served(acceptance, Arrivals(clients=1), 1, 0, copied, width, profile_of(0, 0.01, 0.1))
        steps = len(plain.seconds) - 1
        assert modelled.finished[0] - plain.finished[0] == pytest.approx(steps * (width - 1) * 0.011)
        assert suffix.finished[0] - plain.finished[0] == pytest.approx(steps * 0.002)


@every(
    "field",
    ["max_running=0", "kv_tokens=0", "prefill_tokens=0", "max_width=0", "reserved_tokens=-1", "draft_seconds=-1"],
)
def test_bad_limits_are_refused(field: str) -> None:
    name, value = field.split("=")
    with pytest.raises(ConfigError, match=f"{name}.*{value}"):
        ServerConfig(**{name: int(value)})
    with pytest.raises(ConfigError, match="ascend from 1"):
        ServerConfig(widths=(2, 4))


def test_an_oracle_knows_what_is_accepted() -> None:
    acceptance = by_hand()
    known = acceptance.drafts(np.arange(5), known=True)
    assert known.estimates.tolist() == [1, 1, 1, 0, 1, 0, 1, 0, 1, 0]
    requests = draw_requests(acceptance_at_rate("0.6", 8, 30, 60, 7, 0), Arrivals(clients=4), 8, 0)
    profile = profile_of(0.0, 0.03, 0.1)
    seconds = {}
    for foresees in (False, True):
        controller = make_controller(ControlConfig(objective="step"), profile)
        seconds[foresees] = simulate(requests, profile, ServerConfig(foresees=foresees), controller).finished.max()
    assert seconds[True] < 0.95 * seconds[False]


@pytest.mark.parametrize(("prompt", "waits"), [(10, False), (900, True)])
def test_a_request_may_wait_until_the_steps_gain_by_it(prompt: int, waits: bool) -> None:
    """A row with the context of the others always adds to the tokens a second. A long one may take more than it adds."""
    acceptance = replace(by_hand(), prompt_tokens=np.array([10, prompt], np.int32))
    requests = draw_requests(acceptance, Arrivals(intervals=(0.05,), cv=0.0), 2, 0)
    log = simulate(requests, profile_of(0.001, 0.01, 0.1), ServerConfig(admission="goodput"), FixedWidth(2))
    first, second = np.argsort(log.arrival)
    assert (log.admitted[second] >= log.finished[first]) == waits
    assert np.isfinite(log.finished).all()
