"""The controller inside a server: how it cuts drafts, and the cost of its failures."""

from __future__ import annotations

import dataclasses
import time
from types import SimpleNamespace
from typing import Any, get_args

import numpy as np
import pytest
from every import every

pytest.importorskip("torch", reason="the plugin needs torch; `make setup` installs it")

from draft_states import KEY, batch, drawn_rows, profile

from agentspec import DraftBatch, build_tree_arrays
from agentspec.errors import ConfigError
from agentspec.integrations.sglang.metrics import Counters
from agentspec.integrations.sglang.widths.control import WidthControl
from agentspec.scheduling import ControlConfig, Profile
from agentspec.scheduling.config import ControllerName

DRAFTS = batch([[0.9, 0.8, 0.7], [0.4], []])
CONTEXT = 60


WIDTHS = (1, 2, 4, 8, 16, 32)


def control(
    known: Profile | None = None,
    *,
    widths: tuple[int, ...] = (),
    max_width: int = 8,
    **config: Any,
) -> WidthControl:
    if known is not None and widths:
        known = dataclasses.replace(known, key=dataclasses.replace(known.key, graphs="captured"))
    made = WidthControl(ControlConfig(**config), known, KEY, max_width=max_width, counters=Counters(), max_failures=2)
    if widths:
        made.use_widths(widths, captured=True)
    return made


def test_a_step_is_as_wide_as_its_widest_row() -> None:
    of = control(controller="fixed", length=2)
    kept, planned = of.plan(DRAFTS, CONTEXT)
    assert kept.tolist() == [2, 1, 0]
    assert (planned.width, planned.rows, planned.context) == (3, 3, 60)
    kept, planned = of.plan(batch([[0.5], []]), 30)
    assert planned.width == 2
    planned.took(0.25)
    of.observe(planned, [1, 0])


def test_the_first_step_of_a_shape_teaches_no_time() -> None:
    of = control(controller="fixed", length=2)
    # GPU kernels are compiled for each width and up to each power of two of rows.
    for rows, known in [(1, 0), (3, 0), (4, 1), (5, 1), (3, 2), (7, 3)]:
        _, planned = of.plan(batch([[0.5]] * rows), 30)
        planned.took(0.25)
        of.observe(planned, [1] * rows)
        assert of.controller.costs.num_observed == known, rows
    assert of.describe()["last_step"]["observed_ms"] == 250.0


@pytest.mark.parametrize(("mode", "prompts", "counts"), [("extend", 3, True), ("extend", 1, False), ("idle", 0, False)])
def test_prompts_that_are_read_together_between_steps_are_paid_for(
    monkeypatch: pytest.MonkeyPatch, mode: str, prompts: int, counts: bool
) -> None:
    """A verification takes 10 ms, and what is between two of them 30 ms."""
    of, now, requests = control(profile()), 0.0, [object() for _ in range(3)]
    monkeypatch.setattr(time, "perf_counter", lambda: now)
    between: Any = SimpleNamespace(
        forward_mode=SimpleNamespace(is_extend=lambda: mode == "extend"),
        reqs=[None] * prompts,
        extend_lens=[1] * prompts,
    )
    for _ in range(12):
        of.step_begins(requests)
        _, planned = of.plan(DRAFTS, CONTEXT)
        planned.took(0.01)
        of.verifies(planned, now + 0.01, in_order=False)
        of.interrupted(between)
        now += 0.04
    assert (of.rest > 0.01) == counts


def test_graphs_of_one_width_are_filled() -> None:
    # The controller's cuts do not matter: a step takes the time of the graphs' width anyway.
    for of in (control(widths=(8,)), control(widths=(8,), controller="fixed", length=0)):
        kept, planned = of.plan(DRAFTS, CONTEXT)
        assert planned.width == 8
        assert kept.tolist() == [3, 1, 0]
        of.observe(planned, [1, 0, 0])


