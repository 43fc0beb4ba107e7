"""Systems on an event clock: what they write, how long it takes, and that the hybrid is not worse than its halves."""

from __future__ import annotations

import random
from typing import Any

import pytest
from every import every

from agentspec.errors import ConfigError
from agentspec.evals.emulated.clocked_systems import REST, system_named
from agentspec.evals.emulated.event_clock import serve
from agentspec.evals.run.cells import Cell
from agentspec.evals.workloads.task import Conversation, FixedCall
from agentspec.integrations.emulated_device.models.simulated_head import Acceptance, acceptance_for
from agentspec.integrations.emulated_device.models.step_times import StepTimes

TIMES = StepTimes.load("h200-8b")
HEAD = Acceptance.everywhere(acceptance_for(2.8, 5))


def conversation(draw: random.Random, name: int, repeats: float) -> Conversation:
    """Three calls. A share of each answer is copied from a text that all conversations have in common."""
    common = random.Random(7).choices(range(5000), k=400)
    text = draw.choices(range(5000), k=100)
    calls = []
    for _ in range(3):
        answer: list[int] = []
        while len(answer) < 80:
            begin = draw.randrange(370)
            copied = draw.random() < repeats
            answer += common[begin : begin + 20] if copied else draw.choices(range(5000), k=20)
        body = {"input_ids": list(text), "sampling_params": {"custom_params": {}}}
        calls.append(FixedCall(body, answer=tuple(answer)))
        text += [*answer, *draw.choices(range(5000), k=30)]
    return Conversation(str(name), tuple(calls))


def cell(clients: int, *, repeats: float = 0.8, units: int = 0) -> Cell:
    draw = random.Random(clients)
    some = [conversation(draw, name, repeats) for name in range(3 * max(units, 4 * clients))]
    third = len(some) // 3
    return Cell("made up", "warm", clients, 0, tuple(some[:third]), tuple(some[third:]), 0)


def figures(name: str, of: Cell, head: Acceptance = HEAD) -> dict[str, Any]:
    return serve(system_named(name, TIMES, of.concurrency), of, head)


@every("name", ["none", "ngram-12", "suffix", "eagle3-5", "hybrid-5"])
def test_every_system_writes_the_same_tokens_at_the_same_prefills_and_does_so_again(name: str) -> None:
    of = cell(1)
    found = figures(name, of)
    calls = [call for unit in of.units for call in unit.calls if isinstance(unit, Conversation)]
    assert found["tokens"] == sum(len(call.answer) - 1 for call in calls)
    assert found["seconds"]["prefill"] == figures("none", of)["seconds"]["prefill"] > 0.0
    assert found == figures(name, of)


def test_plain_decoding_takes_a_step_for_each_token_and_one_more_for_each_answer() -> None:
    of = cell(1, units=1)
    found = figures("none", of)
    assert found["steps"] == found["tokens"] + 3 * len(of.units) and found["accept_length"] == 1.0
    assert found["seconds"]["rest"] == pytest.approx(REST * found["steps"], abs=1e-4)


def test_a_heads_chains_have_its_accept_length_and_suffix_drafts_follow_what_repeats() -> None:
    of = cell(1)
    assert figures("eagle3-5", of)["accept_length"] == pytest.approx(2.8, rel=0.05)
    suffix, ngram = figures("suffix", of)["accept_length"], figures("ngram-32", of)["accept_length"]
    assert suffix > ngram > 2.5 and figures("ngram-4", of)["accept_length"] < 0.9 * ngram
    # Nothing is drafted where nothing repeats.
    assert all(figures(name, cell(1, repeats=0.0))["accept_length"] < 1.1 for name in ("suffix", "ngram-32"))


@every(("clients", "accept_length"), [(clients, head) for clients in (1, 8) for head in (1.5, 4.0)])
def test_the_hybrid_is_not_worse_than_its_halves(clients: int, accept_length: float) -> None:
    head, of = Acceptance.everywhere(acceptance_for(accept_length, 5)), cell(clients, repeats=0.5)
    hybrid = figures("hybrid-5", of, head)
    single = max(figures(name, of, head)["tokens_per_second"] for name in ("suffix", "eagle3-5"))
    assert hybrid["tokens_per_second"] > 0.97 * single


def test_what_it_cannot_serve_is_refused() -> None:
    for name in ("ngram", "eagle3", "hybrid-x", "eagle3-0", "plain-1"):
        with pytest.raises(ConfigError, match="a system must be"):
            system_named(name, TIMES, 1)
    free = FixedCall({"input_ids": [1], "sampling_params": {}})
    of = Cell("free", "cold", 1, 0, (), (Conversation("a", (free,)),), 0)
    with pytest.raises(ConfigError, match="recorded answers"):
        figures("none", of)
