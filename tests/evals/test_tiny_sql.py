"""The shipped model: its limits, and that it loads and answers."""

from __future__ import annotations

import json

import pytest

torch = pytest.importorskip("torch", reason="the model needs torch; `make setup` installs it")
pytest.importorskip("transformers", reason="the model needs transformers; `make setup` installs it")

from pathlib import Path

from agentspec.evals import text_to_sql
from agentspec.evals.sql_databases import render
from agentspec.workflows.text_to_sql import Message

FOLDER = text_to_sql.MODEL_FOLDER


def test_size_limits() -> None:
    from safetensors import safe_open

    assert sum(file.stat().st_size for file in FOLDER.iterdir()) <= 12_000_000
    with safe_open(FOLDER / "model.safetensors", "pt") as weights:
        assert sum(weights.get_tensor(name).numel() for name in set(weights.keys())) <= 6_000_000
    config = json.loads((FOLDER / "config.json").read_text())
    assert config["num_hidden_layers"] >= 6 and config["max_position_embeddings"] >= 4096


def test_prompts_are_rendered_as_its_template_says() -> None:
    from transformers import PreTrainedTokenizerFast

    tokenizer = PreTrainedTokenizerFast.from_pretrained(FOLDER)
    messages: list[Message] = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "naïve \u2192"}]
    assert tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True) == render(messages)


def test_unreachable_server_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "report.json"
    # Port 9 (discard) has no listener.
    assert text_to_sql.main(["--base-url", "http://127.0.0.1:9/v1", "--questions", "2", "--json", str(out)]) == 1
    report = json.loads(out.read_text())
    assert report["outcomes"]["error"] == 2 and report["seed"] == 0
    assert "APIConnectionError" in report["answers"][0]["detail"]
    assert "all" in capsys.readouterr().out
