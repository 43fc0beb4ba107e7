"""Tokens with carriage returns are found in all kinds of tokenizer files, and texts with such tokens are recognised."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="the plugin needs torch; `make setup` installs it")

from server_requests import MODEL

from agentspec.analysis.replay.tokenizer import load_tokenizer
from agentspec.integrations.sglang.drafting.request_counts import LineEnds, RequestCounts, carriage_returns
from agentspec.integrations.sglang.tenants import Handling


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
