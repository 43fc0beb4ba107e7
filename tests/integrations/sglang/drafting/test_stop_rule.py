"""A draft model stops drafting where another pass does not pay, and a row where a rejection is likely."""

from __future__ import annotations

import random
from dataclasses import replace
from types import SimpleNamespace

import pytest
from every import every

torch = pytest.importorskip("torch", reason="drafts are scored in torch; `make setup` installs it")

from agentspec.errors import ConfigError
from agentspec.integrations.sglang import compat
from agentspec.integrations.sglang.drafting.stop_rule import DraftStop, RowStops, stop_threshold
from agentspec.scheduling.baselines.candidate_length import candidate_length
from agentspec.scheduling.costs.cost_model import StepCost
from agentspec.scheduling.costs.profile import MeasuredRange, Profile, ProfileKey


def test_without_a_price_drafts_go_on() -> None:
    assert not DraftStop().is_over(torch.tensor([[0.0, 0.0]]), 3)


def test_a_pass_is_worth_what_the_best_paths_promise_together() -> None:
    # After two passes, a path of 0.64 has tokens of 0.8 each, so a third pass adds 0.512; a path of 0.25 adds 0.125.
    scores = torch.tensor([[0.64, 0.5], [0.1, 0.25]])
    assert not DraftStop(least_gain=0.63).is_over(scores, 2)
    assert DraftStop(least_gain=0.64).is_over(scores, 2)


def test_a_captured_draft_goes_on_without_a_look_at_its_scores(monkeypatch: pytest.MonkeyPatch) -> None:
    scores = torch.tensor([[0.1]])
    stops = RowStops(0.5)
    stops.after_first(scores[:, None], scores)
    stop = DraftStop(threshold=0.5)
    assert stop.is_over(scores, 1, stops)
    monkeypatch.setattr(compat, "is_capturing", lambda: True)
    assert not stop.is_over(scores, 1, stops)


@pytest.mark.parametrize("threshold", [0.5, 1.0])
def test_a_threshold_decides_whatever_a_pass_costs(threshold: float) -> None:
    likely = torch.tensor([[0.9]])
    stops = RowStops(threshold)
    stops.after_first(likely[:, None], likely)
    assert not DraftStop(threshold, least_gain=5.0).is_over(likely, 1, stops)
    assert DraftStop(None, least_gain=5.0).is_over(likely, 1)


def test_products_that_rounding_lifts_over_one_are_no_riches() -> None:
    assert DraftStop(least_gain=1.001).is_over(torch.tensor([[1.5]]), 1)


@pytest.mark.parametrize("threshold", [0.05, 0.3, 0.6, 0.95])
def test_a_chain_has_the_length_of_the_paper_s_rule(threshold: float) -> None:
    torch.manual_seed(0)
    b, steps = 50, 8
    probabilities = torch.rand(b, steps, dtype=torch.float64) ** 0.3
    estimates = torch.rand(b, steps, dtype=torch.float64)
    stops = RowStops(threshold)
    found = [stops.after_first(estimates[:, :1, None], probabilities[:, :1])]
    over = []
    for step in range(1, steps):
        over.append(stops.all_stopped())
        kept = torch.zeros((b, 1), dtype=torch.int64)
        found.append(stops.after_pass(estimates[:, step, None, None], probabilities[:, step : step + 1], kept))
    drafted = torch.cat([scores.flatten(1) for scores in found], dim=1)
    lengths = candidate_length(probabilities.numpy(), threshold)
    for row, length in enumerate(lengths.tolist()):
        assert torch.equal(drafted[row, :length], estimates[row, :length])
        assert (drafted[row, length:] == RowStops.ENDED).all()
    assert over == [step > lengths.max() - 1 for step in range(1, steps)]


@every("seed", range(20))
def test_of_a_tree_the_best_path_that_is_gone_on_with_decides(seed: int) -> None:
    draw = random.Random(seed)
    b, topk, steps, threshold = 3, draw.randint(1, 3), 5, 0.5
    torch.manual_seed(seed)
    stops = RowStops(threshold)
    first = torch.rand(b, topk) ** 0.3
    stops.after_first(first[:, None], first)
    paths = [row.tolist() for row in first]
    going = [1 - max(row) <= threshold for row in paths]
    for _ in range(steps):
        scores, probabilities = torch.rand(b, topk, topk), torch.rand(b * topk, topk) ** 0.3
        kept = torch.stack([torch.randperm(topk * topk)[:topk] for _ in range(b)])
        found = stops.after_pass(scores, probabilities, kept)
        for row in range(b):
            assert torch.equal(found[row], scores[row] if going[row] else torch.full((topk, topk), RowStops.ENDED))
            paths[row] = [
                paths[row][i // topk] * float(probabilities[row * topk + i // topk, i % topk])
                for i in kept[row].tolist()
            ]
            going[row] = going[row] and 1 - max(paths[row]) <= threshold
        assert stops.all_stopped() is not any(going)


def test_the_threshold_is_a_number_the_heads_or_the_theorems() -> None:
    head = SimpleNamespace(config=SimpleNamespace(threshold=0.4))
    key = ProfileKey(model="m", device="d", engine="e", graphs="none")
    measured = MeasuredRange(batch_sizes=(1, 1), context_lengths=(0, 200), widths=(1, 1))
    alone = Profile(key=key, target=StepCost(0.0, 0.0, 0.010), measured=measured, widths=(1,))
    both = replace(alone, drafter=StepCost(0.00001, 0.0, 0.001))
    assert stop_threshold("0.7", None, None) == 0.7 and stop_threshold("auto", None, None) is None
    assert stop_threshold("head", head, None) == 0.4  # type: ignore[arg-type]
    # A token of the draft takes 2 ms after 100 tokens, and a verification 10 ms.
    assert stop_threshold("theorem", None, both) == pytest.approx(0.8)
    for text, profile, told in (("head", both, "acceptance head"), ("theorem", None, "got no profile")):
        with pytest.raises(ConfigError, match=told):
            stop_threshold(text, None, profile)
    with pytest.raises(ConfigError, match="of the target alone"):
        stop_threshold("theorem", None, alone)
