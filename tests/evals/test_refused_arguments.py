"""Evals and benches refuse these command lines with status 2, and say what is wrong, before anything starts."""

from __future__ import annotations

import pytest

from agentspec.cli import main


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ("demo --questions 0", "--questions"),
        ("demo --nonsense", "--nonsense"),
        ("serve --model ./no-such-model", "no-such-model"),
        ("eval nonsense", "text_to_sql, open_chat"),
        ("eval", "got none"),
        ("eval open_chat --system vllm", "none, ngram, standalone"),
        ("eval open_chat --passes hot", "cold, warm"),
        ("eval open_chat --concurrency 0", "at least 1"),
        ("eval open_chat --repeat 0", "at least 1"),
        ("eval open_chat --resume", "--json"),
        ("eval math_gsm8k", "--data"),
        ("eval open_chat --x", "--x"),
        ("bench emulation --data . --systems vllm", "none, ngram"),
        ("bench emulation --data . --repeat 0", "--repeat"),
        ("bench emulation --data . --x", "--x"),
        ("bench parity --tokens 0", "--tokens"),
        ("bench parity --systems suffix,ours", "ours"),
        ("bench parity --overlap yes", "on, off, got yes"),
        ("bench parity --tp 0", "--tp"),
        ("bench store --case nothing", "--case"),
        ("bench store --seconds 0", "--seconds must be above 0"),
        ("bench store --size 100k,1m", "--size must be one number"),
        ("bench store --speed", "--speed"),
    ],
)
def test_bad_arguments_end_with_what_is_wrong(line: str, named: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(line.split()) == 2
    assert named in capsys.readouterr().err
