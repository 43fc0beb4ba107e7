"""The built-in profiles agree with the papers' texts."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from agentspec.errors import ConfigError
from agentspec.simulation import BUILT_IN_PROFILES, find_profile


def latency(rate: float, length: int) -> float:
    """Seconds that a request with 128 prompt tokens and 128 output tokens takes at acceptance 0.7. The batch size
    follows from Little's law."""
    profile = find_profile("smartspec-a100-7b-160m")
    target, drafter = profile.target, profile.drafter
    assert drafter is not None
    steps = 127 * (1 - 0.7) / (1 - 0.7 ** (length + 1))
    alone = target.delta + length * drafter.delta
    a_row = target.gamma * (length + 1) + target.alpha * (128 + 64)
    return steps * alone / (1 - rate * (target.gamma * 128 + steps * a_row))


def test_smartspec_breaks_even_at_the_rates_of_figure_1() -> None:
    assert latency(12, 5) == pytest.approx(latency(12, 0), rel=0.01)
    assert latency(16, 3) == pytest.approx(latency(16, 0), rel=0.01)
    assert max(latency(4, 3), latency(4, 5)) < latency(4, 1) < latency(4, 0)


def test_su_speeds_up_as_section_5_2_says() -> None:
    profile = find_profile("su-rtx3090-opt-6.7b")
    assert profile.drafter is not None
    lengths = np.arange(1, 9)
    speedups = []
    for rows in (1, 2, 4, 8, 16, 32):
        seconds = np.array([profile.target.seconds(0, rows * (s + 1)) + s * profile.drafter.delta for s in lengths])
        speedups.append(float((profile.target.seconds(0, rows) * (1 + 0.9 * lengths**0.548) / seconds).max()))
    assert speedups[0] == pytest.approx(2.73, abs=0.01)
    assert speedups[-1] == pytest.approx(1.31, abs=0.01)
    assert np.mean(speedups) == pytest.approx(1.94, abs=0.01)


@pytest.mark.parametrize("name", BUILT_IN_PROFILES)
def test_files_hold_built_in_profiles(name: str, tmp_path: Path) -> None:
    profile = find_profile(name)
    profile.save(tmp_path / "profile.json")
    assert find_profile(str(tmp_path / "profile.json")) == profile
    assert "section" in profile.note


def test_others_are_refused() -> None:
    with pytest.raises(ConfigError, match="got 'no-such'"):
        find_profile("no-such")
