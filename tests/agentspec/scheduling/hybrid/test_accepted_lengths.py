"""What a draft model brings is learnt apart for short and for long texts."""

from __future__ import annotations

import numpy as np
import pytest

from agentspec.scheduling.hybrid.accepted_lengths import AcceptedLengths

CONTEXTS = {"short": 900, "long": 20_000}


def _expected(lengths: AcceptedLengths, *contexts: int) -> list[float]:
    """Of new requests with texts of so many tokens."""
    found: list[float] = lengths.expected_of(["new"] * len(contexts), np.array(contexts)).tolist()
    return found


def _learn(lengths: AcceptedLengths, steps: int) -> None:
    """Of short texts three tokens of a draft are accepted, and of long ones none. Each request is drafted for once."""
    for step in range(steps):
        for name, accepted in (("short", 3.0), ("long", 0.0)):
            lengths.observe(f"{name} {step}", accepted, CONTEXTS[name])
        lengths.next_step()


def test_a_new_request_is_expected_to_bring_what_texts_of_its_length_did() -> None:
    lengths = AcceptedLengths(2.0)
    assert _expected(lengths, 900, 20_000) == [2.0, 2.0]
    _learn(lengths, 40)
    short, long = _expected(lengths, 900, 20_000)
    assert short > 2.7 and long < 0.3
    assert _expected(lengths, 600, 17_000) == [short, long], "texts of about the same length"
    assert _expected(lengths, 3000) == [pytest.approx(lengths.mean)], "a length that was never seen"
    assert lengths.expected("new") == pytest.approx(lengths.mean), "a length that is not known"


def test_drafts_of_long_texts_do_not_change_what_short_ones_promise() -> None:
    lengths = AcceptedLengths(2.0)
    _learn(lengths, 40)
    before, _ = _expected(lengths, 900, 20_000)
    for step in range(200):
        lengths.observe(f"more {step}", 0.0, 20_000)
    after, _ = _expected(lengths, 900, 20_000)
    assert lengths.mean < 0.5
    assert after > 0.85 * before


def test_a_request_s_own_drafts_outweigh_those_of_its_length() -> None:
    lengths = AcceptedLengths(2.0)
    _learn(lengths, 40)
    for _ in range(10):
        lengths.observe("own", 3.0, 20_000)
    own, other = lengths.expected_of(["own", "new"], np.array([20_000, 20_000])).tolist()
    assert own > 2.0 and other < 1.0


def test_texts_of_any_length_have_a_place() -> None:
    lengths = AcceptedLengths(2.0)
    for context in (1, 1 << 31, 1 << 40):
        lengths.observe(str(context), 1.0, context)
    assert _expected(lengths, 1 << 33, 1 << 50)[0] == _expected(lengths, 1 << 50)[0]
