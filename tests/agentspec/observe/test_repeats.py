"""Repeats equal those of a slow count."""

from __future__ import annotations

import numpy as np
from every import every

from agentspec.observe.repeats import LENGTH, repeats_by_namespace, share_in, windows


def ngrams(tokens: np.ndarray) -> list[tuple[int, ...]]:
    return [tuple(tokens[at : at + LENGTH].tolist()) for at in range(len(tokens) - LENGTH + 1)]


@every("seed", range(20))
def test_repeats_in_random_outputs(seed: int) -> None:
    rng = np.random.default_rng(seed)
    pieces = [rng.integers(0, 4, 12, dtype=np.int32) for _ in range(6)]
    outputs = []
    for _ in range(int(rng.integers(1, 12))):
        chosen = [pieces[i] for i in rng.integers(0, len(pieces), int(rng.integers(0, 4)))]
        tokens = np.concatenate([*chosen, rng.integers(0, 4, int(rng.integers(0, 9)), dtype=np.int32)])
        outputs.append((f"n{rng.integers(0, 3)}", tokens))
    expected: dict[str, list[int]] = {name: [0, 0, 0] for name, _ in outputs}
    said: dict[str, set[tuple[int, ...]]] = {name: set() for name, _ in outputs}
    for name, tokens in outputs:
        for ngram in ngrams(tokens):
            expected[name][0] += 1
            if ngram in said[name]:
                expected[name][1] += 1
            elif any(ngram in others for others in said.values()):
                expected[name][2] += 1
            said[name].add(ngram)
    got = repeats_by_namespace(outputs)
    assert {name: [of.places, of.own, of.elsewhere] for name, of in got.items()} == expected


def test_what_is_in_a_prompt() -> None:
    prompt, output = np.arange(100, dtype=np.int32), np.arange(40, 60, dtype=np.int32)
    assert share_in(windows(output), [windows(prompt)]).all()
    assert not share_in(windows(output + 1000), [windows(prompt)]).any()
    assert len(windows(output[: LENGTH - 1])) == 0 and not share_in(windows(output), []).any()
