"""How a server uses its draft model."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hybrid_rows import batch, chain

from agentspec.integrations.sglang.workers.model_use import ModelUse
from agentspec.scheduling.hybrid import HybridPolicy, NextStep


def model_use(wants_drafts: bool = False) -> ModelUse:
    control, pause = SimpleNamespace(), SimpleNamespace(wants_drafts=wants_drafts)
    return ModelUse(HybridPolicy(), control, pause, passes=3, max_width=8, max_position=100)  # type: ignore[arg-type]


@pytest.mark.parametrize("wants_drafts", [False, True])
def test_a_trial_of_the_draft_model_drafts_for_the_rows_whose_texts_it_has_read(wants_drafts: bool) -> None:
    """The step waits for its suffix drafts, and its plan does not expect the passes to pay."""
    use = model_use(wants_drafts)
    drafts, fit = batch([chain([], []), chain([], [])]), np.array([True, False])
    plan: Any = NextStep(False, 1, 0, 2.0, 1.0, 2.0, 1.5, 0.0)
    choice = use.choose(drafts, fit, np.zeros(2), plan)
    assert choice.rows.tolist() == [wants_drafts, False]
    assert choice.ready == 1


def test_the_draft_model_is_timed_in_each_step_at_first_and_seldom_later() -> None:
    use = model_use()
    assert all(use.times_next() for _ in range(64))
    assert sum(use.times_next() for _ in range(400)) == 100
    # Steps without the draft model do not count.
    use = model_use()
    use.follows = False
    for _ in range(100):
        use.times_next()
    use.follows = True
    assert all(use.times_next() for _ in range(64))
