"""Accept lengths of reports equal those of the replay in agentspec.analysis.replay."""

from __future__ import annotations

import numpy as np
import pytest

from agentspec import Engine
from agentspec.analysis.logs.calls import Labels
from agentspec.analysis.measures.grid import grid_rows
from agentspec.analysis.measures.replays import (
    Pass,
    Sampled,
    cold_passes,
    engine_config,
    followed,
    num_steps,
    prepared,
    serve,
    warm_passes,
)
from agentspec.analysis.measures.states import MAX_WIDTH, Recorded, record
from agentspec.analysis.replay import Call, EngineSystem, replay
from agentspec.simulation import acceptance_at_rate
from agentspec.simulation.acceptance import walk

BUDGET = 64 << 20
CONFIG = engine_config(16, BUDGET)


def drawn(sessions: int, each: int, seed: int = 0) -> Sampled:
    """Outputs made of six phrases, which repeat across sessions."""
    rng = np.random.default_rng(seed)
    phrases = [rng.integers(0, 200, 12).astype(np.int32) for _ in range(6)]
    calls = tuple(
        Call(
            f"s{s}",
            "",
            "",
            (np.array([7, s % 200], np.int32),),
            np.concatenate([*(phrases[int(i)] for i in rng.integers(0, 6, 3)), np.array([201], np.int32)]),
        )
        for s in range(sessions)
        for _ in range(each)
    )
    return sampled_of(calls)


def sampled_of(calls: tuple[Call, ...]) -> Sampled:
    n = len(calls)
    return Sampled(calls, (Labels(),) * n, ("",) * n, np.zeros(n, np.int32), np.arange(n), calls)


def in_order(sampled: Sampled) -> list[Pass]:
    return [Pass(np.zeros(0, np.int64), np.arange(len(sampled.outputs)))]


def recorded(name: str, sampled: Sampled, passes: list[Pass], clients: int = 1) -> Recorded:
    found = record(name, sampled, passes, BUDGET, clients=clients)
    assert found is not None
    return found


def test_serving_takes_as_many_steps_as_a_replay() -> None:
    sampled = drawn(6, 3)
    lengths = serve(sampled, in_order(sampled), CONFIG)
    measured = replay(sampled.measured, EngineSystem("agentspec", 15, CONFIG.min_token_prob), 15)
    assert (lengths.steps.sum(), lengths.tokens.sum()) == (measured.steps, measured.output_tokens - measured.calls)


def test_warm_servers_never_learn_their_own_sessions_before() -> None:
    sampled = drawn(7, 2)
    passes = warm_passes(sampled, 0)
    for one in passes:
        assert not {sampled.outputs[i].session for i in one.learnt} & {sampled.outputs[i].session for i in one.served}
        assert sorted([*one.learnt, *one.served]) == list(range(14))
    assert sorted(int(i) for one in passes for i in one.served) == list(range(14))


def test_one_session_has_nothing_else_to_learn_from() -> None:
    assert warm_passes(drawn(1, 5), 0) == []


def test_a_call_has_learnt_the_same_whether_others_are_replayed_or_only_learnt() -> None:
    sampled = drawn(8, 3)
    few = sampled.chosen(np.array([2, 9, 20]))
    for passes in (cold_passes(sampled, 1, 0), warm_passes(sampled, 0)):
        whole = serve(sampled, passes, CONFIG)
        part = serve(few, passes, CONFIG)
        assert len(part.calls) == 3
        by_place = dict(zip(sampled.places[whole.calls].tolist(), whole.steps, strict=True))
        for i, steps in zip(part.calls, part.steps, strict=True):
            assert steps == pytest.approx(by_place[int(few.places[i])], abs=1)


def test_an_index_that_was_made_before_drafts_the_same() -> None:
    sampled = drawn(8, 3)
    passes = warm_passes(sampled, 0)
    ready = prepared(sampled, passes, engine_config(MAX_WIDTH, BUDGET))
    anew, again = (recorded("warm", sampled, some) for some in (passes, ready))
    np.testing.assert_array_equal(anew.acceptance.accepted, again.acceptance.accepted)


def test_recorded_drafts_are_walked_as_a_replay_walks_them() -> None:
    sampled = drawn(10, 3)
    lengths = recorded("cold", sampled, in_order(sampled)).lengths(16)
    replayed = serve(sampled, in_order(sampled), CONFIG)
    # Estimates learn differently when every position is recorded, so the number of steps may differ a little.
    assert lengths.tokens.sum() == replayed.tokens.sum()
    assert lengths.steps.sum() == pytest.approx(replayed.steps.sum(), rel=0.05)


def test_what_other_clients_are_still_writing_was_not_learnt() -> None:
    sampled = drawn(10, 1)
    steps = [recorded("cold", sampled, in_order(sampled), clients=n).lengths(16).steps.sum() for n in (1, 4, 1000)]
    nothing = sum(num_steps(Engine(CONFIG), call) for call in sampled.measured)
    assert steps[0] < steps[1] < steps[2]
    assert steps[2] == pytest.approx(nothing, rel=0.05)


def test_outputs_count_as_learnt_when_they_are() -> None:
    sampled = drawn(5, 1)
    for clients, seen in ((1, [0, 1, 2, 3, 4]), (3, [0, 0, 0, 1, 2])):
        engine = Engine(CONFIG)
        found = []
        for i in followed(engine, sampled, in_order(sampled)[0], clients):
            found.append(engine.stats().outputs)
            engine.open("x", sampled.measured[i].prompt)
            engine.extend("x", sampled.measured[i].output)
            engine.close("x", keep=clients == 1)
        assert found == seen


def test_a_warm_server_has_learnt_the_other_sessions() -> None:
    sampled = drawn(8, 2)
    cold = recorded("cold", sampled, cold_passes(sampled, 2, 0))
    warm = recorded("warm", sampled, warm_passes(sampled, 0))
    assert (cold.outputs, warm.outputs) == (16, 12)
    assert sorted(cold.sessions) == sorted(2 * warm.sessions)
    assert record("warm", drawn(1, 3), warm_passes(drawn(1, 3), 0), BUDGET) is None


def test_no_draft_passes_a_tau_that_none_promises() -> None:
    acceptance = acceptance_at_rate("0.5", 20, 4, 300, 7, seed=0)
    plain, all_drafts = walk(acceptance, 8, 7.0), walk(acceptance, 8, 0.0)
    assert (plain.steps, plain.drafted, plain.accepted) == (plain.tokens, 0, 0)
    assert all_drafts.tokens == all_drafts.steps + all_drafts.accepted
    assert all_drafts.accepted / all_drafts.steps == pytest.approx(1.0, abs=0.15)


def test_grid_has_a_row_for_each_width_and_tau() -> None:
    sampled = drawn(8, 2)
    cold = recorded("cold", sampled, cold_passes(sampled, 1, 0))
    warm = recorded("warm", sampled, warm_passes(sampled, 0))
    rows = grid_rows({"cold": cold.acceptance, "warm": warm.acceptance}, widths=(4, 16))
    assert len(rows) == 8
    lengths = {(row["width"], row["tau"]): row["accept_length_warm"] for row in rows}
    assert lengths[16, 0.0] >= lengths[4, 0.0] >= lengths[4, 4.0] >= 1.0