@pytest.mark.parametrize(("measured", "captured"), [("captured", True), ("none", False)])
def test_a_profile_is_of_steps_with_graphs_or_without(measured: str, captured: bool) -> None:
    known = profile()
    of = control(dataclasses.replace(known, key=dataclasses.replace(known.key, graphs=measured)))
    of.use_widths((1, 8), captured=captured)
    assert of.widths == (1, 8)
    with pytest.raises(ConfigError, match="graphs"):
        of.use_widths((1, 8), captured=not captured)


def test_steps_are_padded_to_widths_that_have_graphs() -> None:
    of = control(widths=(1, 2, 4, 8), controller="fixed", length=7)
    for rows, width in (([[0.5] * 4, []], 8), ([[0.9, 0.8, 0.7], [0.4]], 4), ([[0.5], []], 2), ([[], []], 1)):
        kept, planned = of.plan(batch(rows), 30)
        # Drafts that fit are not cut.
        assert kept.tolist() == [len(row) for row in rows]
        assert planned.width == width
        of.observe(planned, [0, 0])
        assert planned.plan is not None and planned.plan.width == width
    # The next wider graphs replace graphs that could not be captured.
    of.use_widths((4, 8), captured=True)
    assert of.plan(batch([[], []]), 30)[1].width == 4


def test_the_controller_cuts_to_widths_that_have_graphs() -> None:
    of = control(profile(), widths=(1, 4, 8), probe_share=0.0, objective="step")
    for estimate in (0.02, 0.3, 0.99):
        kept, planned = of.plan(batch([[estimate] * 7] * 3), CONTEXT)
        assert planned.width in (1, 4, 8) and (kept == min(planned.width - 1, 7)).all()
    assert planned.width == 8
    assert of.describe()["widths_captured"] == [1, 4, 8]


def drafts_of(rows: int, nodes: int) -> DraftBatch:
    """Drafts of `nodes` nodes for one of the rows, and of none for the others."""
    return batch([[0.9] * nodes] + [[]] * (rows - 1))


@every("seed", range(4))
@every("widths", [WIDTHS, ()])
def test_many_rows_are_offered_twice_the_widest_of_the_latest_steps(widths: tuple[int, ...], seed: int) -> None:
    rng = np.random.default_rng(seed)
    of = control(widths=widths, max_width=32, controller="fixed", length=31)
    verified: list[int] = []
    for step in range(60):
        rows = int(rng.choice([1, 32, 40]))
        most = of.most_width(rows)
        if rows < 32 or not verified:
            assert most == 32
        else:
            offered = min(max(2 * max(verified[-8:]), 4), 32)
            assert most == (min(width for width in widths if width >= offered) if widths else offered)
        # Drafts are wide in some steps, then narrow for more steps than are remembered.
        nodes = int(rng.integers(0, most if step % 20 < 4 else 2))
        kept, planned = of.plan(drafts_of(rows, nodes), CONTEXT)
        assert kept.max() == nodes, "what is offered is not cut again"
        assert kept.max() < planned.width <= most and planned.width in (widths or range(33))
        verified.append(planned.width)
    assert len(set(verified)) > 3


