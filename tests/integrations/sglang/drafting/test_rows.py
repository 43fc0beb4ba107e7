"""The rows of a step: counts of their drafts, and rows without a draft."""

from __future__ import annotations

import numpy as np
import pytest
from draft_states import batch, drawn_rows

from agentspec import DraftBatch, Source
from agentspec.drafts import Outcome
from agentspec.integrations.sglang.drafting.breaker import Breaker
from agentspec.integrations.sglang.drafting.draftless import REASONS, DraftlessRows, Reason
from agentspec.integrations.sglang.drafting.rows import DraftedStep
from agentspec.integrations.sglang.metrics import Counters

pytest.importorskip("torch", reason="the plugin needs torch; `make setup` installs it")
import base64
import json
from pathlib import Path
from typing import Any

from server_requests import MODEL

from agentspec.analysis.replay.tokenizer import load_tokenizer
from agentspec.integrations.sglang.drafting.request_counts import LineEnds, RequestCounts, carriage_returns
from agentspec.integrations.sglang.tenants import Handling

#   row 0:   2         row 1:   5 ── 6 ── 7         row 2:   8 ─┬─ 9
#                                                               └─ 1
DRAFTS = DraftBatch(
    offsets=np.array([0, 1, 4, 7], np.int32),
    tokens=np.array([2, 5, 6, 7, 8, 9, 1], np.int32),
    parents=np.array([-1, -1, 0, 1, -1, 0, 0], np.int32),
    estimates=np.array([1, 1, 0.9, 0.8, 1, 0.5, 0.4], np.float32),
    sources=np.array([0, 0, 1, 2, 0, 2, 1], np.uint8),
    match_lens=np.array([0, 4, 2], np.int32),
    scores=np.array([0, 1.7, 0.9], np.float32),
)


def drafted(*num_drafted: int) -> DraftedStep:
    return DraftedStep.of(DRAFTS, np.array(num_drafted, np.int32))


@pytest.mark.parametrize(
    ("num_drafted", "sources"),
    [
        ((0, 2, 2), [Source.ROOT, Source.REQUEST, Source.GLOBAL]),
        ((0, 0, 1), [Source.ROOT, Source.ROOT, Source.GLOBAL]),
        ((0, 0, 0), [Source.ROOT] * 3),
    ],
    ids=["all", "one row cut", "nothing"],
)
def test_a_row_counts_for_the_source_of_its_likeliest_token(num_drafted: tuple[int, ...], sources: list[int]) -> None:
    assert drafted(*num_drafted).sources.tolist() == sources


def test_rows_and_tokens_are_counted_by_source() -> None:
    counters = Counters()
    step = drafted(0, 2, 1)
    step.count_drafted(counters)
    step.count_accepted(counters, [0, 2, 0])
    counted = counters.snapshot()
    assert counted["by_source"] == {
        "steps": {"all": 1},
        "verify_steps": {"none": 1, "request": 1, "global": 1},
        "drafted_tokens": {"none": 0, "request": 2, "global": 1},
        "accepted_tokens": {"none": 0, "request": 2, "global": 0},
    }


def test_counts_by_source_add_up_to_what_was_drafted_and_accepted() -> None:
    rng = np.random.default_rng(0)
    counters = Counters()
    rows, num_drafted_tokens, num_accepted_tokens = 0, 0, 0
    for _ in range(50):
        drafts = batch(drawn_rows(rng, int(rng.integers(1, 6)), 5))
        kept = rng.integers(0, np.diff(drafts.offsets), dtype=np.int32)
        accepted = rng.integers(0, kept + 1)
        step = DraftedStep.of(drafts, kept)
        step.count_drafted(counters)
        step.count_accepted(counters, accepted.tolist())
        rows += len(drafts)
        num_drafted_tokens += int(kept.sum())
        num_accepted_tokens += int(accepted.sum())
    totals = counters.snapshot()
    assert (totals["steps"], totals["verify_steps"]) == (50, rows)
    assert (totals["drafted_tokens"], totals["accepted_tokens"]) == (num_drafted_tokens, num_accepted_tokens)


def test_what_was_accepted_of_other_rows_is_not_counted() -> None:
    counters = Counters()
    drafted(0, 2, 1).count_accepted(counters, [1, 1])
    assert counters.total("accepted_tokens") == 0


def test_opens_after_failures_in_a_row_and_tries_again_after_the_pause() -> None:
    breaker = Breaker(max_failures=2, pause_steps=3)
    for outcome in (breaker.failed, breaker.succeeded, breaker.failed):
        assert breaker.allow()
        outcome()
    assert not breaker.is_open, "a success in between starts the count anew"

    breaker.failed()

    assert [breaker.allow() for _ in range(4)] == [False, False, False, True]
    breaker.failed()
    assert breaker.is_open, "one failure after the pause is enough"
    assert breaker.num_openings == 2
    for _ in range(3):
        breaker.allow()
    assert breaker.allow()
    breaker.succeeded()
    breaker.failed()
    assert not breaker.is_open, "after a success it takes the full number again"


def flags(*values: int) -> np.ndarray:
    return np.array(values, bool)


def outcomes(*values: Outcome) -> np.ndarray:
    return np.array(values, np.uint8)


