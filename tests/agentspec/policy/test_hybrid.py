"""The policy of a hybrid step: each rule, what is verified, and what is learnt from it."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
from hybrid_rows import batch, chain

from agentspec import ConfigError, DraftBatch, Source, build_tree_arrays
from agentspec.policy import HybridBatch, HybridConfig, HybridPolicy, StepCosts

NOTHING = chain([], [])


def costs(draft: float = 0.25) -> StepCosts:
    """A verification takes 1 second, whatever the width, a draft `draft`, catching up on a token 0.1."""
    known = StepCosts()
    for _ in range(3):
        known.observe_verify(16, 1.0)
        known.observe_draft(1, 4, draft)
        known.observe_catch_up(10, 1.0)
    return known


def policy(draft: float = 0.25, **settings: Any) -> HybridPolicy:
    return HybridPolicy(HybridConfig(**{"margin": 0.0, **settings}), costs(draft))


def suffix_of(*promises: float) -> DraftBatch:
    """Rows that promise so many accepted tokens, of no more nodes than that takes."""
    sizes = [math.ceil(promise) for promise in promises]
    return batch(
        [chain(range(1, n + 1), [promise / n] * n if n else []) for promise, n in zip(promises, sizes, strict=True)]
    )


def choose(
    of: HybridPolicy, drafts: DraftBatch, pending: list[int] | None = None, fit: list[bool] | None = None
) -> list[bool]:
    b = len(drafts)
    chosen = of.choose(
        [f"row {i}" for i in range(b)],
        drafts,
        np.array(pending or [0] * b, np.int32),
        np.array(fit if fit is not None else [True] * b),
        width=16,
    ).rows
    assert chosen.dtype == np.bool_
    return [bool(row) for row in chosen]


# choose -----------------------------------------------------------------------------------------------------------


def test_the_drafter_runs_where_it_is_expected_to_pay() -> None:
    # One row: tau = (1 + 3) * 1 / 1.25 - 1 = 2.2.
    for promised, wanted in ((2.1, True), (2.3, False)):
        auto = policy()
        assert choose(auto, suffix_of(promised)) == [wanted]
        assert auto.tau == pytest.approx(2.2, rel=0.01)
    # With a margin of a half: (1 + 3) * 1 / (1.25 * 1.5) - 1 = 1.13.
    for promised, wanted in ((1.1, True), (1.2, False)):
        wary = policy(margin=0.5)
        assert choose(wary, suffix_of(promised)) == [wanted]
        assert wary.tau == pytest.approx(1.13, rel=0.02)
    assert choose(policy(), suffix_of(0.5), fit=[False]) == [False]
    assert choose(policy(), suffix_of(4.0, 0.0)) == [False, True]


@pytest.mark.parametrize("settings", [{}, {"tau": math.inf}, {"tau": 2.0}, {"rule": "match-length"}])
def test_what_it_tells_of_itself_is_json(settings: dict[str, Any]) -> None:
    of = HybridPolicy(HybridConfig(**settings))
    json.dumps(of.describe(), allow_nan=False)
    choose(of, suffix_of(1.0, 0.0))
    described = json.loads(json.dumps(of.describe(), allow_nan=False))
    assert described["tau"] == (None if math.isinf(of.tau) or math.isnan(of.tau) else of.tau)


def least_gain(of: HybridPolicy, *promises: float, width: int | None = 16) -> float:
    b = len(promises)
    rows = [f"row {i}" for i in range(b)]
    return of.choose(rows, suffix_of(*promises), np.zeros(b, np.int32), np.ones(b, np.bool_), width=width).least_gain


def test_a_further_pass_must_bring_what_its_seconds_bring_elsewhere() -> None:
    known = StepCosts()
    for passes in (1, 2, 3, 4) * 4:
        known.observe_verify(16, 1.0)
        known.observe_draft(1, passes, 0.1 * passes)
        known.observe_catch_up(10, 0.1)
    of = HybridPolicy(HybridConfig(margin=0.0, tau=1.0), known)
    # The drafter expects 3 tokens, so that a step brings 4 in 1 + draft + catching up.
    expected = 4.0 / (1.0 + known.draft(1) + known.catch_up_line[0]) * known.draft_pass(1)
    assert known.draft_pass(1) == pytest.approx(0.1, rel=0.1)
    assert least_gain(of, 0.0) == pytest.approx(expected)
    assert least_gain(of, 5.0) == 0.0, "no row is drafted for"
    assert least_gain(of, 0.0, 8.0) > least_gain(of, 0.0, 0.0), "seconds are worth more beside a row that does well"


def test_where_widths_vary_a_pass_pays_for_the_tokens_that_it_adds_to_a_step() -> None:
    known = StepCosts()
    for step in range(16):
        known.observe_verify(1 + step % 16, 1.0 + 0.1 * (step % 16))
        known.observe_draft(1, 4, 0.4)
    of = HybridPolicy(HybridConfig(margin=0.0, tau=1.0), known)
    assert least_gain(of, 0.0, width=None) > 1.3 * least_gain(of, 0.0, width=8)


def test_what_steps_take_besides_makes_a_drafter_worth_more() -> None:
    of = policy(draft=3.5)
    assert choose(of, suffix_of(0)) == [False]
    of.costs.rest = 2.0
    assert choose(of, suffix_of(0)) == [True]


def test_a_drafter_that_costs_too_much_is_left_alone() -> None:
    assert choose(policy(draft=4.0), suffix_of(0.0)) == [False]


def test_catching_up_is_spread_over_the_steps_that_follow() -> None:
    # 10 tokens take 1 second: too much for one step, not for one of eight.
    assert choose(policy(catch_up_steps=1), suffix_of(1.2), pending=[10]) == [False]
    assert choose(policy(), suffix_of(1.2), pending=[10]) == [True]


def test_a_number_is_a_threshold_of_what_the_suffix_draft_promises() -> None:
    for rule in ("expected", "score"):
        fixed = policy(rule=rule, tau=1.0)
        assert choose(fixed, suffix_of(0.0, 0.9, 1.1)) == [True, True, False]
        assert fixed.tau == 1.0


@pytest.mark.parametrize("rule", ["expected", "score", "match-length"])
def test_zero_is_suffix_only_and_inf_model_only(rule: str) -> None:
    drafts = suffix_of(0.0, 9.0)
    assert choose(policy(rule=rule, tau=0), drafts) == [False, False]
    assert choose(policy(rule=rule, tau=math.inf), drafts) == [True, True]
    assert choose(policy(rule=rule, tau=math.inf), drafts, fit=[False, True]) == [False, True]


def test_the_rule_score_follows_the_rows_own_accepted_length() -> None:
    score = policy(rule="score")
    assert choose(score, suffix_of(2.9, 2.9)) == [True, True]
    for _ in range(20):
        # Row 0 takes five tokens of the model's, row 1 none.
        learn(score, suffix_of(0.0, 0.0), [chain(range(1, 7), [0.5] * 6, 4)] * 2, [5, 0])
    assert choose(score, suffix_of(2.0, 2.0)) == [True, False]
    assert score.tau == pytest.approx(2.5, abs=0.3)


def test_the_rule_match_length_looks_at_the_match_alone() -> None:
    drafts = batch([chain([1], [0.1]), chain([1], [0.9]), NOTHING], match_lens=[4, 3, 9])
    assert choose(policy(rule="match-length"), drafts) == [False, True, True]
    assert choose(policy(rule="match-length", min_match=3), drafts) == [False, False, True]


def test_the_width_that_the_model_needs_is_part_of_its_cost() -> None:
    wide = StepCosts()
    for width in [2, 16] * 20:
        wide.observe_verify(width, 0.1 * width)
        wide.observe_draft(1, 4, 0.01)
    hybrid = HybridPolicy(HybridConfig(), wide)
    one = suffix_of(0.9)
    rows = (["a"], one, np.zeros(1, np.int32), np.array([True]))
    assert hybrid.choose(*rows, width=16).rows.tolist() == [True]
    assert hybrid.choose(*rows).rows.tolist() == [False], "a row of two tokens becomes one of five"


# combine ----------------------------------------------------------------------------------------------------------


def combine(of: HybridPolicy, suffix: list[Any], model: list[Any], wanted: list[bool]) -> DraftBatch:
    ids = [f"row {i}" for i in range(len(suffix))]
    return of.combine(ids, batch(suffix), batch(model), np.array(wanted))


def test_rows_get_the_draft_of_their_own_side() -> None:
    suffix = [chain([1, 2], [0.9, 0.8]), NOTHING, chain([3], [0.5]), NOTHING]
    model = [NOTHING, chain([4, 5], [0.6, 0.5], 4), NOTHING, NOTHING]
    both = combine(policy(), suffix, model, [False, True, True, False])
    assert isinstance(both, HybridBatch) and set(both.model_drafts) == {1, 2}
    assert [both.row(i).tokens.tolist() for i in range(4)] == [[0, 1, 2], [0, 4, 5], [0, 3], [0]]
    assert both.row(1).sources.tolist() == [0, Source.MODEL, Source.MODEL]
    assert both.match_lens.tolist() == [2, 0, 1, 0]
    assert both.scores.tolist() == pytest.approx([1.7, 1.1, 0.5, 0.0])
    assert build_tree_arrays(both, 4).num_nodes.tolist() == [3, 3, 2, 1]
    for array, dtype in (
        (both.tokens, np.int32),
        (both.parents, np.int32),
        (both.estimates, np.float32),
        (both.sources, np.uint8),
    ):
        assert array.dtype == dtype and len(array) == both.offsets[-1]


def test_roots_are_those_of_the_suffix_drafts() -> None:
    suffix = [chain([], [], root=8), chain([], [], root=9)]
    both = combine(policy(), suffix, [chain([4], [0.6], 4), NOTHING], [True, True])
    assert [both.row(i).tokens.tolist() for i in range(2)] == [[8, 4], [9]]


def test_the_suffix_drafts_are_passed_on_where_no_row_was_wanted() -> None:
    drafts = batch([chain([1], [0.5])])
    assert policy().combine(["a"], drafts, batch([NOTHING]), np.array([False])) is drafts


def test_both_drafts_of_a_row_are_merged_within_the_limit() -> None:
    suffix, model = [chain([1, 2], [0.5, 0.4])], [chain([1, 3], [0.8, 0.4], 4)]
    assert combine(policy(), suffix, model, [True]).tokens.tolist() == [0, 1, 2, 3]
    assert combine(policy(max_nodes=2), suffix, model, [True]).tokens.tolist() == [0, 1, 2]


@pytest.mark.parametrize("setting", [{"merge": False}, {"trees": False}])
def test_without_merging_the_better_one_wins(setting: dict[str, bool]) -> None:
    weak, strong = [0.3, 0.2], [0.9, 0.8]
    for p, q, tokens in ((weak, strong, [0, 3, 4]), (strong, weak, [0, 1, 2])):
        both = combine(policy(**setting), [chain([1, 2], p)], [chain([3, 4], q, 4)], [True])
        assert both.tokens.tolist() == tokens


def test_rivals_take_the_models_draft_as_it_is() -> None:
    suffix, model = [chain([1, 2], [0.9, 0.8])], [chain([3], [0.1], 4)]
    for rule in ("score", "match-length"):
        assert combine(policy(rule=rule), suffix, model, [True]).tokens.tolist() == [0, 3]
        assert combine(policy(rule=rule), suffix, [NOTHING], [True]).tokens.tolist() == [0, 1, 2]


def test_model_only_verifies_no_suffix() -> None:
    suffix = [chain([1], [0.9]), chain([1], [0.9])]
    both = combine(policy(tau=math.inf), suffix, [chain([3], [0.1], 4), NOTHING], [True, False])
    assert [both.row(i).tokens.tolist() for i in range(2)] == [[0, 3], [0]]
    assert both.match_lens.tolist() == [0, 0]


# observe ----------------------------------------------------------------------------------------------------------


def learn(of: HybridPolicy, suffix: DraftBatch, model: list[Any], accepted: list[int]) -> None:
    ids = [f"row {i}" for i in range(len(model))]
    both = of.combine(ids, suffix, batch(model), np.ones(len(model), np.bool_))
    of.observe(ids, both, np.array(accepted, np.int32))


def test_a_drafter_that_promises_too_much_is_scaled() -> None:
    hybrid = policy()
    boasting = chain(range(1, 5), [1.0, 0.9, 0.9, 0.8], 4)
    for step in range(200):
        learn(hybrid, suffix_of(0.0), [boasting], [step % 2])
    assert hybrid.calibration.factor == pytest.approx(0.5 / 3.6, rel=0.1)
    both = combine(hybrid, [NOTHING], [boasting], [True])
    assert both.scores[0] == pytest.approx(0.5, rel=0.1)
    assert hybrid.lengths.expected("row 0") == pytest.approx(0.5, abs=0.15)


def test_in_merged_rows_the_text_tells_what_the_model_brought() -> None:
    hybrid = policy()
    ids = ["a"]
    suffix, model = [chain([1, 2, 3], [0.9, 0.8, 0.8])], [chain([1, 7], [0.9, 0.8], 4)]
    for _ in range(60):
        both = hybrid.combine(ids, batch(suffix), batch(model), np.array([True]))
        hybrid.observe(ids, both, np.array([3], np.int32), accepted=[[1, 2, 3, 5]])
    assert hybrid.lengths.expected("a") == pytest.approx(1.0, abs=0.1), "only its first token was right"
    assert hybrid.calibration.factor == pytest.approx(1 / 1.7, rel=0.15)


def test_a_draft_that_was_not_verified_is_judged_as_far_as_the_text_goes() -> None:
    hybrid = policy(merge=False)
    suffix = [chain([1, 2], [0.9, 0.9])]
    for tokens, length in (([3, 4], 0.0), ([1, 8], 1.0), ([1, 2, 5, 9], 3.0)):
        hybrid.forget("a")
        hybrid.lengths.mean = length
        model = [chain(tokens, [0.2] * len(tokens), 4)]
        both = hybrid.combine(["a"], batch(suffix), batch(model), np.array([True]))
        hybrid.observe(["a"], both, np.array([2], np.int32), accepted=[[1, 2, 5]])
        assert hybrid.lengths.expected("a") == pytest.approx(length)
    assert hybrid.calibration.factor == 1.0


def test_batches_that_were_copied_teach_as_well() -> None:
    hybrid = policy()
    for _ in range(50):
        hybrid.observe(["a", "b"], batch([chain([1], [0.5], 4), chain([1], [0.5], 1)]), np.array([1, 1], np.int32))
    assert hybrid.lengths.expected("a") == pytest.approx(1.0, abs=0.1)


def test_what_is_forgotten_is_like_any_other_row() -> None:
    hybrid = policy()
    for _ in range(20):
        learn(hybrid, suffix_of(0.0, 0.0), [chain(range(1, 7), [0.5] * 6, 4)] * 2, [5, 0])
    assert hybrid.lengths.expected("row 0") > 4
    hybrid.forget("row 0")
    hybrid.forget("never seen")
    assert hybrid.lengths.expected("row 0") == hybrid.lengths.mean


def test_arguments_of_different_steps_are_refused() -> None:
    hybrid, two = policy(), suffix_of(0.0, 1.0)
    flags, counts = np.ones(2, np.bool_), np.zeros(2, np.int32)
    with pytest.raises(ConfigError, match=r"suffix must have a row for each of 1 requests, got 2"):
        hybrid.choose(["a"], two, counts[:1], flags[:1])
    with pytest.raises(ConfigError, match=r"pending must have a row for each of 2 requests, got 1"):
        hybrid.choose(["a", "b"], two, counts[:1], flags)
    with pytest.raises(ConfigError, match=r"model must have a row"):
        hybrid.combine(["a", "b"], two, suffix_of(0.0), flags)
    with pytest.raises(ConfigError, match=r"accepted must have a row"):
        hybrid.observe(["a", "b"], two, counts, accepted=[[1]])


def test_an_empty_batch_is_one_too() -> None:
    hybrid, none = policy(), batch([])
    assert hybrid.choose([], none, np.zeros(0, np.int32), np.zeros(0, np.bool_)).rows.tolist() == []
    assert len(hybrid.combine([], none, none, np.zeros(0, np.bool_))) == 0


# what the controller leaves ------------------------------------------------------------------------------------------


def test_a_cut_draft_of_the_model_alone_is_known_as_far_as_it_goes() -> None:
    hybrid = policy(tau=math.inf)
    model = batch([chain([7, 8, 9], [0.9, 0.8, 0.7], 4)])
    drafts = hybrid.combine(["a"], suffix_of(0.0), model, np.array([True]))
    cut = drafts.first(np.array([2], np.int32))
    assert isinstance(cut, HybridBatch)
    left = cut.model_drafts[0]
    assert (left.tokens, left.parents, left.verified) == ([0, 7, 8], [-1, 0, 1], True)
    assert left.expected == pytest.approx(1.7)
    # What became of the third token is nothing to learn from.
    hybrid.observe(["a"], cut, np.array([2], np.int32), [[7, 8, 9]])
    assert hybrid.lengths.expected("a") < 3.0
    assert hybrid.calibration.factor > 1.0


def test_a_cut_draft_of_both_says_nothing_certain_of_the_model() -> None:
    hybrid = policy(tau=10.0)
    drafts = hybrid.combine(
        ["a", "b"], suffix_of(2.0, 0.0), batch([chain([7, 8], [0.9, 0.8], 4)] * 2), np.array([True, True])
    )
    cut = drafts.first(np.array([1, 0], np.int32))
    assert isinstance(cut, HybridBatch)
    assert np.diff(cut.offsets).tolist() == [2, 1]
    assert [cut.model_drafts[i].verified for i in (0, 1)] == [False, False]
    same = drafts.first(np.array([15, 15], np.int32))
    assert isinstance(same, HybridBatch) and same.model_drafts == drafts.model_drafts  # type: ignore[attr-defined]
