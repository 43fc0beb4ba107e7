"""SmartSpec: its formulas, its trees by depth, and the effect of its moving average."""

from __future__ import annotations

import numpy as np
import pytest
from draft_states import batch, profile, state
from drawn_server import serve
from every import every

from agentspec.scheduling import ControlConfig, StepCost, StepState, chain_tokens, tree_tokens
from agentspec.scheduling.baselines.depths import DepthProfile
from agentspec.scheduling.baselines.smartspec import SmartSpecController


def controller(cost: StepCost = StepCost(0.0, 1.0, 10.0), **settings: object) -> SmartSpecController:  # noqa: B008
    return SmartSpecController(ControlConfig(controller="smartspec", **settings), profile(cost))  # type: ignore[arg-type]


@every("acceptance", [0.0, 0.3, 0.7, 1.0])
@every("length", [0, 1, 5])
def test_equation_8_is_the_mean_of_drawn_chains(acceptance: float, length: int) -> None:
    rng = np.random.default_rng(0)
    drawn = (rng.random((20_000, length)) < acceptance).cumprod(axis=1).sum(axis=1) + 1
    assert chain_tokens(acceptance, length) == pytest.approx(drawn.mean(), abs=0.05)
    assert tree_tokens([acceptance] * length, [1] * length) == pytest.approx(chain_tokens(acceptance, length))


def test_equation_10_is_the_mean_of_drawn_trees() -> None:
    rng = np.random.default_rng(0)
    acceptances, branches = [0.5, 0.3, 0.2], [3, 2, 3]
    some = np.stack(
        [(rng.random((20_000, k)) < alpha).any(axis=1) for alpha, k in zip(acceptances, branches, strict=True)], axis=1
    )
    assert tree_tokens(acceptances, branches) == pytest.approx((some.cumprod(axis=1).sum(axis=1) + 1).mean(), abs=0.05)


@every("seed", range(10))
def test_trees_by_depth(seed: int) -> None:
    rng = np.random.default_rng(seed)
    widths = np.array([1, 2, 4, 7])
    sizes = rng.integers(0, 9, rng.integers(1, 6)).tolist()
    parents = [[int(rng.integers(0, i + 1)) for i in range(size)] for size in sizes]
    found = DepthProfile.of(batch([[0.5] * size for size in sizes], parents), widths)
    for index, width in enumerate(widths.tolist()):
        nodes, with_children, reached = np.zeros((3, 9))
        for row in parents:
            depths, links = [0], row[: width - 1]
            for parent in links:
                depths.append(depths[parent] + 1)
            for depth in range(1, max(depths) + 1):
                reached[depth] += 1
                nodes[depth] += depths.count(depth)
                with_children[depth] += len({parent for parent in links if depths[parent] == depth - 1})
        most = found.rows.shape[1] + 1
        assert found.rows[index].tolist() == reached[1:most].tolist()
        expected = np.maximum(nodes, 1) / np.maximum(with_children, 1)
        assert found.branches[index] == pytest.approx(expected[1:most])
    alphas = rng.random(8)
    chains = DepthProfile.of(batch([[0.5] * size for size in sizes]), widths).expected(alphas)
    for index, width in enumerate(widths.tolist()):
        assert chains[index] == pytest.approx(
            sum(tree_tokens(alphas[: min(size, width - 1)], [1] * min(size, width - 1)) for size in sizes)
        )


def test_the_length_is_that_of_the_most_goodput() -> None:
    rng = np.random.default_rng(0)
    for _ in range(20):
        cost = StepCost(*(rng.random(3) * [1e-5, 1.0, 10.0]).tolist())
        smart = controller(cost, acceptance=float(rng.random()))
        sizes = rng.integers(0, 8, rng.integers(1, 6)).tolist()
        plan = smart.plan(state([[0.5] * size for size in sizes], widths=()))
        goodputs = {
            width: sum(chain_tokens(smart.acceptance, min(size, width - 1)) for size in sizes)
            / cost.seconds(1000, len(sizes) * width)
            for width in range(1, 9)
        }
        assert goodputs[plan.width] == pytest.approx(max(goodputs.values()))
        assert plan.num_nodes.tolist() == [min(size, plan.width - 1) for size in sizes]


