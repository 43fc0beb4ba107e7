from __future__ import annotations

import numpy as np
import pytest

from agentspec.analysis.replay import Call, replay
from agentspec.evals.peers.ngram import MAX_TRIE_DEPTH, Ngram, parents_of


def test_parents_of_a_mask() -> None:
    # root ─┬─ 1 ─┬─ 3
    #       └─ 2  └─ 4
    mask = np.array([[1, 0, 0, 0, 0], [1, 1, 0, 0, 0], [1, 0, 1, 0, 0], [1, 1, 0, 1, 0], [1, 1, 0, 0, 1]])
    assert parents_of(mask) == [-1, -1, 0, 0]


@pytest.mark.sglang
# SGLang's modules emit warnings when they are imported.
@pytest.mark.filterwarnings("default")
def test_windows_enter_the_corpus_one_step_late() -> None:
    output = np.array([*range(10, 20)] * 3, dtype=np.int32)
    system = Ngram(8)
    prompt = np.arange(100, 100 + 2 * MAX_TRIE_DEPTH, dtype=np.int32)
    call = Call("s", "", "", (prompt,), output)
    once = replay([call], system, 8)
    # The first ten tokens are not in the corpus. The rest of the output repeats them.
    assert 0 < once.accepted < len(output)
    assert once.drafted == 8 * once.steps
    again = replay([call], system, 8)
    assert again.accepted > once.accepted
    # Only the last window of the prompt is in the corpus.
    for begin, found in ((0, False), (2 * MAX_TRIE_DEPTH - 6, True)):
        system.open(prompt[begin : begin + 3])
        system.extend(prompt[begin + 3 : begin + 4])
        drafted = system.tree(system.draft(8)).tokens
        assert (int(prompt[begin + 4]) in drafted) is found
        system.close()
