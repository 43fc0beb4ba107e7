"""The controller inside a server: what it leaves of drafts, and what its failures cost."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="the plugin needs torch; `make setup` installs it")

from draft_states import KEY, batch, profile

from agentspec.control import ControlConfig, Profile
from agentspec.errors import ConfigError
from agentspec.integrations.sglang.counters import Counters
from agentspec.integrations.sglang.width_control import WidthControl

DRAFTS = batch([[0.9, 0.8, 0.7], [0.4], []])
LENS = np.array([10, 20, 30], np.int64)


def control(
    known: Profile | None = None,
    *,
    widths: tuple[int, ...] = (),
    ragged: bool = False,
    profiling: bool = False,
    **config: Any,
) -> WidthControl:
    return WidthControl(
        ControlConfig(**config),
        known,
        KEY,
        max_width=8,
        widths=widths,
        counters=Counters(),
        max_failures=2,
        ragged=ragged,
        profiling=profiling,
    )


def test_a_step_is_as_wide_as_its_widest_row() -> None:
    of = control(controller="fixed", length=2)
    drafts, planned = of.plan(DRAFTS, LENS)
    assert np.diff(drafts.offsets).tolist() == [3, 2, 1]
    assert (planned.width, planned.rows, planned.context) == (3, 3, 60)
    drafts, planned = of.plan(batch([[0.5], []]), LENS[:2])
    assert planned.width == 2
    planned.took(0.25)
    of.observe(planned, [1, 0])
    assert of.describe()["last_step"]["observed_ms"] == 250.0
    assert of.controller.costs.num_observed == 1


def test_rows_that_are_not_padded_are_paid_for_by_their_nodes() -> None:
    of = control(profile(), ragged=True, probe_share=0.0)
    rows = batch([[0.9] * 7, [0.01], [0.01] * 3])
    drafts, planned = of.plan(rows, LENS)
    assert np.diff(drafts.offsets).tolist() == [8, 2, 2]
    assert (planned.width, planned.num_tokens) == (8, 12)
    assert planned.plan is not None and (planned.plan.width, planned.plan.num_tokens) == (4, 12)
    assert of.describe()["last_step"] == {}
    planned.took(0.5)
    of.observe(planned, [3, 0, 0])
    assert of.describe()["last_step"]["width"] == 4


@pytest.mark.parametrize("padded", [{"widths": (1, 2, 4, 8)}, {"widths": (8,)}, {"profiling": True}], ids=str)
def test_rows_are_padded_all_the_same_to_graphs_and_where_steps_are_measured(padded: dict[str, Any]) -> None:
    of = control(ragged=True, controller="fixed", length=3, **padded)
    drafts, planned = of.plan(DRAFTS, LENS)
    assert not of.ragged
    assert np.diff(drafts.offsets).tolist() == [4, 2, 1]
    assert planned.num_tokens == 3 * planned.width


def test_what_steps_take_besides_is_found_and_told() -> None:
    of = control(controller="fixed", length=2)
    for _ in range(10):
        of.step_begins()
        _, planned = of.plan(DRAFTS, LENS)
        # As if verification had taken a hundredth of what passes between two steps.
        planned.took(1e-9)
    assert 0 < of.rest < 1.0
    assert of.describe()["rest_ms"] == of.rest * 1e3


def test_plain_decoding_is_a_width_too() -> None:
    drafts, planned = control(controller="fixed", length=0).plan(DRAFTS, LENS)
    assert len(drafts.tokens) == 3 and planned.width == 1


def test_graphs_of_one_width_are_filled() -> None:
    # Whatever the controller would leave of them: the step takes as long as it takes.
    for of in (control(widths=(8,)), control(widths=(8,), controller="fixed", length=0)):
        assert of.wants_draft(3, 60)
        drafts, planned = of.plan(DRAFTS, LENS)
        assert planned.width == 8
        assert np.diff(drafts.offsets).tolist() == [4, 2, 1]
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
        drafts, planned = of.plan(batch(rows), LENS[:2])
        # Nothing is cut that fits.
        assert np.diff(drafts.offsets).tolist() == [1 + len(row) for row in rows]
        assert planned.width == width and planned.plan is not None and planned.plan.width == width
    # A graph that could not be captured is made up for by the next one.
    of.widths = (4, 8)
    assert of.plan(batch([[], []]), LENS[:2])[1].width == 4


def test_the_controller_cuts_to_widths_that_have_graphs() -> None:
    of = control(profile(), widths=(1, 4, 8), probe_share=0.0, objective="step")
    for estimate in (0.02, 0.3, 0.99):
        drafts, planned = of.plan(batch([[estimate] * 7] * 3), LENS)
        kept = np.diff(drafts.offsets) - 1
        assert planned.width in (1, 4, 8) and (kept == min(planned.width - 1, 7)).all()
    assert planned.width == 8
    assert of.describe()["widths_captured"] == [1, 4, 8]


def test_a_failing_controller_still_pads_to_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    of = control(widths=(1, 4, 8))
    monkeypatch.setattr(of.controller, "plan", lambda state: 1 / 0)
    drafts, planned = of.plan(batch([[0.5, 0.5], []]), LENS[:2])
    assert planned.width == 4 and np.diff(drafts.offsets).tolist() == [3, 1]


@pytest.mark.parametrize("place", ["plan", "wants_draft", "observe"])
def test_a_failing_controller_costs_nothing_but_its_cuts(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    of = control(controller="fixed", length=1)

    def fail(*args: Any, **rest: Any) -> Any:
        raise RuntimeError("broken")

    monkeypatch.setattr(of.controller, place, fail)
    assert of.wants_draft(3, 60)
    for _ in range(3):
        drafts, planned = of.plan(DRAFTS, LENS)
        of.observe(planned, [1, 1, 0])
    whole = place == "plan"
    assert np.diff(drafts.offsets).tolist() == ([4, 2, 1] if whole else [2, 2, 1])
    # After repeated failures it is left alone for a while.
    errors = of._counters.total("control_errors")
    assert errors == {"plan": 2, "wants_draft": 1, "observe": 3}[place]


def test_counts_of_other_rows_are_not_learnt_from() -> None:
    of = control()
    _, planned = of.plan(DRAFTS, LENS)
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
