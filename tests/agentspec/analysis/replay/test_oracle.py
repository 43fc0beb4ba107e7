from __future__ import annotations

import numpy as np
import pytest
from every import every

from agentspec.analysis.replay import Call, EngineSystem, Oracle, longest_copies, replay


def brute_force(text: list[int], max_length: int) -> list[int]:
    def occurs(needle: list[int], end: int) -> bool:
        return any(text[i : i + len(needle)] == needle for i in range(end - len(needle) + 1))

    longest = []
    for p in range(len(text)):
        fitting = [n for n in range(1, max_length + 1) if p + n <= len(text) and occurs(text[p : p + n], p)]
        longest.append(max(fitting, default=0))
    return longest


@every("seed", range(20))
def test_longest_copies_equal_brute_force(seed: int) -> None:
    rng = np.random.default_rng(seed)
    text = rng.integers(-2, rng.integers(0, 5), size=rng.integers(1, 60))
    max_length = int(rng.integers(1, 12))
    assert longest_copies(text, max_length).tolist() == brute_force(text.tolist(), max_length)


def tokens(text: str) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    return np.frombuffer(text.encode(), dtype=np.uint8).astype(np.int32)


def accepted(calls: list[Call], max_draft_tokens: int = 16, remembered: int = 0) -> tuple[int, int]:
    oracle = Oracle(calls, max_draft_tokens)
    for call in calls[:remembered]:
        oracle.remember(call)
    sums = replay(calls[remembered:], oracle, max_draft_tokens)
    # Every token that the oracle drafts is right.
    assert sums.drafted == sums.accepted
    return sums.accepted, sums.steps


def test_it_copies_from_prompts_outputs_and_the_context() -> None:
    prompt, output = tokens("prompt: abcd"), tokens("?abcd!?efgh")
    # The steps are ? | abcd! | ?e | f | g | h. They copy the prompt's abcd, then the output's own ?
    assert accepted([Call("a", "", "", (prompt,), output)]) == (4 + 1, 5)
    # The steps are ? | abcd!?efgh. The last token is the bonus.
    assert accepted([Call("a", "", "", (tokens("-"),), output)] * 2, remembered=1) == (9, 1)


def test_a_session_that_goes_on_is_laid_out_once() -> None:
    head, first, reply = tokens("ask "), tokens("xyz"), tokens(" then ")
    calls = [
        Call("a", "", "", (head,), first),
        Call("a", "", "", (head, first, reply), tokens("zxyz")),
        Call("b", "", "", (tokens("new "),), tokens("? then z")),
    ]
    # First call: x | y | z. Second: z | xyz, where z is the bonus. Third: ? | ` then z`, from a prompt and an output.
    assert accepted(calls) == (0 + 2 + 6, 2 + 1 + 1)


@pytest.mark.parametrize("seed", range(3))
def test_no_copying_drafter_accepts_more_in_a_step(seed: int) -> None:
    rng = np.random.default_rng(seed)
    pieces = [rng.integers(0, 50, size=8).astype(np.int32) for _ in range(5)]
    calls = [
        Call(str(i), "", "", (pieces[i % 5],), np.concatenate([pieces[j] for j in rng.integers(0, 5, size=6)]))
        for i in range(12)
    ]
    engine = replay(calls, EngineSystem("agentspec", 8), 8)
    assert 0 < engine.accepted / engine.steps <= accepted(calls, 8)[0] / accepted(calls, 8)[1]
