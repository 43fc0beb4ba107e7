"""The acceptance head: its results, and the refusal of heads that do not fit."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="the head needs torch; `make setup` installs it")

from agentspec import ConfigError
from agentspec.integrations.sglang.drafting.acceptance_head import (
    CONFIG_FILE,
    WEIGHTS_FILE,
    AcceptanceConfig,
    AcceptanceHead,
)


def made(depth: int = 2, size: int = 8) -> AcceptanceHead:
    torch.manual_seed(0)
    head = AcceptanceHead(AcceptanceConfig(size, depth, rejection_weight=3, threshold=0.6, scale=2, shift=0.5))
    for tensor in head.state_dict().values():
        tensor.copy_(torch.rand(tensor.shape) + 0.1)
    return head.requires_grad_(False)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made().save(tmp_path, {"seed": 0})
    return tmp_path


def test_layers_add_to_what_they_get() -> None:
    head = made(depth=1, size=2)
    x = (torch.tensor([1.0, -0.5]) - head.mean) / head.spread
    y = head.layers[0].weight @ x + head.layers[0].bias
    logit = float(head.out.weight[0] @ (x + y / (1 + (-y).exp())) + head.out.bias)
    hidden = torch.tensor([[1.0, -0.5]])
    assert head(hidden).tolist() == pytest.approx([1 / (1 + math.exp(-logit))])
    assert head.calibrated(hidden).tolist() == pytest.approx([1 / (1 + math.exp(-2 * logit - 0.5))])
    # What a server tells of its drafts is calibrated, and a search of thresholds needs what the rule compares.
    assert head.trained(head.calibrated(hidden).numpy()).tolist() == pytest.approx(head(hidden).tolist(), abs=1e-6)


@pytest.mark.parametrize("depth", [0, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_float32_probability_for_each_state(depth: int, dtype: torch.dtype) -> None:
    probabilities = made(depth)(torch.randn(5, 8).to(dtype))
    assert probabilities.shape == (5,) and probabilities.dtype == torch.float32
    assert ((probabilities >= 0) & (probabilities <= 1)).all()
    assert made(depth)(torch.zeros(0, 8)).shape == (0,)


def test_a_saved_head_is_read_back(folder: Path) -> None:
    head, states = AcceptanceHead.load(folder, 8), torch.randn(4, 8)
    assert head.config == made().config and not any(p.requires_grad for p in head.parameters())
    torch.testing.assert_close(head(states), made()(states), atol=5e-3, rtol=0)


def test_a_head_for_another_drafter_is_refused(folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"size 8, the drafter's have 16: take one"):
        AcceptanceHead.load(folder, 16)


@pytest.mark.parametrize("missing", [CONFIG_FILE, WEIGHTS_FILE])
def test_a_missing_file_is_named(folder: Path, missing: str) -> None:
    (folder / missing).unlink()
    with pytest.raises(ConfigError, match=f"needs .*{missing}"):
        AcceptanceHead.load(folder, 8)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"depth": 3}, "missing .*layers.2.bias.*copy both files"),
        ({"depth": 1}, "unknown .*layers.1.bias"),
        ({"depth": 2.5}, "depth must be an integer, got 2.5"),
        ({"depth": -1}, "depth from 0"),
        ({"hidden_size": None}, "hidden_size must be an integer, got None"),
        ({"threshold": 3}, "stopping threshold"),
        ({"threshold": "high"}, "threshold must be a number"),
        ({"scale": 0}, "above 0"),
        ({"format": 2}, "format 1, got 2"),
    ],
)
def test_a_config_that_the_tensors_contradict_is_refused(folder: Path, change: dict[str, object], message: str) -> None:
    config = json.loads((folder / CONFIG_FILE).read_text())
    (folder / CONFIG_FILE).write_text(json.dumps({**config, **change}))
    with pytest.raises(ConfigError, match=message):
        AcceptanceHead.load(folder, 8)


def test_tensors_of_another_size_are_refused(folder: Path) -> None:
    config = json.loads((folder / CONFIG_FILE).read_text())
    (folder / CONFIG_FILE).write_text(json.dumps({**config, "hidden_size": 16}))
    with pytest.raises(ConfigError, match=r"must be \[16\].*got \[8\]"):
        AcceptanceHead.load(folder, 16)


def test_files_that_are_something_else_are_refused(folder: Path) -> None:
    (folder / WEIGHTS_FILE).write_bytes(b"no tensors")
    with pytest.raises(ConfigError, match=WEIGHTS_FILE):
        AcceptanceHead.load(folder, 8)
    (folder / CONFIG_FILE).write_text("[1]")
    with pytest.raises(ConfigError, match="object of format 1, got 'list'"):
        AcceptanceHead.load(folder, 8)
