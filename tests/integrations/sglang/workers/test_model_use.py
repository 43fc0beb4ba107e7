"""How a server uses its draft model, in steps that wait for their suffix drafts."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hybrid_rows import batch, chain

from agentspec.integrations.sglang.workers.model_use import ModelUse
from agentspec.scheduling.hybrid import HybridPolicy, NextStep


@pytest.mark.parametrize("wants_drafts", [False, True])
def test_a_trial_of_the_draft_model_drafts_for_the_rows_whose_texts_it_has_read(wants_drafts: bool) -> None:
    """The plan does not expect its passes to pay."""
    control, pause = SimpleNamespace(), SimpleNamespace(wants_drafts=wants_drafts)
    use = ModelUse(HybridPolicy(), control, pause, passes=3, max_width=8, max_position=100)  # type: ignore[arg-type]
    drafts, fit = batch([chain([], []), chain([], [])]), np.array([True, False])
    plan: Any = NextStep(False, 1, 0, 2.0, 1.0, 2.0, 1.5, 0.0)
    choice = use.choose(drafts, fit, np.zeros(2), plan)
    assert choice.rows.tolist() == [wants_drafts, False]
    assert choice.ready == 1
