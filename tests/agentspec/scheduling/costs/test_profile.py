"""Profile files are read as they were written, and an unsuitable one is refused with its bad value."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from draft_states import KEY, POINTS, profile
from every import every

from agentspec import ConfigError
from agentspec.scheduling import Profile


def fitted() -> Profile:
    return Profile.fitted(KEY, POINTS, (1, 2, 4, 8), drafter_points=POINTS, peak_flops=1e15, note="drawn",
        lengths=((1, 7), (4, 2)), accepted=(0.5, 0.75),
    )  # fmt: skip


def test_a_file_is_read_as_it_was_written(tmp_path: Path) -> None:
    for written in (fitted(), profile()):
        written.save(tmp_path / "profile.json")
        assert Profile.load(tmp_path / "profile.json") == written


def test_a_fitted_profile_knows_its_range() -> None:
    measured = fitted().measured
    assert (measured.batch_sizes, measured.context_lengths, measured.widths) == ((1, 16), (100, 1000), (1, 8))
    assert len(fitted().residuals) == 12


@every(
    ("step", "inside"),
    [
        ((4, 4, 4 * 500), True),
        ((1, 1, 100), True),
        ((16, 8, 16_000), True),
        ((17, 4, 17 * 500), False),
        ((4, 9, 4 * 500), False),
        ((4, 4, 4 * 1000 + 1), False),
        ((4, 4, 4 * 100 - 1), False),
    ],
)
def test_extrapolation_is_told(step: tuple[int, int, int], inside: bool) -> None:
    assert fitted().covers(*step) is inside


@pytest.mark.parametrize("field", ["model", "device", "engine", "graphs"])
def test_a_profile_of_something_else_is_refused(field: str) -> None:
    fitted().require(KEY)
    with pytest.raises(ConfigError, match=f"must be of the {field} 'other', got '{getattr(KEY, field)}'"):
        fitted().require(replace(KEY, **{field: "other"}))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"target": {"alpha": -1e-7, "gamma": 0.0, "delta": 0.1}}, "alpha must be seconds >= 0 and finite, got -1e-07"),
        ({"target": {"alpha": 1e-7, "gamma": 0.0, "delta": 0.0}}, "gamma or delta must be > 0"),
        ({"drafter": {"alpha": 0.0, "gamma": 0.0, "delta": "x"}}, "delta must be seconds"),
        ({"version": 2}, "must be agentspec-profile 1, got agentspec-profile 2"),
        ({"widths": [2, 4]}, r"ascending from 1, got \(2, 4\)"),
        ({"widths": [1, 4, 2]}, "ascending from 1"),
        ({"peak_flops": 0}, "peak_flops must be a number > 0"),
        ({"lengths": ((4, 1), (1, 2))}, "lengths must have ascending batch sizes"),
        ({"accepted": (-1.0,)}, "accepted must be numbers of tokens"),
        ({"measured": {"batch_sizes": [4, 1], "context_lengths": [1, 2], "widths": [1, 2]}}, r"got \(4, 1\)"),
        ({"residuals": [0.1]}, "one for each of 0 points, got 1"),
        ({"key": {"model": "m"}}, "must be a file of `agentspec profile`"),
        ({"points": 3}, "must be a file of `agentspec profile`"),
        ({"unknown": 3}, "must be a file of `agentspec profile`"),
    ],
)
def test_a_file_with_a_bad_value_is_refused(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    path = tmp_path / "profile.json"
    profile().save(path)
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(ConfigError, match=message) as refused:
        Profile.load(path)
    assert str(path) in str(refused.value)


@pytest.mark.parametrize("content", ["", "[]", "{}", "nonsense"])
def test_a_file_that_is_no_profile_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "profile.json").write_text(content)
    with pytest.raises(ConfigError, match="profile.json"):
        Profile.load(tmp_path / "profile.json")
    with pytest.raises(ConfigError, match="missing.json"):
        Profile.load(tmp_path / "missing.json")
