"""Hollow models: what SGLang and agentspec read from them, and where tokenizers come from."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from agentspec.evals.emulated.hollow_models import write_hollow_model
from agentspec.integrations.sglang.draft_model_checkpoint import drafter_base

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
    assert drafter_base(str(head), str(model)) == "EAGLE3"
    # 800,000 tokens of its KV cache take less than 1 GiB.
    values = 2 * config["num_hidden_layers"] * config["num_key_value_heads"] * config["head_dim"]
    assert values * 4 * 800_000 < 1 << 30
