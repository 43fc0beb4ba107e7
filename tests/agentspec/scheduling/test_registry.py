"""Settings and controllers by name: an unknown or incomplete one is refused with its value."""

from __future__ import annotations

from typing import Any, get_args

import numpy as np
import pytest
from draft_states import drawn_rows, profile, state
from every import every

from agentspec import ConfigError
from agentspec.scheduling import CONTROLLERS, ControlConfig, ControllerName, make_controller


@every(
    ("settings", "message"),
    [
        ({"controller": "best"}, "one of goodput, smartspec, batch-table, roofline, fixed, sweep, got 'best'"),
        ({"length_model": "graph"}, "one of chain, tree, confidence, got 'graph'"),
        ({"length": -1}, "length must be an integer >= 0, got -1"),
        ({"patience": 0}, "patience must be an integer >= 1, got 0"),
        ({"window": True}, "window must be an integer >= 1, got True"),
        ({"margin": -0.1}, "margin must be a number finite and >= 0, got -0.1"),
        ({"margin": float("inf")}, "margin must be a number finite"),
        ({"probe_share": 0.5}, r"probe_share must be a number in \[0, 0.1\], got 0.5"),
        ({"acceptance": "much"}, r"acceptance must be a number in \[0, 1\], got 'much'"),
        ({"table": ((2, 1), (1, 1))}, "ascending batch sizes"),
        ({"table": ((1, -1),)}, "ascending batch sizes"),
    ],
)
def test_bad_settings_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ControlConfig(**settings)


def test_what_a_controller_lacks_is_named() -> None:
    with pytest.raises(ConfigError, match="peak_flops and peak_bandwidth, got no profile"):
        make_controller(ControlConfig(controller="roofline"), None)
    with pytest.raises(ConfigError, match="got None and None"):
        make_controller(ControlConfig(controller="roofline"), profile())
    with pytest.raises(ConfigError, match="batch-table needs a table or a profile, got neither"):
        make_controller(ControlConfig(controller="batch-table"), None)


@every("name", get_args(ControllerName))
def test_every_controller_keeps_to_the_protocol(name: ControllerName) -> None:
    assert set(CONTROLLERS) == set(get_args(ControllerName))
    rng = np.random.default_rng(0)
    known = profile(peaks=(1e15, 1e12))
    first, second = (make_controller(ControlConfig(controller=name), known) for _ in range(2))
    assert first.name == name
    for _ in range(200):
        rows, context = int(rng.integers(1, 9)), int(rng.integers(1, 9000))
        max_width = int(rng.integers(1, 9))
        drawn = state(drawn_rows(rng, rows, 7), context=context, max_width=max_width)
        draws = rng.random(rows)
        plans = []
        for controller in (first, second):
            plan = controller.plan(drawn)
            counts = np.diff(drawn.drafts.offsets) - 1
            assert plan.width in (1, 2, 4, 8) and plan.width <= max_width
            assert plan.num_nodes.dtype == np.int32 and plan.num_nodes.shape == (rows,)
            assert (plan.num_nodes <= np.minimum(counts, plan.width - 1)).all()
            assert plan.seconds > 0 and plan.expected_tokens >= rows
            accepted = (draws * (plan.num_nodes + 1)).astype(np.int32)
            controller.observe(plan, accepted, known.target.seconds(context, rows * plan.width), context=context)
            plans.append((plan.width, plan.num_nodes.tolist(), plan.reason))
        assert plans[0] == plans[1], "the same calls give the same plans"
    described = first.describe()
    assert described["controller"] == name and described["steps_observed"] == 200.0


def test_a_sweep_takes_each_width_in_turn() -> None:
    sweep = make_controller(ControlConfig(controller="sweep"), None)
    drawn = [[0.9] * 7, [0.5], []]
    for widths, expected in (((1, 4, 8), [1, 4, 8]), ((), [1, 2, 4, 8])):
        plans = [sweep.plan(state(drawn, widths=widths, max_width=8)) for _ in range(len(expected) * 3)]
        assert sorted({plan.width for plan in plans}) == expected
        for plan in plans:
            assert plan.num_nodes.tolist() == [min(plan.width - 1, n) for n in (7, 1, 0)]