@pytest.mark.parametrize("broken", [False, True], ids=["at work", "failing"])
def test_steps_have_a_width_that_their_rows_may_have(broken: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    of = control(max_width=32, controller="fixed", length=31)
    of.use_widths(WIDTHS, captured=True, widths_for=lambda rows: WIDTHS if rows < 5 else (1, 2, 8))
    if broken:
        monkeypatch.setattr(of.controller, "plan", lambda state: 1 / 0)
    for rows, nodes, allowed, kept_nodes, width in (
        (4, 31, 32, 31, 32),
        (5, 31, 8, 7, 8),
        (5, 2, 8, 2, 8),
        (5, 1, 8, 1, 2),
        (40, 0, 8, 0, 1),
    ):
        assert of.most_width(rows) == allowed
        kept, planned = of.plan(drafts_of(rows, nodes), CONTEXT)
        assert kept.tolist() == [kept_nodes] + [0] * (rows - 1)
        assert (planned.width, planned.num_tokens) == (width, rows * width)
    assert (of._counters.total("control_errors") > 0) == broken


@pytest.mark.parametrize("place", ["plan", "observe"])
def test_a_failing_controller_costs_nothing_but_its_cuts(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    of = control(controller="fixed", length=1)

    def fail(*args: Any, **rest: Any) -> Any:
        raise RuntimeError("broken")

    monkeypatch.setattr(of.controller, place, fail)
    for _ in range(3):
        kept, planned = of.plan(DRAFTS, CONTEXT)
        of.observe(planned, [1, 1, 0])
    whole = place == "plan"
    assert kept.tolist() == ([3, 1, 0] if whole else [1, 1, 0])
    # After repeated failures, the controller is not called for a while.
    errors = of._counters.total("control_errors")
    assert errors == {"plan": 2, "observe": 3}[place]


def test_counts_of_other_rows_are_not_learnt_from() -> None:
    of = control(controller="fixed")
    for _ in range(2):
        _, planned = of.plan(DRAFTS, CONTEXT)
        planned.took(0.25)
    of.observe(planned, [1])
    assert of.controller.costs.num_observed == 0


def test_a_profile_of_something_else_is_refused() -> None:
    with pytest.raises(ConfigError, match="model"):
        WidthControl(
            ControlConfig(),
            profile(),
            dataclasses.replace(KEY, model="other"),
            max_width=8,
            counters=Counters(),
            max_failures=2,
        )
    assert control(profile()).controller.costs.known


@every("widths", [(), WIDTHS])
@every("name", get_args(ControllerName))
def test_what_any_controller_leaves_can_be_laid_out(name: str, widths: tuple[int, ...]) -> None:
    """If it could not, a step with roots alone, which replaces failed steps, would fail too."""
    rng = np.random.default_rng(0)
    of = control(profile(peaks=(1e12, 1e11), hidden_size=64), widths=widths, max_width=32, controller=name)
    for step in range(40):
        drafts = batch(drawn_rows(rng, int(rng.integers(1, 6)), 31) if step % 4 else [[], []])
        kept, planned = of.plan(drafts, CONTEXT)
        assert build_tree_arrays(drafts, planned.width, num_drafted=kept).num_nodes.tolist() == (kept + 1).tolist()
        planned.took(0.01)
        of.observe(planned, (kept // 2).tolist())


@pytest.mark.parametrize(("ran_dry", "learnt"), [(False, 40), (True, 10)])
def test_where_the_device_waits_for_the_host_few_steps_are_learnt_from(ran_dry: bool, learnt: int) -> None:
    of = control(profile())
    while of.num_timed < 64:
        _, planned = of.plan(DRAFTS, CONTEXT)
        planned.took(0.01)
        assert of.learns(), "while few steps were timed, each one counts"
        of.observe(planned, [0] * len(DRAFTS))
    of._rest.ran_dry = ran_dry
    assert sum(of.learns() for _ in range(40)) == learnt


def test_a_step_that_is_not_learnt_from_is_counted() -> None:
    of = control(profile())
    _, planned = of.plan(DRAFTS, CONTEXT)
    planned.took(0.01)
    of.observe(planned, [0] * len(DRAFTS), learns=False)
    assert of.num_timed == 0 and of.describe()["observed_tokens"] == len(DRAFTS)


def test_predictions_follow_the_batch_and_what_was_learnt() -> None:
    of, widths = control(profile()), np.array([1, 2, 4])
    first = of.seconds(2, widths, 1000)
    assert of.seconds(2, widths, 1001) is first, "a few tokens more change nothing"
    assert (of.seconds(4, widths, 1000) > first).all() and (of.seconds(2, widths, 100_000) > first).all()
    for _ in range(2):
        _, planned = of.plan(DRAFTS, CONTEXT)
        planned.took(10.0)
        of.observe(planned, [0] * len(DRAFTS))
    assert not np.array_equal(of.seconds(2, widths, 1000), first)
