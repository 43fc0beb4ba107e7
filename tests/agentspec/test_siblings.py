"""Open requests with the same prompt, or of the same group, draft from each other's outputs while these grow."""

from __future__ import annotations

import numpy as np
import pytest
from engine_texts import PROMPT, drafted_for, ids, random_output, steady_engine
from numpy.typing import NDArray

from agentspec import Engine

ANSWER = np.arange(300, 340, dtype=np.int32)


def open_two(engine: Engine, *, shown: bool = True, namespaces: tuple[str, str] = ("", "")) -> None:
    """Opens two requests with the same prompt. The first one has written its answer."""
    engine.open("first", PROMPT, namespaces[0], shown=shown)
    engine.open("second", PROMPT, namespaces[1])
    engine.extend("first", ANSWER)


@pytest.mark.parametrize("seed", range(8))
def test_a_growing_output_drafts_like_a_finished_one(seed: int) -> None:
    rng = np.random.default_rng(seed)
    phrases = [random_output(rng, int(rng.integers(2, 9)), 30) for _ in range(6)]

    def text() -> NDArray[np.int32]:
        return np.concatenate([phrases[rng.integers(len(phrases))] for _ in range(rng.integers(1, 12))])

    # Only a finished text tells that it ends, so the end is one that nothing else leads to.
    prompt, other, own = np.concatenate([PROMPT, text()]), np.append(text(), ids(999)), text()
    # A finished request would leave its own index to the next one with its prompt.
    growing, finished = steady_engine(conversation_bytes=0), steady_engine(conversation_bytes=0)
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
    siblings = steady_engine()
    open_two(siblings, namespaces=("a", "b"))
    assert drafted_for(siblings, "second") == []


def test_a_request_that_is_not_shown_sees_but_is_not_seen() -> None:
    siblings = steady_engine()
    open_two(siblings, shown=False)
    assert drafted_for(siblings, "second") == []
    siblings.extend("second", np.append(ANSWER, ids(7)))
    assert drafted_for(siblings, "first")[:1] == [7]


@pytest.mark.parametrize("background", [False, True])
def test_an_aborted_text_is_taken_back_at_once(background: bool) -> None:
    siblings = steady_engine(background=background)
    open_two(siblings)
    siblings.wait_indexed()
    assert drafted_for(siblings, "second")[:8] == ANSWER[:8].tolist()
    siblings.close("first", keep=False)
    assert drafted_for(siblings, "second") == []
    siblings.wait_indexed()
    assert drafted_for(siblings, "second") == []


def test_what_is_cut_off_an_output_is_not_drafted_after_its_end() -> None:
    siblings = steady_engine()
    open_two(siblings)
    siblings.close("first", num_output_tokens=4)
    assert drafted_for(siblings, "second") == ANSWER[:4].tolist()


@pytest.mark.parametrize(("first", "second", "is_sibling"), [("a", "a", True), ("a", "b", False), ("a", "", False)])
def test_groups_are_named_by_the_caller(first: str, second: str, is_sibling: bool) -> None:
    siblings = steady_engine()
    siblings.open("first", ids(1, 2, 3), group=first)
    siblings.open("second", ids(4, 5, 3), group=second)
    siblings.extend("first", ANSWER)
    assert (drafted_for(siblings, "second") != []) == is_sibling


def test_requests_that_share_a_system_prompt_are_no_siblings() -> None:
    siblings = steady_engine()
    siblings.open("first", np.append(PROMPT, ids(1)))
    siblings.open("second", np.append(PROMPT, ids(2)))
    siblings.extend("first", np.append(ids(2), ANSWER))
    assert drafted_for(siblings, "second") == []


def test_no_more_than_the_set_number_are_seen() -> None:
    siblings = steady_engine(max_siblings=1)
    for number in range(3):
        siblings.open(str(number), PROMPT)
        siblings.extend(str(number), ids(900 + number))
    siblings.open("asked", PROMPT)
    first = drafted_for(siblings, "asked")
    assert len(first) == 1
    siblings.close(str(first[0] - 900), keep=False)
    assert drafted_for(siblings, "asked") == []
    siblings.open("later", PROMPT)
    siblings.extend("later", ids(950))
    assert drafted_for(siblings, "asked") == [950]


def test_none_are_seen_if_so_configured_or_by_the_papers_rule() -> None:
    for siblings in (steady_engine(max_siblings=0), steady_engine(rule="suffixdecoding")):
        open_two(siblings)
        assert drafted_for(siblings, "second") == []


def test_siblings_of_many_requests_stay_whole_in_the_background() -> None:
    rng = np.random.default_rng(0)
    siblings = steady_engine(background=True, max_siblings=3)
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
