"""Accept lengths of reports equal those of the replay in agentspec.analysis.replay."""

from __future__ import annotations

import numpy as np
import pytest

from agentspec import Engine
from agentspec.analysis.logs.calls import Labels
from agentspec.analysis.measures.grid import grid_rows, walk
from agentspec.analysis.measures.learning import CurvePoint, Growth, curve_points, fit_growth, later_points
from agentspec.analysis.measures.replays import (
    Lengths,
    Sampled,
    engine_config,
    serve,
    serve_alone,
    serve_cold,
    serve_warm,
)
from agentspec.analysis.measures.states import record_cold, record_warm
from agentspec.analysis.replay import Call, EngineSystem, replay
from agentspec.simulation import acceptance_at_rate

CONFIG = engine_config(16, 64 << 20)


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
    return Sampled(calls, (Labels(),) * len(calls), ("",) * len(calls), calls)


def test_serving_takes_as_many_steps_as_a_replay() -> None:
    sampled = drawn(6, 3)
    lengths = serve(Engine(CONFIG), sampled.measured, np.arange(18), 0)
    measured = replay(sampled.measured, EngineSystem("agentspec", 15, CONFIG.min_token_prob), 15)
    assert (lengths.steps.sum(), lengths.tokens.sum()) == (measured.steps, measured.output_tokens - measured.calls)


def test_a_server_that_has_learnt_accepts_more() -> None:
    sampled = drawn(12, 3)
    cold, warm = serve_cold(sampled, CONFIG, 2, 0), serve_warm(sampled, CONFIG)
    assert len(cold.calls) == 2 * 36 and sorted(warm.calls.tolist()) == list(range(36))
    first = cold.chosen(cold.seen < 3).accept_length()
    assert first is not None and warm.accept_length() > first
    assert warm.seen.min() > 0


def test_parts_never_learn_from_their_own_sessions() -> None:
    sampled = drawn(7, 2)
    for learnt, indexes in sampled.parts():
        assert not {call.session for call in learnt} & {sampled.measured[i].session for i in indexes}
    assert sorted(int(i) for _, indexes in sampled.parts() for i in indexes) == list(range(14))


def test_one_session_has_nothing_else_to_learn_from() -> None:
    sampled = drawn(1, 5)
    assert sampled.parts() == []
    assert serve_warm(sampled, CONFIG).accept_length() is None


def test_the_curve_rises_where_sessions_resemble_each_other() -> None:
    sampled = drawn(40, 2)
    few = Sampled(sampled.measured[:8], sampled.labels[:8], sampled.files[:8], sampled.outputs)
    cold, warm, later = serve_cold(few, CONFIG, 3, 0), serve_warm(few, CONFIG), later_points(few, CONFIG, 0)
    points = curve_points(cold, later, warm, serve_alone(few, CONFIG), few, 0)
    assert [point.outputs for point in points] == sorted({point.outputs for point in points})
    assert points[-1].accept_length > points[0].accept_length
    assert all(point.low <= point.accept_length <= point.high for point in points)


def test_points_do_not_hang_on_which_outputs_they_are_of() -> None:
    """Half of the outputs stand in their own prompts and the rest are random. Nothing can be learnt, so there is no
    curve."""
    rng = np.random.default_rng(0)
    calls = []
    for i in range(40):
        output = rng.integers(0, 5000, 60).astype(np.int32)
        prompt = output if i % 2 else rng.integers(0, 5000, 60).astype(np.int32)
        calls.append(Call(f"s{i}", "", "", (prompt,), output))
    sampled = Sampled(tuple(calls), (Labels(),) * 40, ("",) * 40, tuple(calls))
    cold = serve_cold(sampled, CONFIG, 1, 0)
    points = curve_points(cold, [], serve_warm(sampled, CONFIG), serve_alone(sampled, CONFIG), sampled, 0)
    assert len(points) > 3
    assert max(point.accept_length for point in points) < 1.05 * min(point.accept_length for point in points)
    raw = [cold.chosen((cold.seen >= n) & (cold.seen < n + 6)).accept_length() or 0 for n in range(0, 36, 6)]
    assert max(raw) > 1.3 * min(raw)


