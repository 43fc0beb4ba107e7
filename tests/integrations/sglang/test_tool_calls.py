"""Streamed tool calls, reasoning and texts are the same whatever a step accepted."""

from __future__ import annotations

import asyncio
import inspect
import itertools
import json
import sys
import urllib.request
import warnings
from collections.abc import AsyncIterator, Callable
from functools import partial
from itertools import groupby
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from needs import OLD_SGLANG
from programs import output_of
from server_requests import MODEL, counters_of
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from agentspec.evals.tool_calls.calls import TOOLS
from agentspec.evals.tool_calls.streams import Detokenizer, parts_of
from agentspec.integrations import sglang_cpu
from agentspec.integrations.servers.server import Server
from agentspec.integrations.sglang import stream_parsers

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
    """A tokenizer of Python, whose methods take no options."""

    is_fast = False

    def __init__(self, tokenizer: Any) -> None:
        self.encode = tokenizer.encode
        self._tokenizer = tokenizer

    def decode(self, ids: list[int]) -> str:
        text: str = self._tokenizer.decode(ids)
        return text


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    # Packages that SGLang imports emit deprecation warnings.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        sglang_cpu.activate()
        import sglang.srt.managers.detokenizer_manager  # noqa: F401
    return PreTrainedTokenizerFast(tokenizer_file=str(MODEL / "tokenizer.json"))


@pytest.fixture(scope="module")
def spaced() -> Any:
    """A tokenizer that strips the space before the first token, and that has a token for each byte."""
    characters = {character: place for place, character in enumerate(sorted({*"".join(TEXTS), "▁"} - set("東😀")))}
    bytes_ = {f"<0x{byte:02X}>": len(characters) + byte for byte in range(256)}
    made = Tokenizer(models.BPE({**characters, **bytes_}, [], byte_fallback=True))
    made.pre_tokenizer = pre_tokenizers.Metaspace()
    made.decoder = decoders.Sequence([decoders.Metaspace(), decoders.ByteFallback(), decoders.Fuse()])
    return PreTrainedTokenizerFast(tokenizer_object=made, clean_up_tokenization_spaces=False)


@pytest.mark.sglang
@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("name", ["tokenizer", "spaced", "slow"])
def test_the_parts_of_steps_are_what_single_tokens_add(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, name: str, text: str
) -> None:
    used = request.getfixturevalue("spaced" if name == "spaced" else "tokenizer")
    used = SlowTokenizer(used) if name == "slow" else used
    _use(monkeypatch, used)
    ids = used.encode(text, add_special_tokens=False)
    single = [result["text"] for result in Detokenizer(used).results(ids, itertools.repeat(1))]
    for width in (1, 2, 5, len(ids) + 1):
        results = Detokenizer(used).results(ids, itertools.repeat(width))
        parts = itertools.chain(*parts_of(results))
        assert [part for part in parts if part] == [part for part in single if part]


@pytest.mark.sglang
def test_a_marker_has_the_parts_in_which_the_model_wrote_it(monkeypatch: pytest.MonkeyPatch, tokenizer: Any) -> None:
    """What a parser finds depends on them. The text alone does not tell whether a marker is one token."""
    marker = "<|assistant|>"
    (one,) = tokenizer.encode(marker, add_special_tokens=False)
    pieces = [tokenizer.encode(character, add_special_tokens=False)[0] for character in marker]
    _use(monkeypatch, tokenizer)
    results = Detokenizer(tokenizer).results([one, *pieces], itertools.repeat(100))
    assert parts_of(results) == [[marker, *marker, ""]]


