from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from every import every
from numpy.typing import NDArray

from agentspec.analysis.replay import Call, Draft, EngineSystem, accepted_nodes, replay

#            ┌─ 0: 5 ─┬─ 2: 6 ── 4: 7
#   root ────┤        └─ 3: 8
#            └─ 1: 9 ──── 5: 6
TREE = Draft([5, 9, 6, 8, 7, 6], [-1, -1, 0, 0, 2, 1])


@every(
    ("truth", "accepted"),
    [([5, 6, 7, 1], [0, 2, 4]), ([5, 8, 7], [0, 3]), ([9, 6, 7], [1, 5]), ([6, 7], []), ([5, 6], [0, 2]), ([], [])],
)
def test_accepted_nodes(truth: list[int], accepted: list[int]) -> None:
    assert accepted_nodes(TREE, truth) == accepted


def call(prompt: list[int], output: list[int]) -> Call:
    return Call("s", "t", "r", (np.array(prompt, dtype=np.int32),), np.array(output, dtype=np.int32))


class Script:
    """Returns the drafts that the test wrote down, and records the calls that it gets."""

    def __init__(self, drafts: list[Draft]) -> None:
        self._drafts: Iterator[Draft] = iter(drafts)
        self.events: list[tuple[str, list[int]]] = []

    def remember(self, call: Call) -> None:
        raise NotImplementedError

    def open(self, prompt: NDArray[np.int32]) -> None:
        self.events.append(("open", prompt.tolist()))

    def extend(self, tokens: NDArray[np.int32]) -> None:
        self.events.append(("extend", tokens.tolist()))

    def draft(self, max_tokens: int) -> Draft:
        return next(self._drafts)

    def tree(self, drafted: Draft) -> Draft:
        return drafted

    def close(self) -> None:
        self.events.append(("close", []))


def test_steps_advance_by_the_accepted_tokens_and_the_bonus() -> None:
    # Output 1 | 5 6 7 2 | 3 | 4: the first token is the prefill's, the last of each step the bonus.
    system = Script([TREE, Draft([], []), Draft([4], [-1])])
    sums = replay([call([8, 9], [1, 5, 6, 7, 2, 3, 4])], system, 6)
    assert system.events == [
        ("open", [8, 9]),
        ("extend", [1]),
        ("extend", [5, 6, 7, 2]),
        ("extend", [3]),
        ("extend", [4]),
        ("close", []),
    ]
    # The last token is a bonus even where it was drafted.
    assert (sums.calls, sums.steps, sums.drafted, sums.accepted) == (1, 3, 7, 3)
    assert (sums.prompt_tokens, sums.output_tokens) == (2, 7)
    assert sums.record()["accept_length"] == (7 - 1) / 3


def test_an_output_of_one_token_takes_no_step() -> None:
    sums = replay([call([8], [1])], Script([]), 4)
    assert (sums.calls, sums.steps) == (1, 0)
    assert sums.record()["accepted_per_step"] == 0


def test_drafts_beyond_the_limit_are_refused() -> None:
    with pytest.raises(AssertionError, match="6 tokens drafted of 5"):
        replay([call([8], [1, 5, 6])], Script([TREE]), 5)


@pytest.mark.parametrize("system", ["agentspec", "suffixdecoding"])
def test_the_engine_learns_from_finished_calls(system: str) -> None:
    text = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7]
    calls = [call([100], text), call([100], text)]
    first = replay(calls[:1], EngineSystem(system, 8), 8)
    both = replay(calls, EngineSystem(system, 8), 8)
    assert both.accepted > first.accepted
    warm = EngineSystem(system, 8)
    warm.remember(calls[0])
    assert replay(calls[1:], warm, 8).accepted == both.accepted - first.accepted
