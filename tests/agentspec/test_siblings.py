"""Open requests with the same prompt, or of the same group, draft from each other's outputs while these grow."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from engine_texts import ids, random_output
from numpy.typing import NDArray

from agentspec import Engine, EngineConfig, Source, TokenError
from agentspec._core import CommonSubsequence

CONFIG = EngineConfig(vocab_size=1000, min_token_prob=0.0, learning_rate=0.0)
PROMPT = np.arange(100, 180, dtype=np.int32)
ANSWER = np.arange(300, 340, dtype=np.int32)


def engine(**fields: object) -> Engine:
    return Engine(replace(CONFIG, **fields))  # type: ignore[arg-type]


def drafted(engine: Engine, request_id: str) -> list[int]:
    return engine.draft([request_id]).tokens[1:].tolist()


def open_two(engine: Engine, *, shown: bool = True, namespaces: tuple[str, str] = ("", "")) -> None:
    """Opens two requests with the same prompt. The first one has written its answer."""
    engine.open("first", PROMPT, namespaces[0], shown=shown)
    engine.open("second", PROMPT, namespaces[1])
    engine.extend("first", ANSWER)


def test_a_request_drafts_what_its_sibling_has_written() -> None:
    siblings = engine()
    open_two(siblings)
    assert drafted(siblings, "second")[:8] == ANSWER[:8].tolist()
    siblings.extend("second", ANSWER[:5])
    assert drafted(siblings, "second")[:8] == ANSWER[5:13].tolist()
    # The first one knows what the second one has written, but that is behind it.
    assert drafted(siblings, "first") == []
    siblings.extend("second", np.append(ANSWER[5:], ids(7, 8)))
    assert drafted(siblings, "first")[:2] == [7, 8]


@pytest.mark.parametrize("seed", range(8))
def test_a_growing_output_drafts_like_a_finished_one(seed: int) -> None:
    rng = np.random.default_rng(seed)
    phrases = [random_output(rng, int(rng.integers(2, 9)), 30) for _ in range(6)]

    def text() -> NDArray[np.int32]:
        return np.concatenate([phrases[rng.integers(len(phrases))] for _ in range(rng.integers(1, 12))])

    # Only a finished text tells that it ends, so the end is one that nothing else leads to.
    prompt, other, own = np.concatenate([PROMPT, text()]), np.append(text(), ids(999)), text()
    # A finished request would leave its own index to the next one with its prompt.
    growing, finished = engine(conversation_bytes=0), engine(conversation_bytes=0)
    growing.open("other", prompt)
    growing.open("asked", prompt)
    for part in np.array_split(other, 3):
        growing.extend("other", part)
    growing.extend("asked", own)
    finished.open("other", prompt)
    finished.extend("other", other)
    finished.close("other")
    finished.open("asked", prompt)
    finished.extend("asked", own)
    a, b = growing.draft(["asked"]).row(0), finished.draft(["asked"]).row(0)
    assert a.tokens.tolist() == b.tokens.tolist()
    np.testing.assert_allclose(a.estimates, b.estimates, atol=1e-5)


def test_no_other_namespace_sees_it() -> None:
    siblings = engine()
    open_two(siblings, namespaces=("a", "b"))
    assert drafted(siblings, "second") == []


def test_a_request_that_is_not_shown_sees_but_is_not_seen() -> None:
    siblings = engine()
    open_two(siblings, shown=False)
    assert drafted(siblings, "second") == []
    siblings.extend("second", np.append(ANSWER, ids(7)))
    assert drafted(siblings, "first")[:1] == [7]


@pytest.mark.parametrize("background", [False, True])
def test_an_aborted_text_is_taken_back_at_once(background: bool) -> None:
    siblings = engine(background=background)
    open_two(siblings)
    siblings.wait_indexed()
    assert drafted(siblings, "second")[:8] == ANSWER[:8].tolist()
    siblings.close("first", keep=False)
    assert drafted(siblings, "second") == []
    siblings.wait_indexed()
    assert drafted(siblings, "second") == []


def test_what_is_cut_off_an_output_is_not_drafted_after_its_end() -> None:
    siblings = engine()
    open_two(siblings)
    siblings.close("first", num_output_tokens=4)
    assert drafted(siblings, "second") == ANSWER[:4].tolist()


@pytest.mark.parametrize(("first", "second", "is_sibling"), [("a", "a", True), ("a", "b", False), ("a", "", False)])
def test_groups_are_named_by_the_caller(first: str, second: str, is_sibling: bool) -> None:
    siblings = engine()
    siblings.open("first", ids(1, 2, 3), group=first)
    siblings.open("second", ids(4, 5, 3), group=second)
    siblings.extend("first", ANSWER)
    assert (drafted(siblings, "second") != []) == is_sibling


def test_requests_that_share_a_system_prompt_are_no_siblings() -> None:
    siblings = engine()
    siblings.open("first", np.append(PROMPT, ids(1)))
    siblings.open("second", np.append(PROMPT, ids(2)))
    siblings.extend("first", np.append(ids(2), ANSWER))
    assert drafted(siblings, "second") == []


def test_no_more_than_the_set_number_are_seen() -> None:
    siblings = engine(max_siblings=1)
    for number in range(3):
        siblings.open(str(number), PROMPT)
        siblings.extend(str(number), ids(900 + number))
    siblings.open("asked", PROMPT)
    first = drafted(siblings, "asked")
    assert len(first) == 1
    siblings.close(str(first[0] - 900), keep=False)
    assert drafted(siblings, "asked") == []
    siblings.open("later", PROMPT)
    siblings.extend("later", ids(950))
    assert drafted(siblings, "asked") == [950]


def test_none_are_seen_if_so_configured_or_by_the_papers_rule() -> None:
    for siblings in (engine(max_siblings=0), engine(rule="suffixdecoding")):
        open_two(siblings)
        assert drafted(siblings, "second") == []


def test_siblings_of_many_requests_stay_whole_in_the_background() -> None:
    rng = np.random.default_rng(0)
    siblings = engine(background=True, max_siblings=3)
    names = [str(number) for number in range(12)]
    for name in names:
        siblings.open(name, PROMPT)
    for _ in range(40):
        for name in names:
            siblings.extend(name, random_output(rng, int(rng.integers(1, 200)), 50))
        siblings.draft(names)
    siblings.wait_indexed()
    siblings.check_integrity()
    assert siblings.draft(names).row(0).tokens.size > 1


PREDICTION = np.arange(300, 340, dtype=np.int32)


@pytest.mark.parametrize("background", [False, True])
@pytest.mark.parametrize("end", ["kept", "dropped", "cut"])
def test_nothing_of_it_is_left_when_the_request_closes(background: bool, end: str) -> None:
    private = engine(background=background)
    private.open("asked", PROMPT, prediction=PREDICTION)
    private.flush()
    assert drafted(private, "asked")[:8] == PREDICTION[:8].tolist()
    private.extend("asked", ids(7, 8))
    private.close("asked", keep=end != "dropped", num_output_tokens=1 if end == "cut" else None)
    private.flush()
    # The same conversation goes on, and another one begins alike.
    private.open("next", np.concatenate([PROMPT, ids(7, 8)]))
    private.open("same", PROMPT)
    private.open("quoting", np.append(PROMPT, PREDICTION[:5]))
    private.flush()
    tokens = {token for name in ("next", "same", "quoting") for token in drafted(private, name)}
    assert tokens <= {*PROMPT.tolist(), 7, 8}
    private.check_integrity()


def test_nobody_else_sees_it_while_the_request_runs() -> None:
    private = engine()
    private.open("asked", PROMPT, group="votes", prediction=PREDICTION)
    private.open("sibling", PROMPT, group="votes")
    private.open("same", PROMPT)
    private.extend("asked", PREDICTION[:4])
    private.extend("sibling", PREDICTION[:2])
    # The sibling sees what was written, and not what was predicted.
    assert drafted(private, "sibling") == PREDICTION[2:4].tolist()
    assert drafted(private, "same") == []


def test_a_saved_namespace_does_not_hold_it(tmp_path: Path) -> None:
    private, other = engine(), engine()
    private.open("asked", PROMPT, prediction=PREDICTION)
    private.extend("asked", PREDICTION[:3])
    private.close("asked")
    assert private.save("", tmp_path / "kept.seg") == 1
    saved = (tmp_path / "kept.seg").read_bytes()
    assert PREDICTION[:3].tobytes() in saved
    assert PREDICTION[3:5].tobytes() not in saved
    other.load("", tmp_path / "kept.seg")
    other.open("next", PROMPT)
    assert drafted(other, "next") == PREDICTION[:3].tolist()


@pytest.mark.parametrize("mode", ["tree", "chain"])
@pytest.mark.parametrize("rule", ["calibrated", "suffixdecoding"])
def test_it_is_drafted_from_its_beginning_and_again_after_a_difference(mode: str, rule: str) -> None:
    asking = engine(mode=mode, rule=rule)
    asking.open("asked", PROMPT, prediction=PREDICTION)
    batch = asking.draft(["asked"])
    assert batch.tokens[1:9].tolist() == PREDICTION[:8].tolist()
    assert batch.row(0).match_len == min(len(PROMPT), CONFIG.max_pattern)
    assert set(batch.sources[1:].tolist()) == {Source.GLOBAL}
    # A token is replaced, some are left out, some are inserted.
    differences = [(ids(*PREDICTION[:5], 9, *PREDICTION[6:8]), 8), (PREDICTION[20:22], 22), (ids(5, 6, 330), 31)]
    for written, place in differences:
        asking.extend("asked", written)
        assert drafted(asking, "asked")[:3] == PREDICTION[place : place + 3].tolist()


def test_its_first_tokens_are_likely_enough_to_verify() -> None:
    asking = engine()
    asking.open("asked", PROMPT, prediction=PREDICTION)
    row = asking.draft(["asked"]).row(0)
    assert row.estimates[1] > 0.8
    assert row.estimates[1:9].min() > 0.4


def test_nothing_is_drafted_after_its_end() -> None:
    asking = engine()
    asking.open("asked", PROMPT, prediction=PREDICTION)
    asking.extend("asked", PREDICTION[:-3])
    assert drafted(asking, "asked") == PREDICTION[-3:].tolist()
    asking.extend("asked", PREDICTION[-3:])
    batch = asking.draft(["asked"])
    assert batch.tokens.tolist() == [PREDICTION[-1]]


def test_it_is_drafted_rather_than_another_answer_to_the_same_prompt() -> None:
    asking = engine(mode="chain")
    asking.open("earlier", PROMPT)
    asking.extend("earlier", np.arange(500, 540, dtype=np.int32))
    asking.close("earlier")
    asking.open("asked", PROMPT, prediction=PREDICTION)
    assert drafted(asking, "asked")[:8] == PREDICTION[:8].tolist()


def test_a_request_without_one_drafts_as_before() -> None:
    rng = np.random.default_rng(0)
    asking, plain = engine(), engine()
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
    asking = engine()
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
