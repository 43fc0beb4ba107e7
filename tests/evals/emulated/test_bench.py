"""The emulation bench without servers: fits of timed forwards, and hollow models."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from agentspec.errors import ConfigError
from agentspec.evals.emulated.forward_timer import TimedForward
from agentspec.evals.emulated.hollow_models import write_hollow_model
from agentspec.evals.emulated.step_time_fit import fitted
from agentspec.integrations.sglang.draft_model_checkpoint import inspect_drafter


def forwards(kind: str, number: int = 400, noise: float = 0.02) -> list[TimedForward]:
    """Forwards of 2 ms, plus 0.2 a row, 0.1 a token and 0.001 a token of context; 1 in 200 is 100 times as slow."""
    rng = np.random.default_rng(len(kind))
    found = []
    for i in range(number):
        rows = int(rng.integers(1, 17))
        tokens, context = rows * int(rng.integers(1, 17)), rows * int(rng.integers(100, 600))
        if kind == "draft":
            tokens = rows
        read = context - tokens / 2 if kind in ("prefill", "extend") else context
        seconds = 2e-3 + 2e-4 * rows + 1e-4 * tokens + 1e-6 * read
        slow = 100 if i % 200 == 199 else 1
        found.append(TimedForward(kind, rows, tokens, context, seconds * slow * float(rng.normal(1, noise))))
    return found


def test_fits_find_the_coefficients_and_the_sum_of_all_seconds() -> None:
    some = [*forwards("target", noise=0.0)[:199], *forwards("prefill", noise=0.0)[:199]]
    times, fits = fitted("here", some)
    assert times.blocking and set(fits) == {"target", "prefill"}
    time = times.target_pass
    assert (time.fixed, time.per_row, time.per_token, time.per_context) == pytest.approx(
        (2e-3, 2e-4, 1e-4, 1e-6), rel=0.02
    )
    # Kinds that never ran take the target's time.
    assert times.draft == times.target_pass


def test_too_few_forwards_are_refused() -> None:
    with pytest.raises(ConfigError, match="--requests"):
        fitted("here", forwards("target", 10))


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
