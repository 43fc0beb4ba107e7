"""The policy while traffic changes from agents, where suffix drafts do well, to chat, where the model does well."""

from __future__ import annotations

import numpy as np
import pytest
from drafting_steps import goodput
from hybrid_rows import Tree, batch, chain, model_trees

from agentspec.scheduling import ControlConfig
from agentspec.scheduling.calibration import EstimateBias
from agentspec.scheduling.goodput import REASONS, native_goodput
from agentspec.scheduling.hybrid import (
    HybridConfig,
    HybridPolicy,
    ModelCosts,
    ModelNumbers,
    StepPlanner,
    planning_numbers,
)
from agentspec.scheduling.hybrid.accepted_lengths import AcceptedLengths
from agentspec.scheduling.hybrid.planner import Probing

NOTHING = chain([], [])
ROWS = 4
WIDTHS = np.array([1, 16])
SECONDS = np.array([1.0, 1.0])


class Server:
    """Runs steps of four rows. The kind of text decides how often there are suffix drafts and what is accepted.

    "agents": nine of ten rows have a suffix draft of 8 tokens, of which 6 are accepted. Of the model's drafts 0.1
    tokens are accepted on average.
    "chat": one of ten rows has a suffix draft, of which 0.3 tokens are accepted on average. Of the model's drafts 2 or
    3 tokens are accepted.
    """

    def __init__(self, **settings: object) -> None:
        self.costs = ModelCosts()
        self.planner = StepPlanner(goodput(), goodput())
        self.bias = EstimateBias()
        self.policy = HybridPolicy(HybridConfig(**settings), self.costs)  # type: ignore[arg-type]
        self.rng = np.random.default_rng(0)
        self.requests = 0

    def run(self, text: str, steps: int) -> tuple[float, float]:
        """The accepted tokens per row and step, and the share of steps in which the draft model ran."""
        accepted = ran = 0.0
        for step in range(steps):
            if step % 40 == 0:
                for i in range(ROWS):
                    self.policy.forget(f"request {self.requests + i}")
                self.requests += ROWS
            ids = [f"request {self.requests + i}" for i in range(ROWS)]
            has_suffix = self.rng.random(ROWS) < (0.9 if text == "agents" else 0.1)
            suffix = batch([self._suffix(text) if has else NOTHING for has in has_suffix])
            promised, fit = self.policy.promised(ids, np.zeros(ROWS, np.int64)), np.ones(ROWS, np.bool_)
            model_numbers = ModelNumbers(SECONDS + self.costs.draft(ROWS), np.zeros(2), promised, fit, 4)
            numbers = planning_numbers(
                WIDTHS, SECONDS, model_numbers, rest=0.0, speedup=0.0, exponents=(1.0, self.bias.exponent)
            )
            plan = self.planner.plan(suffix, np.full(ROWS, 15, np.int32), 0, numbers)
            wanted = self.policy.choose(suffix, fit, promised, plan).rows
            model = model_trees([chain(range(11, 15), [0.7, 0.5, 0.35, 0.25], 4)] * ROWS) if wanted.any() else None
            both = self.policy.combine(suffix, model, wanted, np.full(ROWS, 15, np.int32))
            if wanted.any():
                ran += 1
                self.costs.observe_draft(ROWS, 4, 0.25)
            self.costs.observe_extend(ROWS * 16, 0.03)
            self.costs.observe_verify(1.0)
            texts = [self._truth(text, bool(has_suffix[i]), bool(wanted[i])) for i in range(ROWS)]
            counts = np.array([len(truth) - 1 for truth in texts], np.int32)
            self.policy.observe(ids, both, counts, np.array([truth + [0] * (16 - len(truth)) for truth in texts]))
            accepted += int(counts.sum()) / ROWS
            if wanted.any():
                self.bias.observe(*self.planner.foreseen(16), float(counts.sum()))
        return accepted / steps, ran / steps

    def _suffix(self, text: str) -> Tree:
        return chain(range(1, 9), [0.75] * 8) if text == "agents" else chain([1], [0.3])

    def _truth(self, text: str, has_suffix: bool, wanted: bool) -> list[int]:
        """The accepted tokens and a bonus token."""
        right = [1, 2, 3, 4, 5, 6] if text == "agents" else ([1] if self.rng.random() < 0.3 else [])
        modelled = [11] if text == "agents" and self.rng.random() < 0.1 else []
        if text == "chat":
            modelled = [11, 12, 13][: 2 + int(self.rng.random() < 0.5)]
        return max(right if has_suffix else [], modelled if wanted else [], key=len) + [99]


