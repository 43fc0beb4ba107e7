"""Streamed tool calls and reasoning are the same whatever a step accepted."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from needs import OLD_SGLANG
from programs import output_of
from server_requests import MODEL, counters_of
from transformers import PreTrainedTokenizerFast

from agentspec.evals.tool_calls.calls import TOOLS
from agentspec.integrations.servers.server import Server
from agentspec.integrations.sglang.stream_parsers import TextCutter

TEXTS = (
    "",
    "a",
    '<tool_call>\n{"name": "f", "arguments": {"x": [1, {}]}}\n</tool_call>\n<tool_call>',
    "  spaces\t\ttabs\n\n\nlines  ",
    "Zürich 東京 😀👩‍👩‍👧 naïve",
    "<|marker|>word<|marker|>",
    "x" * 3000,
)


class SlowTokenizer:
    """A tokenizer that does not tell where its tokens end."""

    is_fast = False

    def get_added_vocab(self) -> dict[str, int]:
        return {"<|marker|>": 1, "[ARGS]": 2}


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return PreTrainedTokenizerFast(tokenizer_file=str(MODEL / "tokenizer.json"))


@pytest.mark.parametrize("text", TEXTS)
def test_the_parts_are_the_text(tokenizer: Any, text: str) -> None:
    for cutter in (TextCutter(tokenizer), TextCutter(SlowTokenizer()), TextCutter(None)):
        parts = cutter.parts(text)
        assert "".join(parts) == text
        assert text in ("", *parts) if len(text) < 2 else all(parts)


def test_a_part_holds_at_most_one_token(tokenizer: Any) -> None:
    text = "".join(TEXTS)
    parts = TextCutter(tokenizer).parts(text)
    tokens = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)["offset_mapping"]
    assert len(parts) == len({end for _, end in tokens})


def test_words_and_markers_are_parts_where_tokens_are_not_known() -> None:
    parts = TextCutter(SlowTokenizer()).parts('call[ARGS]{"a b": <|marker|>3}</tool>')
    assert parts == ["call", "[ARGS]", "{", '"', "a", " b", '"', ":", " ", "<|marker|>", "3", "}", "</tool>"]


def _bench(python: str, folder: Path, *arguments: str) -> list[dict[str, Any]]:
    found = folder / "rows.json"
    output_of(python, "-P", "-m", "agentspec", "bench", "tool-calls", "--json", found, *arguments, timeout=600)
    rows: list[dict[str, Any]] = json.loads(found.read_text())["rows"]
    return rows


@pytest.mark.sglang
def test_streams_of_every_parser_are_those_of_single_tokens(tmp_path: Path) -> None:
    rows = _bench(sys.executable, tmp_path, "--answers", "6")
    assert all(row["differ"] == 0 for row in rows)
    damaged = {row["parser"] for row in rows if row["damaged"]}
    assert {"qwen25", "hermes", "glm45", "llama3"} <= damaged, "this bench would not notice a missing hook"


@pytest.mark.sglang
@pytest.mark.other_release
def test_streams_of_the_older_release_too(tmp_path: Path) -> None:
    rows = _bench(str(OLD_SGLANG), tmp_path, "--answers", "6")
    assert all(row["differ"] == 0 for row in rows)
    assert {"qwen25", "hermes"} <= {row["parser"] for row in rows if row["damaged"]}


CALLS = [
    ("get_weather", {"city": "Paris", "days": 3}),
    ("write_file", {"path": "a.py", "content": "x = [1]\nprint(x)\n"}),
]
ANSWER = "I look that up." + "".join(
    f"\n<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>" for name, arguments in CALLS
)
MESSAGES = [{"role": "user", "content": "What is the weather, and write the file."}]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("tool-calls")
    record = {"messages": MESSAGES, "response": {"choices": [{"message": {"role": "assistant", "content": ANSWER}}]}}
    (folder / "llm_completions").mkdir()
    (folder / "llm_completions" / "one.json").write_text(json.dumps({**record, "args": [], "timestamp": 1.0}))
    template = folder / "template.jinja"
    template.write_text(
        "<|begin|>{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}<|end|>{% endfor %}<|assistant|>"
    )
    arguments = ["--context-length", "1024", "--max-total-tokens", "4096", "--skip-server-warmup"]
    arguments += ["--chat-template", str(template), "--tool-call-parser", "qwen25", "--agentspec-baseline", "fixed"]
    variables = {"AGENTSPEC_REPLAY": str(folder / "llm_completions")}
    with Server(MODEL, "AGENTSPEC", log=folder / "server.log", arguments=arguments, environment=variables) as started:
        yield started


@pytest.mark.sglang
@pytest.mark.server
def test_a_client_of_a_server_gets_all_calls(server: Server) -> None:
    body = {
        "model": "m",
        "messages": MESSAGES,
        "tools": list(TOOLS),
        "temperature": 0,
        "max_tokens": 300,
        "stream": True,
    }
    for _ in range(3):
        calls: dict[int, list[str]] = {}
        text, most = "", 0
        for event in server.stream("/v1/chat/completions", body):
            delta = event["choices"][0]["delta"] if event["choices"] else {}
            text += delta.get("content") or ""
            for call in delta.get("tool_calls") or []:
                known = calls.setdefault(call["index"], ["", ""])
                known[0] += call["function"].get("name") or ""
                known[1] += call["function"].get("arguments") or ""
                most = max(most, len(call["function"].get("arguments") or ""))
        assert [(name, json.loads(arguments)) for name, arguments in calls.values()] == CALLS
        assert text.strip() == "I look that up."
    # The last answer was drafted as a whole, and its steps became few events.
    assert counters_of(server)["accepted_tokens"] > 100
    assert most > 20
