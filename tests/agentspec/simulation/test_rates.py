from __future__ import annotations

import numpy as np
import pytest
from every import every

from agentspec.errors import ConfigError
from agentspec.simulation import acceptance_at_rate
from agentspec.simulation.acceptance import Acceptance


def mean_tokens(acceptance: Acceptance, drafted: int) -> float:
    """Mean number of tokens that a step yields, the bonus token included, at positions far from the outputs' ends."""
    places = int(acceptance.output_tokens[0]) - 1
    inner = acceptance.accepted.reshape(len(acceptance), places, -1)[:, : places - 40]
    return float(inner[:, :, drafted].mean()) + 1


def test_one_rate_gives_the_lengths_of_smartspec_eq_8() -> None:
    acceptance = acceptance_at_rate("0.7", 400, 10, 200, 6, 0)
    for k in range(7):
        assert mean_tokens(acceptance, k) == pytest.approx((1 - 0.7 ** (k + 1)) / 0.3, rel=0.02)


def test_drafts_of_one_rate_miss_the_same_tokens() -> None:
    acceptance = acceptance_at_rate("0.6", 1, 1, 60, 8, 5)
    runs = acceptance.accepted[:, -1].astype(int)
    for i in range(len(runs) - 1):
        assert runs[i + 1] >= runs[i] - 1, "a token that was right stays so when drafted one place later"


def test_beta_rates_differ_by_request_and_estimates_hold_over_all() -> None:
    acceptance = acceptance_at_rate("beta:2:2", 4000, 1, 60, 4, 1)
    assert acceptance.estimates[0].tolist() == pytest.approx([1, 1 / 2, 3 / 10, 1 / 5, 1 / 7])
    for k in range(1, 5):
        assert mean_tokens(acceptance, k) == pytest.approx(acceptance.estimates[0, : k + 1].sum(), rel=0.03)
    by_request = acceptance.accepted.reshape(4000, 59, -1)[:, :19, 1].mean(axis=1)
    assert by_request.std() > 0.2


def test_power_law_gives_the_lengths_of_su_eq_5() -> None:
    acceptance = acceptance_at_rate("power:0.9:0.548", 500, 1, 200, 8, 0)
    for s in range(1, 9):
        assert mean_tokens(acceptance, s) == pytest.approx(0.9 * s**0.548 + 1, rel=0.02)


@pytest.mark.parametrize(("top", "nodes"), [(1, 3), (2, 14), (3, 39)])
def test_medusa_trees_give_the_lengths_of_smartspec_eq_10(top: int, nodes: int) -> None:
    alpha = 0.6
    acceptance = acceptance_at_rate(f"medusa:{alpha}:3:3", 300, 1, 200, 6, 0)
    assert acceptance.max_width == 40
    # The first nodes of the tree are the whole tree of the smaller `top`.
    head = 1 - (1 - alpha) ** top
    assert mean_tokens(acceptance, nodes) == pytest.approx(1 + head + head**2 + head**3, rel=0.02)
    assert acceptance.estimates[0, : nodes + 1].sum() == pytest.approx(1 + head + head**2 + head**3, rel=1e-5)
    assert (acceptance.parents[0, 1:] < np.arange(1, 40)).all()


def test_the_last_token_is_a_bonus() -> None:
    acceptance = acceptance_at_rate("0.999", 1, 1, 5, 8, 0)
    assert acceptance.accepted[:, -1].tolist() == [3, 2, 1, 0]


@every(
    "text",
    ["1.0", "-0.1", "beta:0:1", "beta:1", "power:2:0.5", "power:1:2", "medusa:0.5:9:9", "medusa:1:2:2", "x", ":"],
)
def test_bad_rates_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="got"):
        acceptance_at_rate(text, 1, 1, 2, 4, 0)
