"""A request drafts from the text that its output is expected to repeat, and nobody else ever does."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from engine_texts import PROMPT, drafted_for, ids, keep, random_output, steady_engine

from agentspec import EngineConfig, Source, TokenError
from agentspec._core import CommonSubsequence

PREDICTION = np.arange(300, 340, dtype=np.int32)


@pytest.mark.parametrize("background", [False, True])
@pytest.mark.parametrize("end", ["kept", "dropped", "cut"])
def test_nothing_of_it_is_left_when_the_request_closes(background: bool, end: str) -> None:
    private = steady_engine(background=background)
    private.open("asked", PROMPT, prediction=PREDICTION)
    private.flush()
    assert drafted_for(private, "asked")[:8] == PREDICTION[:8].tolist()
    private.extend("asked", ids(7, 8))
    private.close("asked", keep=end != "dropped", num_output_tokens=1 if end == "cut" else None)
    private.flush()
    # The same conversation goes on, and another one begins alike.
    private.open("next", np.concatenate([PROMPT, ids(7, 8)]))
    private.open("same", PROMPT)
    private.open("quoting", np.append(PROMPT, PREDICTION[:5]))
    private.flush()
    tokens = {token for name in ("next", "same", "quoting") for token in drafted_for(private, name)}
    assert tokens <= {*PROMPT.tolist(), 7, 8}
    private.check_integrity()


def test_nobody_else_sees_it_while_the_request_runs() -> None:
    private = steady_engine()
    private.open("asked", PROMPT, group="votes", prediction=PREDICTION)
    private.open("sibling", PROMPT, group="votes")
    private.open("same", PROMPT)
    private.extend("asked", PREDICTION[:4])
    private.extend("sibling", PREDICTION[:2])
    # The sibling sees what was written, and not what was predicted.
    assert drafted_for(private, "sibling") == PREDICTION[2:4].tolist()
    assert drafted_for(private, "same") == []


def test_a_snapshot_does_not_hold_it() -> None:
    private, other = steady_engine(max_growing_tokens=64), steady_engine()
    private.open("asked", PROMPT, prediction=PREDICTION)
    private.extend("asked", PREDICTION[:3])
    private.close("asked")
    keep(private, np.arange(500, 570, dtype=np.int32))
    private.flush()
    (saved,) = (segment.blob.tobytes() for segment in private.snapshot("").segments)
    assert PREDICTION[:3].tobytes() in saved
    assert PREDICTION[3:5].tobytes() not in saved
    other.load_segments("", [saved])
    other.open("next", PROMPT)
    assert drafted_for(other, "next") == PREDICTION[:3].tolist()


@pytest.mark.parametrize("mode", ["tree", "chain"])
@pytest.mark.parametrize("rule", ["calibrated", "suffixdecoding"])
def test_it_is_drafted_from_its_beginning_and_again_after_a_difference(mode: str, rule: str) -> None:
    asking = steady_engine(mode=mode, rule=rule)
    asking.open("asked", PROMPT, prediction=PREDICTION)
    batch = asking.draft(["asked"])
    assert batch.tokens[1:9].tolist() == PREDICTION[:8].tolist()
    assert batch.row(0).match_len == min(len(PROMPT), EngineConfig().max_pattern)
    assert set(batch.sources[1:].tolist()) == {Source.GLOBAL}
    # A token is replaced, some are left out, some are inserted.
    differences = [(ids(*PREDICTION[:5], 9, *PREDICTION[6:8]), 8), (PREDICTION[20:22], 22), (ids(5, 6, 330), 31)]
    for written, place in differences:
        asking.extend("asked", written)
        assert drafted_for(asking, "asked")[:3] == PREDICTION[place : place + 3].tolist()


def test_its_first_tokens_are_likely_enough_to_verify() -> None:
    asking = steady_engine()
    asking.open("asked", PROMPT, prediction=PREDICTION)
    row = asking.draft(["asked"]).row(0)
    assert row.estimates[1] > 0.8
    assert row.estimates[1:9].min() > 0.4


def test_nothing_is_drafted_after_its_end() -> None:
    asking = steady_engine()
    asking.open("asked", PROMPT, prediction=PREDICTION)
    asking.extend("asked", PREDICTION[:-3])
    assert drafted_for(asking, "asked") == PREDICTION[-3:].tolist()
    asking.extend("asked", PREDICTION[-3:])
    batch = asking.draft(["asked"])
    assert batch.tokens.tolist() == [PREDICTION[-1]]


def test_it_is_drafted_rather_than_another_answer_to_the_same_prompt() -> None:
    asking = steady_engine(mode="chain")
    asking.open("earlier", PROMPT)
    asking.extend("earlier", np.arange(500, 540, dtype=np.int32))
    asking.close("earlier")
    asking.open("asked", PROMPT, prediction=PREDICTION)
    assert drafted_for(asking, "asked")[:8] == PREDICTION[:8].tolist()


def test_a_request_without_one_drafts_as_before() -> None:
    rng = np.random.default_rng(0)
    asking, plain = steady_engine(), steady_engine()
    text, output = random_output(rng, 60, 20), random_output(rng, 30, 20)
    asking.open("asked", text, prediction=[])
    plain.open("asked", text)
    for token in output:
        a, b = asking.draft(["asked"]), plain.draft(["asked"])
        assert a.tokens.tolist() == b.tokens.tolist()
        assert a.estimates.tolist() == b.estimates.tolist()
        asking.extend("asked", ids(token))
        plain.extend("asked", ids(token))
    assert asking.stats().request_bytes == plain.stats().request_bytes


def test_a_token_outside_the_vocabulary_opens_nothing() -> None:
    asking = steady_engine()
    with pytest.raises(TokenError, match=r"got 1000 at index 1"):
        asking.open("asked", PROMPT, prediction=[1, 1000])
    assert not asking.is_open("asked")


def longest_common(a: Sequence[int], b: Sequence[int]) -> int:
    """The textbook's table, a row at a time."""
    row = [0] * (len(b) + 1)
    for token in a:
        above = row
        row = [0]
        for j, other in enumerate(b):
            row.append(above[j] + 1 if token == other else max(row[j], above[j + 1]))
    return row[-1]


@pytest.mark.parametrize("length", [0, 1, 5, 63, 64, 65, 127, 128, 200])
@pytest.mark.parametrize("alphabet", [1, 2, 10, 400])
def test_the_longest_common_subsequence_of_growing_texts(length: int, alphabet: int) -> None:
    rng = np.random.default_rng([length, alphabet])
    text, output = random_output(rng, length, alphabet), random_output(rng, 150, alphabet)
    common = CommonSubsequence(text)
    for start in range(0, 150, 30):
        common.append(output[start : start + 30])
        assert len(common) == longest_common(text.tolist(), output[: start + 30].tolist())
    common.append(ids())
    assert len(common) == longest_common(text.tolist(), output.tolist())
