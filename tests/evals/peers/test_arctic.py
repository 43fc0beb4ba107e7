from __future__ import annotations

import sys

import numpy as np
import pytest

from agentspec import ConfigError
from agentspec.analysis.replay import Call, Draft, replay, replay_settings
from agentspec.evals.peers.arctic import CURVE, Arctic, ArcticSetting


def test_without_the_package_the_error_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "arctic_inference.suffix_decoding", None)
    with pytest.raises(ConfigError, match="arctic-inference==0.3.0"):
        Arctic(ArcticSetting())


def ints(*tokens: int) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    return np.array(tokens, dtype=np.int32)


@pytest.mark.arctic
def test_a_tree_holds_both_continuations() -> None:
    system = Arctic(ArcticSetting(mode="tree", factor=4))
    # 3 was followed by 4 and by 6.
    system.open(ints(1, 2, 3, 4, 5, 1, 2, 3, 6, 7, 1, 2))
    system.extend(ints(3))
    draft = system.tree(system.draft(16))
    assert {(draft.tokens[i], draft.parents[i]) for i in (0, 1)} == {(4, -1), (6, -1)}
    assert len(system.tree(system.draft(2)).tokens) == 2
    system.close()


@pytest.mark.arctic
def test_it_learns_outputs_and_not_prompts() -> None:
    text = ints(3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7)
    system = Arctic(ArcticSetting(factor=4))
    system.remember(Call("s", "", "", (ints(3, 1, 4, 20, 21),), text))
    system.open(ints(100, 4, 1, 5, 9))
    assert system.tree(system.draft(4)) == Draft([2, 6, 5, 3], [-1, 0, 1, 2])
    system.close()
    # The sequence 4, 20 occurs only in a prompt.
    system.open(ints(100, 3, 1, 4, 20))
    assert not system.tree(system.draft(4)).tokens
    system.close()


@pytest.mark.arctic
def test_contexts_longer_than_the_first_buffer() -> None:
    output = np.tile(ints(*range(50)), 60)
    sums = replay([Call("s", "", "", (ints(1, 2),), output)], Arctic(ArcticSetting(factor=4)), 16)
    assert sums.accepted > 2500


@pytest.mark.arctic
def test_all_settings_in_one_pass_give_what_each_gives_alone() -> None:
    random = np.random.default_rng(2)
    phrases = [random.integers(0, 30, 12).astype(np.int32) for _ in range(6)]
    calls = [
        Call("s", "", "", (np.concatenate([phrases[i] for i in random.integers(0, 6, 4)]),), output)
        for output in [np.concatenate([phrases[i] for i in random.integers(0, 6, 8)]) for _ in range(5)] + [ints(3)]
    ]
    settings = [(setting, limit) for setting in CURVE[::5] for limit in (3, 16)]
    together = replay_settings(calls, Arctic(CURVE[0]), settings)
    for (setting, limit), sums in zip(settings, together, strict=True):
        alone = replay(calls, Arctic(setting), limit)
        assert (sums.calls, sums.steps, sums.drafted, sums.accepted, sums.output_tokens) == (
            alone.calls, alone.steps, alone.drafted, alone.accepted, alone.output_tokens,
        )  # fmt: skip
    assert len({sums.accepted for sums in together}) > 3