def _use(monkeypatch: pytest.MonkeyPatch, tokenizer: Any) -> None:
    monkeypatch.setattr(stream_parsers, "_tokenizer", tokenizer)
    stream_parsers._text_of.cache_clear()


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
    ("list_users", {}),
    ("get_weather", {"city": "Paris", "days": 3}),
    ("write_file", {"path": "a.py", "content": "x = [1]\nprint(x)\n"}),
]
# A call as a client gets it, after the text before it.
SENT = [item for name, arguments in CALLS for item in (f"I call {name}.", (name, arguments))]
ANSWER = "\n".join(
    f"I call {name}.\n<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"
    for name, arguments in CALLS
)
FUNCTIONS = [tool["function"] for tool in TOOLS]
MESSAGES = [{"role": "user", "content": "What is the weather, and write the file."}]
# As the template of the server below writes it.
PROMPT = f"<|begin|><|user|>{MESSAGES[0]['content']}<|end|><|assistant|>"
STREAMED = {"model": "m", "messages": MESSAGES, "temperature": 0, "max_tokens": 300, "stream": True}


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
    arguments += ["--chat-template", str(template), "--tool-call-parser", "hermes", "--agentspec-baseline", "fixed"]
    variables = {"AGENTSPEC_REPLAY": str(folder / "llm_completions")}
    with Server(MODEL, "AGENTSPEC", log=folder / "server.log", arguments=arguments, environment=variables) as started:
        yield started


@pytest.mark.sglang
@pytest.mark.server
def test_a_client_of_a_server_gets_all_calls(server: Server) -> None:
    body = {**STREAMED, "tools": list(TOOLS)}
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
        assert [line for line in text.split("\n") if line] == [f"I call {name}." for name, _ in CALLS]
    # The last answer was drafted as a whole, and its steps became few events.
    assert counters_of(server)["accepted_tokens"] > 100
    assert most > 20


@pytest.mark.sglang
@pytest.mark.server
def test_messages_get_text_and_calls_in_the_order_of_the_answer(server: Server) -> None:
    """Otherwise they lack arguments of a call that ends in the same step as the text after it begins."""
    body = {**STREAMED, "tools": [{"name": f["name"], "input_schema": f["parameters"]} for f in FUNCTIONS]}
    for _ in range(3):
        blocks: list[list[str]] = []
        for event in server.stream("/v1/messages", body):
            if event["type"] == "content_block_start":
                blocks.append([event["content_block"].get("name", ""), ""])
            elif event["type"] == "content_block_delta":
                blocks[event["index"]][1] += event["delta"].get("text") or event["delta"].get("partial_json") or ""
        sent = [(name, json.loads(content)) if name else content.strip() for name, content in blocks]
        assert [item for item in sent if item] == SENT


