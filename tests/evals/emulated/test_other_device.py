"""Step times of another GPU: the file that is written, and what `--emulate` makes of it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from agentspec.errors import ConfigError
from agentspec.evals.emulated import other_device
from agentspec.evals.emulated import servers as emulation
from agentspec.evals.emulated.servers import Emulation
from agentspec.evals.systems import EAGLE3_FOLDER
from agentspec.evals.text_to_sql import MODEL_FOLDER
from agentspec.integrations.emulated_device.models.step_times import DEVICES, StepTimes


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the hollow models that were asked for; the small model stands in for them."""
    names: list[str] = []
    monkeypatch.setattr(
        emulation, "hollow_model", lambda name, tokenizer: (names.append(name), MODEL_FOLDER, EAGLE3_FOLDER)[1:]
    )
    return names


def test_a_scaled_file_is_emulated_with_the_model_that_it_names(tmp_path: Path, asked: list[str]) -> None:
    path = tmp_path / "h100-32b.json"
    words = ["h200-32b", "--scale", "memory=1.43", "--scale", "small=2", "--name", "h100-32b", "--out", str(path)]
    assert other_device.main(words) == 0
    times, base = StepTimes.load(path), DEVICES["h200-32b"]
    assert times.target_pass.weights == pytest.approx(1.43 * base.target_pass.weights)
    assert times.draft.per_context == pytest.approx(1.43 * base.draft.per_context)
    assert times.kernel() == 2 * base.kernel() and times.target_pass.fixed == base.target_pass.fixed
    found = Emulation.of(str(path), tokenizer=None, head="2.8")
    assert asked == ["h200-32b"]
    assert (found.name, found.step_times, found.kv_tokens) == ("h100-32b", str(path), 220_000)


@pytest.mark.parametrize("scale", ["memory", "memory=fast", "speed=2", "memory=-1"])
def test_wrong_factors_are_refused(scale: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["h200-8b", "--scale", scale, "--name", "x", "--out", str(tmp_path / "x.json")]
    assert other_device.main(words) == 2
    assert "memory" in capsys.readouterr().err and not (tmp_path / "x.json").exists()


def test_step_times_without_a_model_that_can_be_served_are_refused(tmp_path: Path, asked: list[str]) -> None:
    path = tmp_path / "cpu.json"
    path.write_text(json.dumps(replace(DEVICES["h200-8b"], model="").to_json()), encoding="utf-8")
    with pytest.raises(ConfigError, match="must name their model, h200-8b or h200-32b"):
        Emulation.of(str(path), tokenizer=None, head="2.8")
    assert not asked