def test_growth_finds_the_power_that_points_lie_on() -> None:
    numbers = [12, 24, 48, 96, 192, 384, 768, 1536]
    points = [
        CurvePoint(n, length, 0.9 * length, 1.1 * length, spread=0.0)
        for n in numbers
        for length in [1.0 + 0.9 * (n + 1) ** 0.22]
    ]
    growth = fit_growth(points)
    assert growth is not None
    assert growth.exponent == pytest.approx(0.22, abs=0.03)
    assert float(growth.accept_length(768.0)) == pytest.approx(1.0 + 0.9 * 769**0.22, rel=0.03)
    assert fit_growth(points[:1]) is None
    near, far = (growth.over(n, n, 1.645) / growth.over(n, n) for n in (200, 20_000))
    assert 1.03 < near < 1.15 < far


def test_lengths_over_a_stretch_are_harmonic_means() -> None:
    growth = Growth(0.5, 0.1)
    numbers = np.arange(1000)
    assert growth.over(0, 1000) == pytest.approx(1000 / (1 / growth.accept_length(numbers)).sum(), rel=0.01)


def test_recorded_drafts_are_walked_as_a_replay_walks_them() -> None:
    sampled = drawn(10, 3)
    cold = record_cold(sampled, None, 64 << 20)
    assert cold is not None
    walked = walk(cold.acceptance, 16, 0.0)
    replayed = serve(Engine(CONFIG), sampled.measured, np.arange(30), 0)
    # Estimates learn differently when every position is recorded, so the number of steps may differ a little.
    assert walked.tokens == replayed.tokens.sum()
    assert walked.steps == pytest.approx(replayed.steps.sum(), rel=0.05)


def test_what_other_clients_are_still_writing_was_not_learnt() -> None:
    sampled = drawn(10, 1)
    steps = []
    for clients in (1, 4, 1000):
        cold = record_cold(sampled, None, 64 << 20, clients=clients)
        assert cold is not None
        steps.append(walk(cold.acceptance, 16, 0.0).steps)
    nothing = [serve(Engine(CONFIG), sampled.measured, np.array([i]), 0).steps[0] for i in range(10)]
    assert steps[0] < steps[1] < steps[2]
    assert steps[2] == pytest.approx(sum(nothing), rel=0.05)


def test_a_warm_server_has_learnt_the_other_sessions() -> None:
    sampled = drawn(8, 2)
    cold, warm = record_cold(sampled, None, 64 << 20), record_warm(sampled, None, 64 << 20)
    assert cold is not None and warm is not None
    assert (cold.outputs, warm.outputs) == (16, 12)
    assert sorted(cold.sessions) == sorted(warm.sessions)
    assert record_warm(drawn(1, 3), None, 64 << 20) is None


def test_no_draft_passes_a_tau_that_none_promises() -> None:
    acceptance = acceptance_at_rate("0.5", 20, 4, 300, 7, seed=0)
    plain, all_drafts = walk(acceptance, 8, 7.0), walk(acceptance, 8, 0.0)
    assert (plain.steps, plain.drafted, plain.accepted) == (plain.tokens, 0, 0)
    assert all_drafts.tokens == all_drafts.steps + all_drafts.accepted
    assert all_drafts.accepted / all_drafts.steps == pytest.approx(1.0, abs=0.15)


def test_grid_has_a_row_for_each_width_and_tau() -> None:
    sampled = drawn(8, 2)
    cold, warm = record_cold(sampled, 2.0, 64 << 20), record_warm(sampled, 2.0, 64 << 20)
    assert cold is not None and warm is not None
    rows = grid_rows(2.0, cold.acceptance, warm.acceptance, widths=(4, 16))
    assert len(rows) == 8
    lengths = {(row["width"], row["tau"]): row["accept_length_warm"] for row in rows}
    assert lengths[16, 0.0] >= lengths[4, 0.0] >= lengths[4, 4.0] >= 1.0


def test_joined_lengths_of_nothing_are_empty() -> None:
    assert Lengths.joined([]).accept_length() is None
