"""The policy of a hybrid step: each rule, what is verified, and what is learnt from the verification."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from every import every
from hybrid_rows import Tree, batch, chain, model_trees

from agentspec import ConfigError, DraftBatch
from agentspec.scheduling.hybrid import Choice, HybridBatch, HybridConfig, HybridPolicy, ModelCosts, NextStep
from agentspec.scheduling.hybrid.accepted_lengths import Calibration

NOTHING = chain([], [])


PLAN = NextStep(True, 16, 0, 4.0, 1.0, 8.0, 1.25, saved=0.4)


def policy(**settings: Any) -> HybridPolicy:
    return HybridPolicy(HybridConfig(**settings))


def suffix_of(*promises: float) -> DraftBatch:
    """Rows that promise these numbers of accepted tokens with as few nodes as possible."""
    sizes = [math.ceil(promise) for promise in promises]
    return batch(
        [chain(range(1, n + 1), [promise / n] * n if n else []) for promise, n in zip(promises, sizes, strict=True)]
    )


def choice(of: HybridPolicy, drafts: DraftBatch, fit: list[bool] | None = None, plan: NextStep = PLAN) -> Choice:
    b = len(drafts)
    promised = of.promised([f"row {i}" for i in range(b)], np.zeros(b, np.int64))
    return of.choose(drafts, np.array(fit if fit is not None else [True] * b), promised, plan)


def choose(of: HybridPolicy, drafts: DraftBatch, fit: list[bool] | None = None, plan: NextStep = PLAN) -> list[bool]:
    chosen = choice(of, drafts, fit, plan).rows
    assert chosen.dtype == np.bool_
    return [bool(row) for row in chosen]


# choose -----------------------------------------------------------------------------------------------------------


def test_the_passes_run_for_all_rows_that_are_fit_or_for_none_as_planned() -> None:
    drafts = suffix_of(12.0, 0.0, 0.0)
    for passes in (True, False):
        plan = replace(PLAN, passes=passes)
        assert choose(policy(), drafts, plan=plan) == [passes] * 3
        assert choose(policy(), drafts, [True, False, True], plan) == [passes, False, passes]
    assert choose(policy(), drafts, [False] * 3) == [False] * 3


def test_a_pause_learns_what_the_plan_says_is_saved_unless_tau_is_set_by_hand() -> None:
    drafts = suffix_of(8.0, 0.0)
    for fit in ([True] * 2, [False] * 2):
        for rule in ("expected", "score"):
            assert choice(policy(rule=rule), drafts, fit).saved == 0.4
    for settings in ({"tau": 1.0}, {"tau": math.inf}, {"rule": "match-length"}):
        assert choice(policy(**settings), drafts, [False] * 2).saved == math.inf
    assert choice(policy(tau=0), drafts).saved == 0.0


@pytest.mark.parametrize("settings", [{}, {"tau": math.inf}, {"tau": 2.0}, {"rule": "match-length"}])
def test_what_it_tells_of_itself_is_json(settings: dict[str, Any]) -> None:
    of = policy(**settings)
    json.dumps(of.describe(), allow_nan=False)
    choose(of, suffix_of(1.0, 0.0))
    assert json.loads(json.dumps(of.describe(), allow_nan=False))["expected_accepted"] == 3.0


def test_a_further_pass_must_bring_what_its_seconds_bring_elsewhere() -> None:
    known = ModelCosts()
    for passes in (1, 2, 3, 4) * 4:
        known.observe_draft(1, passes, 0.1 * passes)
    of = HybridPolicy(HybridConfig(), known)
    # A step with the draft model yields 8 tokens in 1.25 seconds.
    assert known.draft_pass(1) == pytest.approx(0.1, rel=0.1)
    assert of.least_gain(PLAN, 1, 0.0) == pytest.approx(6.4 * known.draft_pass(1))
    assert of.least_gain(PLAN, 1, 0.1) == pytest.approx(6.4 * (known.draft_pass(1) + 0.1)), "its token is verified too"
    assert of.least_gain(replace(PLAN, seconds_with_model=0.0), 1, 0.1) == 0.0, "nothing is known"


@pytest.mark.parametrize("rule", ["expected", "score"])
def test_with_a_number_each_row_verifies_one_draft_alone(rule: str) -> None:
    suffix, model = [chain([1, 2], [0.9, 0.8])] * 2, [chain([7, 8], [0.9, 0.8], 4)] * 2
    drafts = combine(policy(rule=rule, tau=1.0), suffix, model, [True, False])
    assert [drafts.row(i).tokens.tolist()[1:] for i in range(2)] == [[7, 8], [1, 2]]
    assert not policy(rule=rule, tau=1.0).merges
    assert policy(rule=rule, tau=1.0, union="always").merges is (rule != "score")


@pytest.mark.parametrize(
    ("tau", "expected"), [(0, [False] * 3), (1.0, [True, True, False]), (9.5, [True] * 3), (math.inf, [True] * 3)]
)
@pytest.mark.parametrize("rule", ["expected", "score"])
def test_a_number_is_a_threshold_of_what_the_suffix_draft_promises(rule: str, tau: float, expected: list[bool]) -> None:
    of, drafts = policy(rule=rule, tau=tau), suffix_of(0.0, 0.9, 1.1)
    assert choose(of, drafts) == expected
    assert choose(of, drafts, fit=[False, True, True]) == [False, *expected[1:]]


def test_the_rule_score_follows_the_rows_own_accepted_length() -> None:
    score = policy(rule="score")
    assert choose(score, suffix_of(2.9, 2.9)) == [True, True]
    for _ in range(20):
        # Row 0 accepts five of the model's tokens, row 1 none.
        learn(score, suffix_of(0.0, 0.0), [chain(range(1, 7), [0.5] * 6, 4)] * 2, [5, 0])
    assert choose(score, suffix_of(2.0, 2.0)) == [True, False]


def test_the_rule_match_length_looks_at_the_match_alone() -> None:
    drafts = batch([chain([1], [0.1]), chain([1], [0.9]), NOTHING], match_lens=[4, 3, 9])
    assert choose(policy(rule="match-length"), drafts) == [False, True, True]
    assert choose(policy(rule="match-length", min_match=3), drafts) == [False, False, True]
    for tau, wanted in ((0, False), (math.inf, True)):
        assert choose(policy(rule="match-length", tau=tau), drafts) == [wanted] * 3
        assert choose(policy(rule="match-length", tau=tau), drafts, fit=[False, True, True]) == [False, wanted, wanted]


# combine ----------------------------------------------------------------------------------------------------------


def combine(
    of: HybridPolicy, suffix: list[Tree], model: list[Tree], wanted: list[bool], rooms: list[int] | None = None
) -> HybridBatch:
    return of.combine(
        batch(suffix), model_trees(model), np.array(wanted, np.bool_), np.array(rooms or [15] * len(suffix), np.int32)
    )


def test_where_the_passes_did_not_run_suffix_drafts_are_verified() -> None:
    drafts = batch([chain([1], [0.5]), NOTHING])
    rooms = np.zeros(2, np.int32)
    both = policy().combine(drafts, None, np.zeros(2, np.bool_), rooms)
    assert both.tokens.tolist() == [0, 1, 0] and not both.ran.any()
    assert both.match_lens.tolist() == [1, 0] and both.scores.tolist() == [0.5, 0.0]
    with pytest.raises(ConfigError, match=r"model must hold the trees of the rows that want one, got None"):
        policy().combine(drafts, None, np.array([True, False]), rooms)


# observe ----------------------------------------------------------------------------------------------------------


def learn(of: HybridPolicy, suffix: DraftBatch, model: list[Tree], accepted: list[int]) -> None:
    """Observes rows in which the model drafts chains of 1, 2, ...; row i accepts `accepted[i]` tokens."""
    ids = [f"row {i}" for i in range(len(model))]
    rooms = np.full(len(ids), 15, np.int32)
    both = of.combine(suffix, model_trees(model), np.ones(len(model), np.bool_), rooms)
    texts = np.array([[*range(1, n + 1), *[99] * (16 - n)] for n in accepted], np.int64)
    of.observe(ids, both, np.array(accepted, np.int32), texts)


def observe(of: HybridPolicy, suffix: list[Tree], model: list[Tree], text: list[int]) -> None:
    """Observes one row "a" whose accepted tokens and bonus token are `text`."""
    rooms = np.full(1, 15, np.int32)
    both = of.combine(batch(suffix), model_trees(model), np.ones(1, np.bool_), rooms)
    of.observe(["a"], both, np.array([len(text) - 1], np.int32), np.array([[*text, 7, 7]]))


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
    suffix, model = [chain([1, 2, 3], [0.9, 0.8, 0.8])], [chain([1, 7], [0.9, 0.8], 4)]
    for _ in range(60):
        observe(hybrid, suffix, model, [1, 2, 3, 5])
    assert hybrid.lengths.expected("a") == pytest.approx(1.0, abs=0.1), "only its first token was right"
    assert hybrid.calibration.factor == pytest.approx(1 / 1.7, rel=0.15)


def test_only_accepted_columns_are_read() -> None:
    hybrid = policy()
    for _ in range(60):
        # The columns after the bonus token happen to hold the tokens that the model drafted.
        observe(hybrid, [NOTHING], [chain([1, 9, 7, 7], [0.9, 0.8, 0.7, 0.6], 4)], [1, 9])
    assert hybrid.lengths.expected("a") == pytest.approx(2.0, abs=0.1)


def test_a_draft_that_was_not_verified_is_judged_as_far_as_the_text_goes() -> None:
    hybrid = policy(union="never")
    suffix = [chain([1, 2], [0.9, 0.9])]
    for tokens, length in (([3, 4], 0.0), ([1, 8], 1.0), ([1, 2, 5], 3.0)):
        hybrid.forget("a")
        hybrid.lengths.mean = length
        observe(hybrid, suffix, [chain(tokens, [0.2] * len(tokens), 4)], [1, 2, 5])
        assert hybrid.lengths.expected("a") == pytest.approx(length)
    assert hybrid.calibration.factor == 1.0


def test_of_a_draft_that_was_right_to_the_end_of_the_text_the_rest_is_as_it_promised() -> None:
    # The suffix draft promises more and is verified. Its first two tokens are right. The bonus token shows that the
    # model's first three tokens were right too, and nothing of the others, which count as much as they promised where the
    # first three are right.
    suffix = [chain([1, 2, 6, 6, 6, 6], [0.99] * 6)]
    for estimates, length in (([0.9, 0.8, 0.8, 0.4, 0.2], 3.75), ([0.39, 0.3, 0.2, 0.1, 0.1], 4.0)):
        hybrid = policy(union="never")
        hybrid.lengths.mean = length
        drafts = combine(hybrid, suffix, [chain([1, 2, 5, 9, 9], estimates, 4)], [True])
        assert drafts.verified.tolist() == [False]
        hybrid.observe(["a"], drafts, np.array([2], np.int32), np.array([[1, 2, 5]]))
        assert hybrid.lengths.expected("a") == pytest.approx(length)


def test_steps_without_the_draft_model_say_nothing_of_it() -> None:
    hybrid = policy()
    for drafts in (suffix_of(3.0), hybrid.combine(suffix_of(3.0), None, np.zeros(1, np.bool_), np.ones(1, np.int32))):
        hybrid.observe(["a"], drafts, np.array([3], np.int32), np.array([[1, 2, 3, 4]]))
    assert len(hybrid.lengths) == 0
    assert (hybrid.lengths.mean, hybrid.calibration.factor) == (3.0, 1.0)


def test_drafts_of_a_step_calibrate_as_they_would_one_by_one() -> None:
    accepted, expected = np.array([0.0, 3.0, 1.0]), np.array([2.5, 0.5, 2.0])
    together, one_by_one = Calibration(), Calibration()
    for _ in range(4):
        together.observe(accepted, expected)
        for i in range(3):
            one_by_one.observe(accepted[i : i + 1], expected[i : i + 1])
        together.observe(accepted[:0], expected[:0])
    assert together.factor == pytest.approx(one_by_one.factor)
    assert 0.8 < together.factor < 0.9


def test_arguments_of_different_steps_are_refused() -> None:
    hybrid, two = policy(), suffix_of(0.0, 1.0)
    flags, counts = np.ones(2, np.bool_), np.zeros(2, np.int32)
    with pytest.raises(ConfigError, match=r"promised must have a row for each of 2 requests, got 1"):
        hybrid.choose(two, flags, np.ones(1), PLAN)
    with pytest.raises(ConfigError, match=r"fit must have a row for each of 2 requests, got 1"):
        hybrid.choose(two, flags[:1], np.ones(2), PLAN)
    with pytest.raises(ConfigError, match=r"model must have a row"):
        hybrid.combine(two, model_trees([NOTHING]), flags, counts)
    with pytest.raises(ConfigError, match=r"rooms must have a row"):
        hybrid.combine(two, model_trees([NOTHING] * 2), flags, counts[:1])
    both = hybrid.combine(two, model_trees([NOTHING] * 2), flags, counts + 15)
    with pytest.raises(ConfigError, match=r"accepted must have a row"):
        hybrid.observe(["a", "b"], both, counts, np.zeros((1, 3), np.int64))
    with pytest.raises(ConfigError, match=r"row 1 must have at most 3 accepted tokens, got 4"):
        hybrid.observe(["a", "b"], both, np.array([2, 3], np.int32), np.zeros((2, 3), np.int64))


def test_an_empty_batch_is_one_too() -> None:
    hybrid, none = policy(), batch([])
    flags, counts = np.zeros(0, np.bool_), np.zeros(0, np.int32)
    assert hybrid.choose(none, flags, np.zeros(0), PLAN).rows.tolist() == []
    both = hybrid.combine(none, None, flags, counts)
    assert len(both) == len(both.first(counts)) == 0
    hybrid.observe([], both, counts, np.zeros((0, 1), np.int64))


# what the controller leaves ------------------------------------------------------------------------------------------


def test_a_cut_draft_of_the_model_alone_is_known_as_far_as_it_goes() -> None:
    hybrid = policy(tau=math.inf)
    drafts = combine(hybrid, [NOTHING] * 2, [NOTHING, chain([7, 8, 9], [0.9, 0.8, 0.7], 4)], [False, True])
    cut = drafts.first(np.array([0, 2], np.int32))
    assert (cut.model_offsets.tolist(), cut.model_tokens.tolist()) == ([0, 0, 3], [0, 7, 8])
    assert (cut.model_parents.tolist(), cut.verified.tolist()) == ([-1, 0, 1], [False, True])
    assert cut.model_expected().tolist() == pytest.approx([0.0, 1.7])
    # Nothing is learnt from the third token, which was cut.
    hybrid.observe(["a", "b"], cut, np.array([0, 2], np.int32), np.array([[1, 0, 0], [7, 8, 9]]))
    assert hybrid.lengths.expected("b") < 3.0
    assert hybrid.calibration.factor > 1.0


@every("seed", range(20))
def test_first_cuts_every_row_by_itself(seed: int) -> None:
    rng = np.random.default_rng(seed)
    b = int(rng.integers(1, 6))
    suffix = [chain(range(1, n + 1), [0.9] * n) for n in rng.integers(0, 4, b).tolist()]
    model = [chain(range(6, n + 6), [0.8] * n, 4) for n in rng.integers(0, 4, b).tolist()]
    wanted = rng.random(b) < 0.7
    drafts = combine(policy(union=str(rng.choice(["auto", "never"]))), suffix, model, wanted.tolist())
    num_nodes = rng.integers(0, 5, b).astype(np.int32)
    cut = drafts.first(num_nodes)
    assert cut.tokens.tolist() == DraftBatch.first(drafts, num_nodes).tokens.tolist()
    for i in range(b):
        own = drafts.model_tokens[drafts.model_offsets[i] : drafts.model_offsets[i + 1]].tolist()
        is_cut = num_nodes[i] < drafts.offsets[i + 1] - drafts.offsets[i] - 1
        keeps = drafts.alone[i] and num_nodes[i] > 0
        if is_cut and keeps:
            own = own[: num_nodes[i] + 1]
        assert cut.model_tokens[cut.model_offsets[i] : cut.model_offsets[i + 1]].tolist() == own
        assert cut.verified[i] == (drafts.verified[i] and (keeps or not is_cut))
        assert cut.alone[i] == (drafts.alone[i] and (keeps or not is_cut))
        assert cut.ran[i] == wanted[i]