@pytest.mark.sglang
def test_required_calls_and_whitespace_between_them_come_in_the_order_of_the_answer(
    tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a call after which a text comes, /v1/messages drops the arguments that come later."""
    from sglang.srt.entrypoints.openai.protocol import ChatCompletionRequest
    from sglang.srt.entrypoints.openai.serving_chat import OpenAIServingChat

    _use(monkeypatch, tokenizer)
    endpoint: Any = object.__new__(OpenAIServingChat)
    endpoint.tool_call_parser = None
    endpoint.tokenizer_manager = SimpleNamespace(server_args=SimpleNamespace(incremental_streaming_output=True))
    request = ChatCompletionRequest(model="m", messages=MESSAGES, tools=list(TOOLS), tool_choice="required")
    calls = [json.dumps({"name": name, "parameters": arguments}) for name, arguments in CALLS]
    ids = tokenizer.encode("[" + " \n,".join(calls) + " \n]", add_special_tokens=False)
    plain = inspect.unwrap(OpenAIServingChat._process_tool_call_stream)

    async def sent(width: int, send: Callable[..., AsyncIterator[str]]) -> list[tuple[str, str]]:
        """Names, arguments and texts of an answer in steps of this many tokens, joined where the same kind goes on."""
        found: list[tuple[str, str]] = []
        parsers: dict[int, Any] = {}
        for result in Detokenizer(tokenizer).results(ids, itertools.repeat(width)):
            is_last = result["meta_info"]["finish_reason"] is not None
            async for event in send(
                endpoint, 0, result["text"], parsers, result, request, {}, created=0, flush=is_last
            ):
                delta = json.loads(event.removeprefix("data: "))["choices"][0]["delta"]
                for call in delta.get("tool_calls") or []:
                    found.append(("name", call["function"]["name"]))
                    found.append(("arguments", call["function"]["arguments"]))
                found.append(("text", delta.get("content")))
        found = [(kind, piece) for kind, piece in found if piece]
        return [(kind, "".join(piece for _, piece in run)) for kind, run in groupby(found, lambda item: item[0])]

    expected = asyncio.run(sent(1, plain))
    assert [kind for kind, _ in expected] == ["name", "arguments", "text"] * len(CALLS)
    for width in (1, 2, 16, len(ids)):
        assert asyncio.run(sent(width, partial(stream_parsers._send_calls, plain))) == expected


@pytest.mark.sglang
@pytest.mark.parametrize("is_incremental", [False, True])
def test_responses_have_text_and_calls_in_the_order_of_the_answer(
    tokenizer: Any, monkeypatch: pytest.MonkeyPatch, is_incremental: bool
) -> None:
    from sglang.srt.entrypoints.openai import serving_responses
    from sglang.srt.entrypoints.openai.protocol import ResponsesRequest

    settings = SimpleNamespace(incremental_streaming_output=is_incremental)
    monkeypatch.setattr(serving_responses, "get_serving", lambda: settings)
    _use(monkeypatch, tokenizer)
    endpoint: Any = object.__new__(serving_responses.OpenAIServingResponses)
    vars(endpoint).update(
        tokenizer_manager=SimpleNamespace(tokenizer=tokenizer, server_args=settings),
        template_manager=SimpleNamespace(force_reasoning=False),
        chat_encoding_adapter=None,
        reasoning_parser=None,
        tool_call_parser="hermes",
        enable_prompt_tokens_details=False,
        enable_response_store=False,
    )
    monkeypatch.setattr(endpoint, "_encoding_output", lambda: None)
    request = ResponsesRequest(model="m", input="x", tools=[{"type": "function", **f} for f in FUNCTIONS])
    ids = tokenizer.encode(ANSWER, add_special_tokens=False)

    async def results(width: int) -> AsyncIterator[dict[str, Any]]:
        """What the request writes in steps of this many tokens."""
        text = ""
        for result in Detokenizer(tokenizer).results(ids, itertools.repeat(width)):
            text += result["text"]
            # Where results have all so far, they share the list of ids, which may have later ones too.
            yield result if is_incremental else {**result, "text": text, "output_ids": [*ids, 0]}

    async def response(width: int) -> dict[str, Any]:
        events = stream_parsers._send_response(
            serving_responses.OpenAIServingResponses.responses_stream_generator_non_harmony,
            *(endpoint, request, {}, results(width), "m", tokenizer, SimpleNamespace()),
            require_reasoning=False,
        )
        *_, last = [json.loads(event.split("data: ")[1]) async for event in events]
        found: dict[str, Any] = last["response"]
        return found

    for width in (1, 16, 64):
        sent = [
            (item["name"], json.loads(item["arguments"])) if "name" in item else item["content"][0]["text"].strip()
            for item in asyncio.run(response(width))["output"]
        ]
        assert sent == SENT


@pytest.mark.sglang
@pytest.mark.server
@pytest.mark.parametrize(
    ("path", "body"),
    [("/api/chat", {"messages": MESSAGES}), ("/api/generate", {"prompt": PROMPT})],
    ids=["chat", "generate"],
)
def test_streams_of_ollama_have_the_text_of_the_last_step(server: Server, path: str, body: dict[str, Any]) -> None:
    """SGLang leaves out the text that comes with the end of an answer: here a whole draft."""
    options = {"temperature": 0, "num_predict": 300}
    data = json.dumps({"model": "m", "options": options, "stream": True, **body}).encode()
    for _ in range(3):
        request = urllib.request.Request(server.url + path, data, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=60) as response:
            lines = [json.loads(line) for line in response]
        assert [line["done"] for line in lines] == [False] * (len(lines) - 1) + [True]
        assert "".join(line.get("response") or line.get("message", {}).get("content", "") for line in lines) == ANSWER
