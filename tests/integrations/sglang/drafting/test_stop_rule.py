"""A draft model stops drafting where another pass does not pay."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="drafts are scored in torch; `make setup` installs it")

from agentspec.integrations.sglang import compat
from agentspec.integrations.sglang.drafting.stop_rule import DraftStop


def test_without_a_price_drafts_go_on() -> None:
    assert not DraftStop().is_over(torch.tensor([[0.0, 0.0]]), 3)


def test_a_pass_is_worth_what_the_best_paths_promise_together() -> None:
    # After two passes, a path of 0.64 has tokens of 0.8 each, so a third pass adds 0.512; a path of 0.25 adds 0.125.
    scores = torch.tensor([[0.64, 0.5], [0.1, 0.25]])
    assert not DraftStop(least_gain=0.63).is_over(scores, 2)
    assert DraftStop(least_gain=0.64).is_over(scores, 2)


def test_with_a_threshold_the_likeliest_row_decides() -> None:
    scores = torch.tensor([[0.2, 0.1], [0.35, 0.3]])
    assert not DraftStop(threshold=0.7).is_over(scores, 2)
    assert DraftStop(threshold=0.6).is_over(scores, 2)


def test_a_captured_draft_goes_on_without_a_look_at_its_scores(monkeypatch: pytest.MonkeyPatch) -> None:
    scores = torch.tensor([[0.1]])
    stop = DraftStop(threshold=0.5, least_gain=1.0)
    assert stop.is_over(scores, 1)
    monkeypatch.setattr(compat, "is_capturing", lambda: True)
    assert not stop.is_over(scores, 1)


def test_products_that_rounding_lifts_over_one_are_no_riches() -> None:
    assert DraftStop(least_gain=1.001).is_over(torch.tensor([[1.5]]), 1)
