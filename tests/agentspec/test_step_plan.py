"""A drafting step recommends the draft model's passes to the next step if they bring more than their seconds are worth."""

from __future__ import annotations

import numpy as np
import pytest
from drafting_steps import Order, Step, table
from every import every

from agentspec import Engine, EngineConfig, _core

LOOP, UNHEARD_OF, NEXT = [1, 2, 3, 4] * 8, [5, 6, 7], 1
"""After the first text and the next token, suffixes draft seven tokens, nearly certain. After the second, nothing."""
WIDTHS, SECONDS = np.array([1, 2, 4, 8]), np.array([1.0, 1.02, 1.06, 1.14])


def planned(
    texts: list[list[int]],
    *,
    promised: float = 3.0,
    passes_seconds: float = 0.2,
    objective: _core.Objective = _core.Objective.STEP,
    steps: int = 1,
    **rest: object,
) -> list[tuple[float, ...]]:
    """The plans of some steps that draft for the same texts. The draft model's passes take `passes_seconds`."""
    engine = Engine(EngineConfig(vocab_size=9, max_draft_tokens=7, min_token_prob=0.02))
    names, b = [str(i) for i in range(len(texts))], len(texts)
    for name, text in zip(names, texts, strict=True):
        engine.open(name, text)
    step = Step(engine, b, 8, objective=objective)
    ends = [len(text) for text in texts]
    written = [(names, table([[NEXT] for _ in texts], 1, ends), None, None)]
    order = Order(
        names,
        written,
        widths=WIDTHS,
        seconds=SECONDS,
        with_model=SECONDS + passes_seconds,
        promised=np.full(b, promised),
        fit=np.ones(b, np.bool_),
        rest=0.0,
        **rest,  # type: ignore[arg-type]
    )
    found = []
    for _ in range(steps):
        native = step.run(order)
        assert native.error == ""
        found.append(native.next)
        order.written = []
    return found


OBJECTIVES = [_core.Objective.AHEAD, _core.Objective.RUN, _core.Objective.STEP]


@every("objective", OBJECTIVES)
def test_passes_that_have_more_tokens_a_second_are_taken(objective: _core.Objective) -> None:
    for passes, width, _, tokens, seconds, tokens_with, seconds_with, saved in planned(
        [UNHEARD_OF] * 2, objective=objective, steps=50
    ):
        assert (tokens, seconds) == (2.0, 1.0), "nothing but bonus tokens"
        assert tokens_with / seconds_with > 2.5 * tokens / seconds
        assert passes and width > 1 and saved > 0.0


@every("objective", OBJECTIVES)
@every("texts, promised", [([LOOP] * 2, 3.0), ([UNHEARD_OF] * 2, 0.05)])
def test_passes_that_cost_more_than_they_bring_are_not_taken(
    objective: _core.Objective, texts: list[list[int]], promised: float
) -> None:
    for passes, *_, saved in planned(texts, promised=promised, objective=objective, steps=50):
        assert not passes and saved == 0.0


@every("seed", range(40))
def test_no_plan_saves_less_than_nothing(seed: int) -> None:
    rng = np.random.default_rng(seed)
    texts = [[LOOP, UNHEARD_OF][int(rng.integers(2))] for _ in range(int(rng.integers(1, 4)))]
    for plan in planned(
        texts,
        promised=float(rng.random() * 4),
        passes_seconds=float(rng.random() * 3),
        objective=OBJECTIVES[int(rng.integers(3))],
        steps=10,
        speedup=float(rng.choice([0.0, rng.random() * 4])),
    ):
        assert plan[7] >= 0.0 and np.isfinite(plan[3:]).all()
        assert plan[0] or plan[7] == 0.0


@every("seconds, runs", [(0.4, True), (1.0, True), (1.04, False)])
def test_what_passes_add_counts_twice(seconds: float, runs: bool) -> None:
    """The passes add 2.04 tokens, which are worth 0.51 seconds of a run of four tokens a second."""
    for plan in planned([LOOP, UNHEARD_OF], promised=2.0, passes_seconds=seconds, speedup=2.0, steps=50):
        assert plan[5] - plan[3] == pytest.approx(2.04, abs=0.01)
        assert plan[0] is runs and (plan[7] > 0.0) is (seconds < 0.51)
    # At width 1 nothing that is drafted would be verified.
    assert not any(plan[0] for plan in planned([UNHEARD_OF] * 2, promised=0.0, passes_seconds=0.04, steps=50))


def test_without_a_draft_model_there_is_one_plan() -> None:
    engine = Engine(EngineConfig(vocab_size=9, max_draft_tokens=7, min_token_prob=0.02))
    engine.open("a", LOOP)
    step = Step(engine, 1, 8)
    written = [(["a"], table([[NEXT]], 1, [len(LOOP)]), None, None)]
    plan = step.run(Order(["a"], written, widths=WIDTHS, seconds=SECONDS, rest=0.0)).next
    assert not plan[0] and plan[1] == 8 and plan[5:] == (0.0, 0.0, 0.0)
    assert step.run(Order([], widths=WIDTHS, seconds=SECONDS)).next == (False, 1, 3, 0.0, 0.0, 0.0, 0.0, 0.0)