@pytest.mark.parametrize("union", ["auto", "never"])
def test_the_drafter_is_given_up_and_found_again(union: str) -> None:
    server = Server(union=union)
    server.run("agents", 200)
    agents, share = server.run("agents", 300)
    assert agents == pytest.approx(0.9 * 6, abs=0.3)
    assert share < 0.1, "the drafter knows nothing here"

    # 300 steps of four rows are about thirty requests.
    server.run("chat", 300)
    chat, share = server.run("chat", 150)
    assert chat > 2.2 and share > 0.95

    server.run("agents", 200)
    again, share = server.run("agents", 200)
    assert again == pytest.approx(agents, abs=0.3)
    assert share < 0.1


def test_the_same_calls_give_the_same_choices() -> None:
    assert Server().run("chat", 100) == Server().run("chat", 100)


def test_a_probe_begins_after_8_16_and_so_on_to_256_steps() -> None:
    probing = Probing()
    begun = [step for step in range(1, 1200) if probing.next_step()]
    first = begun[::4]
    # Each probe drafts in four steps, its first step included.
    assert np.diff(first).tolist() == [16 + 3, 32 + 3, 64 + 3, 128 + 3, 256 + 3, 256 + 3, 256 + 3][: len(first) - 1]
    assert first[0] == 8 and begun[:4] == [8, 9, 10, 11]
    probing.restart()
    assert [probing.next_step() for _ in range(8)] == [False] * 7 + [True], "short pauses again"


def test_a_model_that_is_not_expected_to_pay_is_tried_now_and_then() -> None:
    policy, fit = HybridPolicy(), np.ones(1, np.bool_)
    assert [step for step in range(20) if policy.runs_passes(fit, False)] == [7, 8, 9, 10]
    assert not any(policy.runs_passes(np.zeros(1, np.bool_), False) for _ in range(50)), "no row could have its drafts"
    assert policy.runs_passes(fit, True)


def test_a_row_that_was_not_tried_lately_is_like_any_other() -> None:
    lengths = AcceptedLengths(3.0)
    for _ in range(30):
        lengths.next_step()
        lengths.observe("bad", 0.0)
        lengths.observe("good", 4.0)
    assert lengths.expected("bad") < 0.6 and lengths.expected("good") > 3.4
    assert lengths.expected("new") == pytest.approx(2.0, abs=0.3)
    for _ in range(300):
        lengths.next_step()
    assert lengths.expected("bad") == pytest.approx(lengths.mean, abs=0.05)


def test_rows_observed_after_they_were_forgotten_do_not_pile_up() -> None:
    lengths = AcceptedLengths(3.0)
    for step in range(5000):
        lengths.next_step()
        lengths.forget(f"{step}")
        lengths.observe(f"{step}", 1.0)
    assert len(lengths) <= 1024


def test_a_probe_of_plain_decoding_is_nothing_for_the_draft_model_to_beat() -> None:
    config = ControlConfig(objective="step", probe_share=0.1)
    planner = StepPlanner(native_goodput(config, None), goodput())
    suffix, fit = batch([chain(range(1, 9), [0.95] * 8)] * ROWS), np.ones(ROWS, np.bool_)
    model = ModelNumbers(SECONDS + 1.0, np.zeros(2), np.full(ROWS, 3.0), fit, 4)
    numbers = planning_numbers(WIDTHS, SECONDS, model, rest=0.0, speedup=4.0, exponents=(1.0, 1.0))
    plans = [planner.plan(suffix, np.full(ROWS, 15, np.int32), 0, numbers) for _ in range(100)]
    assert {REASONS[plan.reason] for plan in plans if plan.width == 1} == {"probe"}
    assert not any(plan.passes for plan in plans)
