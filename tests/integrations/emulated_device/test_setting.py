from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from agentspec.errors import ConfigError
from agentspec.integrations.emulated_device import setting
from agentspec.integrations.emulated_device.models.step_times import StepTimes
from agentspec.integrations.servers.launch import launch_command


def _model(folder: Path, *files: str) -> str:
    for name in ("config.json", *files):
        (folder / name).write_text("{}")
    return str(folder)


def test_a_model_without_weights_loads_none_and_what_is_given_wins(tmp_path: Path) -> None:
    words = setting.arguments(_model(tmp_path), ["--max-running-requests", "8", "--chunked-prefill-size=512"])
    assert words[words.index("--load-format") + 1] == "dummy"
    assert "--max-running-requests" not in words
    assert "--chunked-prefill-size" not in words


def test_a_model_with_weights_loads_them(tmp_path: Path) -> None:
    assert "--load-format" not in setting.arguments(_model(tmp_path, "model.safetensors"), [])


def test_processes_find_the_plugin_and_the_step_times(tmp_path: Path) -> None:
    path = tmp_path / "times.json"
    replace(StepTimes.load("h200-8b"), name="mine").save(path)
    found = setting.environment(str(path), {"PYTHONPATH": f"a{os.pathsep}b"})
    site, *rest = found["PYTHONPATH"].split(os.pathsep)
    assert rest == ["a", "b"]
    [entry_points] = Path(site).glob("*.egg-info/entry_points.txt")
    assert "emulated_device.plugin:register" in entry_points.read_text()
    assert found[setting.VARIABLE] == str(path)
    assert StepTimes.load(found[setting.VARIABLE]).name == "mine"
    with pytest.raises(ConfigError, match="h200-8b"):
        setting.environment("h100-1b", {})


def test_serve_emulates_only_where_it_is_told_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agentspec.integrations.servers.launch.activate", lambda: True)
    for name in (setting.VARIABLE, "AGENTSPEC_REPLAY"):
        monkeypatch.delenv(name, raising=False)
    model = _model(tmp_path)
    command, variables = launch_command(model, "NGRAM", [], emulate="h200-8b")
    assert variables[setting.VARIABLE] == "h200-8b"
    assert variables["SGLANG_CPU_OVERLAP"] == "on"
    assert variables["AGENTSPEC_REPLAY"] == "requests"
    assert command.count("--max-total-tokens") == 1
    command, variables = launch_command(model, "NGRAM", [])
    assert setting.VARIABLE not in variables
    assert "AGENTSPEC_REPLAY" not in variables
    monkeypatch.setattr("agentspec.integrations.servers.launch.activate", lambda: False)
    with pytest.raises(ConfigError, match="without a GPU"):
        launch_command(model, "NGRAM", [], emulate="h200-8b")


def test_the_clock_and_the_trace_are_those_that_are_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(setting.CLOCK_VARIABLE, "thread")
    clock = setting.made_clock()
    before = clock.now()
    assert clock.sleep_until(before + 0.01) == pytest.approx(0.01, abs=0.002)
    assert clock.now() >= before + 0.01
    monkeypatch.setenv(setting.CLOCK_VARIABLE, "sun")
    with pytest.raises(ConfigError, match="wall or thread"):
        setting.made_clock()
    assert setting.trace_path() is None
    monkeypatch.setenv(setting.TRACE_VARIABLE, str(tmp_path / "trace.json"))
    assert setting.trace_path() == tmp_path / "trace.json"
    monkeypatch.setenv(setting.TRACE_VARIABLE, str(tmp_path / "missing" / "trace.json"))
    with pytest.raises(ConfigError, match="folder that is there"):
        setting.trace_path()