def test_each_row_without_a_draft_is_counted_once_by_its_reason() -> None:
    rows = DraftlessRows()
    says: dict[int, Reason] = {0: "disabled_by_request", 1: "no_match_at_start"}
    found = outcomes(Outcome.NO_ROOM, Outcome.NO_MATCH, Outcome.NO_MATCH, Outcome.DRAFTED, Outcome.DRAFTED)
    # Rows 3 and 4 had suffix drafts. The controller cut one of them, and the policy left the other one out.
    rows.count(found, flags(0, 0, 0, 1, 0), flags(0, 0, 0, 0, 0), lambda row, outcome: says.get(row))
    assert rows.counts.snapshot() == {
        "disabled_by_request": 1,
        "no_match_at_start": 1,
        "no_match": 1,
        "cut_by_controller": 1,
        "left_by_policy": 1,
    }


@pytest.mark.parametrize("reason", ["breaker", "failed"])
def test_one_reason_may_hold_for_all_rows_of_a_step(reason: Reason) -> None:
    rows = DraftlessRows()
    # A draft model drafted for the last two rows nevertheless. The controller cut one of these drafts to nothing.
    rows.count(reason, flags(0, 0, 1, 1), flags(0, 0, 0, 1))
    assert rows.counts.snapshot() == {reason: 2, "cut_by_controller": 1}


def test_every_outcome_of_the_engine_has_a_reason() -> None:
    rows = DraftlessRows()
    none = np.zeros(len(Outcome), bool)
    rows.count(outcomes(*Outcome), none, none)
    counted = rows.counts.snapshot()
    assert sum(counted.values()) == len(Outcome) and set(counted) < set(REASONS)
    assert counted["left_by_policy"] == 1, "DRAFTED alone is no reason of the engine's"


def test_only_rows_that_something_else_may_have_left_without_are_asked_about() -> None:
    rows = DraftlessRows()
    asked: list[tuple[int, Outcome]] = []
    verified = np.array([outcome == Outcome.NO_ROOM for outcome in Outcome] + [False])
    found = outcomes(*Outcome, Outcome.NO_ROOM)

    def refine(row: int, outcome: Outcome) -> None:
        asked.append((row, outcome))

    rows.count(found, np.zeros_like(verified), verified, refine)
    assert asked == [
        (int(Outcome.NO_MATCH), Outcome.NO_MATCH),
        (int(Outcome.NOT_OPEN), Outcome.NOT_OPEN),
        (len(Outcome), Outcome.NO_ROOM),
    ]


def encoded(token: bytes) -> str:
    return base64.b64encode(token).decode()


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("tokenizer.json", {"decoder": {"type": "ByteLevel"}, "model": {"vocab": {"a": 0, "čĊ": 1, "č": 2}}}, [1, 2]),
        # This character is an ordinary letter in tokenizers that do not encode bytes.
        ("tokenizer.json", {"model": {"vocab": {"č": 0, "<0x0D>": 1, "x\r": 2}}}, [1, 2]),
        ("tokenizer.json", {"model": {"vocab": [["a", -1.0], ["\r", -2.0]]}}, [1]),
        (
            "tekken.json",
            {
                "config": {"default_num_special_tokens": 10},
                "vocab": [{"rank": 0, "token_bytes": encoded(b"a")}, {"rank": 1, "token_bytes": encoded(b"\r\n")}],
            },
            [11],
        ),
    ],
)
def test_tokens_with_carriage_returns(tmp_path: Path, name: str, content: Any, expected: list[int]) -> None:
    path = tmp_path / name
    path.write_text(json.dumps(content))
    assert carriage_returns(path).tolist() == expected


def test_tokens_with_carriage_returns_of_a_tiktoken_file(tmp_path: Path) -> None:
    path = tmp_path / "model.tiktoken"
    path.write_text(f"{encoded(b'a')} 0\n{encoded(b'};' + bytes([13, 10]))} 1\n")
    assert carriage_returns(path).tolist() == [1]


def test_texts_are_told_apart_by_a_real_tokenizer() -> None:
    tokenizer = load_tokenizer(MODEL / "tokenizer.json")
    ends = LineEnds(carriage_returns(MODEL / "tokenizer.json"), tokenizer.vocab_size)
    assert ends.has_returns(tokenizer.encode("SELECT 1\r\nFROM t"))
    assert not ends.has_returns(tokenizer.encode("SELECT 1\nFROM t č"))
    assert not ends.has_returns(np.zeros(0, np.int32))


def test_requests_are_counted_by_what_is_done_with_them() -> None:
    tokenizer = load_tokenizer(MODEL / "tokenizer.json")
    counts = RequestCounts(str(MODEL), tokenizer.vocab_size)
    prompt = tokenizer.encode("a\r\nb")
    for handling in (
        Handling("n", keep=True, draft=True),
        Handling("n", keep=False, draft=True),
        Handling("private:1", keep=False, draft=True),
        Handling("n", keep=True, draft=False),
    ):
        counts.opened(handling, prompt)
    counts.finished(tokenizer.encode("a\nb"))
    assert counts.snapshot() == {
        "requests": {"kept": 1, "private": 1, "no_store": 1, "no_draft": 1},
        "carriage_returns": {"prompts": 4, "outputs": 0},
    }


def test_an_unreadable_tokenizer_is_no_reason_to_stop(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{")
    counts = RequestCounts(str(tmp_path), 100)
    counts.opened(Handling("n", keep=True, draft=True), np.array([1], np.int32))
    assert counts.snapshot() == {"requests": {"kept": 1}, "carriage_returns": None}