def test_the_moving_average_is_of_examined_tokens_in_the_window() -> None:
    smart = controller(window=3, acceptance=0.7)
    assert smart.acceptance == 0.7
    plan = smart.plan(state([[0.9, 0.9, 0.9]] * 2, widths=(4,), max_width=4))
    assert plan.width == 4
    # The first row accepts three tokens and rejects none; the second accepts one and rejects one.
    smart.observe(plan, np.array([3, 1], np.int32), 1.0, context=1000)
    assert smart.acceptance == pytest.approx(4 / 5)
    for _ in range(3):
        smart.observe(plan, np.array([0, 1], np.int32), 1.0, context=1000)
    assert smart.acceptance == pytest.approx(1 / 3)


@pytest.mark.parametrize("model", ["chain", "tree"])
def test_acceptance_is_learnt_and_decides(model: str) -> None:
    cost = StepCost(0.0, 0.002, 0.01)
    for quality, width in ((0.05, 1), (0.97, 8)):
        smart = controller(cost, length_model=model)
        served = serve(smart, cost, np.random.default_rng(0), steps=300, rows=4, quality=lambda _, q=quality: q)
        assert served.plans[-1].width == width
        if width > 1:
            assert smart.acceptance == pytest.approx(quality, abs=0.03)


def test_confidence_cuts_behind_the_first_doubtful_token() -> None:
    smart = controller(StepCost(0.0, 1e-6, 10.0), length_model="confidence", min_confidence=0.5)
    # One path has the confidences 0.9, 0.4 and 1, so its third token would not have been proposed. The path of the
    # second token's sibling is confident.
    drafts = batch([[0.9, 0.81, 0.36, 0.36]], [[0, 1, 1, 3]])
    plan = smart.plan(StepState(drafts, 1000, (), 5))
    assert plan.width == 4 and plan.expected_tokens == pytest.approx(1 + 0.9 + 0.81 + 0.36)
    # Each chain ends with its first doubtful token.
    rng = np.random.default_rng(0)
    confidences = [rng.random(rng.integers(0, 8)).tolist() for _ in range(9)]
    plan = smart.plan(state([np.cumprod(row).tolist() for row in confidences]))
    assert plan.num_nodes.tolist() == [
        next((i + 1 for i, confidence in enumerate(row) if confidence <= 0.5), len(row)) for row in confidences
    ]


def test_a_drafter_is_run_if_it_pays() -> None:
    for drafter, wanted in ((StepCost(0.0, 0.0, 1e-3), True), (StepCost(0.0, 0.0, 1.0), False)):
        smart = SmartSpecController(
            ControlConfig(controller="smartspec"), profile(StepCost(0.0, 1e-4, 0.01), drafter=drafter)
        )
        assert smart.plan(state([[0.7, 0.5, 0.3]] * 2)).width == (4 if wanted else 1)


@pytest.mark.parametrize(("share", "found"), [(0.0, False), (0.02, True)])
def test_a_length_of_zero_is_left_when_a_probe_shows_that_drafts_have_become_good(share: float, found: bool) -> None:
    smart = controller(StepCost(0.0, 0.002, 0.01), probe_share=share)
    cost = StepCost(0.0, 0.002, 0.01)
    serve(smart, cost, np.random.default_rng(0), steps=100, rows=4, quality=lambda _: 0.0)
    later = serve(smart, cost, np.random.default_rng(1), steps=3000, rows=4, quality=lambda _: 0.97)
    assert (later.plans[-1].width > 1) is found
    probes = [plan for plan in later.plans if plan.reason == "probe"]
    assert all(plan.width == 2 for plan in probes) and bool(probes) is found


def test_a_draft_model_runs_for_a_probe() -> None:
    known = profile(StepCost(0.0, 1e-4, 0.01), drafter=StepCost(0.0, 0.0, 1.0))
    smart = SmartSpecController(ControlConfig(controller="smartspec", probe_share=0.1), known)
    plans = [smart.plan(state([[0.7]] * 2)) for _ in range(1200)]
    # One pass takes a second, and so a tenth of the time of about a thousand steps of 10 ms.
    assert 1 <= sum(plan.width > 1 for plan in plans) <= 3


def test_the_trees_of_many_rows_are_sampled() -> None:
    cost = StepCost(0.0, 1e-6, 1.0)
    rows = [[0.9, 0.8, 0.7]] * 200
    smart = controller(cost, length_model="tree", acceptance=0.5)
    for _ in range(5):
        plan = smart.plan(state(rows, widths=(1, 4)))
        assert plan.expected_tokens == pytest.approx(200 * chain_tokens(0.5, 3))
