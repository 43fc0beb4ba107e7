from __future__ import annotations

import gzip
import json
import lzma
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from byte_tokenizer import byte_tokenizer, text_of

from agentspec import ConfigError
from agentspec.analysis.replay import Trace, read_trace

CHAT = {
    "session": "s",
    "task": "t",
    "run": "r",
    "messages": [
        {"role": "user", "content": "time?"},
        {
            "role": "assistant",
            "content": "Let me see.",
            "tool_calls": [
                {"name": "clock", "arguments": '{"zone":"UTC"}'},
                {"function": {"name": "bell", "arguments": {"n": 2}}},
            ],
        },
        {"role": "tool", "content": [{"type": "text", "text": "half "}, {"type": "text", "text": "past"}]},
        {"role": "assistant", "content": None},
        {"role": "assistant", "content": "Half past."},
    ],
}
STAGED = {"session": 7, "calls": [{"stage": "plan", "output": "one"}, {"stage": "sql", "output": ""}]}


def read(path: Path, *lines: Any, bounds: str = "") -> Trace:
    path.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))
    return read_trace(f"{path}{bounds}", byte_tokenizer())


def test_each_assistant_message_is_a_call_whose_prompt_is_all_before_it(tmp_path: Path) -> None:
    trace = read(tmp_path / "chat.jsonl", CHAT)
    first, second = trace.calls
    assert (first.session, first.task, first.run) == ("s", "t", "r")
    assert text_of(first.prompt.tolist()) == "<|user|>\ntime?$<|assistant|>\n"
    assert text_of(first.output.tolist()) == (
        'Let me see.\n{"name": "clock", "arguments": {"zone":"UTC"}}\n{"name": "bell", "arguments": {"n": 2}}$'
    )
    # A message without text is no output.
    assert text_of(second.output.tolist()) == "Half past.$"
    assert text_of(second.prompt.tolist()) == (
        text_of(first.prompt.tolist())
        + text_of(first.output.tolist())
        + "<|tool|>\nhalf past$<|assistant|>\n$<|assistant|>\n"
    )


def test_prompts_of_a_session_share_their_arrays(tmp_path: Path) -> None:
    first, second = read(tmp_path / "chat.jsonl", CHAT).calls
    before = (*first.prompt_parts, first.output)
    assert all(mine is theirs for mine, theirs in zip(second.prompt_parts[: len(before)], before, strict=True))


def test_stages_are_calls_that_know_their_stage_only(tmp_path: Path) -> None:
    trace = read(tmp_path / "staged.jsonl", STAGED)
    assert [text_of(call.prompt.tolist()) for call in trace.calls] == ["plan\n", "sql\n"]
    assert [text_of(call.output.tolist()) for call in trace.calls] == ["one$", "$"]
    assert trace.calls[0].session == "7"


def test_bad_lines_are_named_and_skipped(tmp_path: Path) -> None:
    bad = [
        "{",
        "[]",
        {"session": "x"},
        {"messages": [{"content": "no role"}]},
        {"messages": [{"role": "user", "content": 3}]},
        {"calls": [{"stage": "plan"}]},
        {"calls": "plan"},
        {"calls": [{"stage": "plan", "output": "one", "messages": ["time?"]}]},
    ]
    trace = read(tmp_path / "mixed.jsonl", *bad, "", STAGED)
    assert trace.num_sessions == 1
    assert [line.split(":")[:2] for line in trace.bad_lines] == [
        ["mixed.jsonl", str(i)] for i in range(1, len(bad) + 1)
    ]


@pytest.mark.parametrize(
    ("bounds", "sessions"), [("@1:3", [1, 2]), ("@:-3", [0]), ("@2:", [2, 3]), ("@::2", [0, 2]), ("", [0, 1, 2, 3])]
)
def test_a_slice_chooses_sessions(tmp_path: Path, bounds: str, sessions: list[int]) -> None:
    lines = [{**STAGED, "session": i} for i in range(4)]
    trace = read(tmp_path / "many.jsonl", *lines, bounds=bounds)
    assert [int(call.session) for call in trace.calls[::2]] == sessions
    assert trace.name == "many" + bounds


def test_an_at_sign_without_a_slice_belongs_to_the_path(tmp_path: Path) -> None:
    assert len(read(tmp_path / "me@home.jsonl", STAGED).calls) == 2


@pytest.mark.parametrize(("ending", "compress"), [(".jsonl.xz", lzma.compress), (".jsonl.gz", gzip.compress)])
def test_compressed_files(tmp_path: Path, ending: str, compress: Callable[[bytes], bytes]) -> None:
    path = tmp_path / f"packed{ending}"
    path.write_bytes(compress(json.dumps(STAGED).encode()))
    trace = read_trace(str(path), byte_tokenizer())
    assert (trace.name, len(trace.calls)) == ("packed", 2)


def test_files_without_a_call_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no model call .* 1 lines were bad"):
        read(tmp_path / "prompts.jsonl", {"turns": ["only a prompt"]})
    with pytest.raises(ConfigError, match="PATH@START:STOP"):
        read(tmp_path / "staged.jsonl", STAGED, bounds="@a:b")
    with pytest.raises(ConfigError, match="cannot read the trace"):
        read_trace(str(tmp_path / "missing.jsonl"), byte_tokenizer())
    (tmp_path / "torn.jsonl.xz").write_bytes(lzma.compress(b"{}")[:-8])
    with pytest.raises(ConfigError, match="cannot read the trace"):
        read_trace(str(tmp_path / "torn.jsonl.xz"), byte_tokenizer())


def test_records_of_other_formats_are_read_and_foreign_tokens_refused(tmp_path: Path) -> None:
    request = {"prompt": "time?", "completion": "noon", "hologram": "abc"}
    trace = read(tmp_path / "requests.jsonl", request, {"request_id": "r", "tokens": [5, 6]})
    assert [text_of(call.prompt.tolist()) for call in trace.calls] == ["<|user|>\ntime?$<|assistant|>\n", "$"]
    assert trace.calls[1].output.tolist() == [5, 6] and trace.calls[1].session == "r"
    assert "openai.hologram" in trace.account.not_understood()
    with pytest.raises(ConfigError, match="token id 999 is outside the vocabulary"):
        read(tmp_path / "tokens.jsonl", {"tokens": [5, 999]})
