from __future__ import annotations

import numpy as np

from agentspec.analysis.replay import Call
from agentspec.evals.micro.look_ahead import foresight


def call(output: list[int]) -> Call:
    return Call("s", "t", "r", (np.array([100], np.int32),), np.array(output, np.int32))


def test_a_step_is_a_hit_if_the_text_after_it_was_foreseen() -> None:
    text = [*range(30)]
    found = foresight("copies", [call(text), call(text)], max_draft_tokens=4, ahead=4)
    # The first call repeats nothing. The second takes steps of five tokens, of which the bonus token is foreseen.
    assert found.steps == 29 + 6
    assert found.accepted_per_step * found.steps == 4 * 5 + 3
    assert found.hit_rate * found.steps == 6


def test_new_text_is_never_foreseen() -> None:
    found = foresight("new", [call([*range(40)])], max_draft_tokens=4, ahead=64)
    assert (found.steps, found.hit_rate) == (39, 0.0)
