"""How the time of a step is divided, and which settings a server with an emulated device gets."""

from __future__ import annotations

import sys
import types
from typing import Any

import pytest
from made_up_time import MadeUpTime

pytest.importorskip("torch")

import os
from dataclasses import replace
from pathlib import Path

from agentspec.errors import ConfigError
from agentspec.integrations.emulated_device import setting, spans
from agentspec.integrations.emulated_device.models.step_times import StepTimes
from agentspec.integrations.emulated_device.spans import Steps, wrap_spans
from agentspec.integrations.servers.launch import launch_command


class _Batch:
    def __init__(self, rows: int, decodes: bool = True) -> None:
        self.reqs = [None] * rows
        self.forward_mode = types.SimpleNamespace(is_decode=lambda: decodes)


class _Worker:
    """Reads for 0.2 s, drafts in native code for 0.5 and launches for 0.002."""

    def __init__(self, work: Any, time: MadeUpTime, module: Any) -> None:
        self.work, self.time, self.module = work, time, module

    def forward_batch_generation(self, batch: Any) -> None:
        self.module.read(self.time)
        self.module.native(self.time)
        self.work.graph("verify", 1.0)
        self.work.device.synchronize()


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    def read(time: MadeUpTime) -> None:
        time.seconds += 0.2

    def native(time: MadeUpTime) -> None:
        time.seconds += 0.5

    made = types.ModuleType("made_up_drafter")
    made.read, made.native = read, native  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "made_up_drafter", made)
    monkeypatch.setattr(spans, "SPANS", {"made_up_drafter.read": "reading", "made_up_drafter.gone": "drafting"})
    monkeypatch.setattr(spans, "NATIVE", ("made_up_drafter.native", "made_up_drafter.Gone.draft"))
    monkeypatch.setattr(spans, "_wrap_native_module", lambda steps: None)
    return made


def test_a_step_is_divided_and_missing_names_are_told(
    work: Any, made_up_time: MadeUpTime, module: types.ModuleType
) -> None:
    steps, worker = Steps(work), _Worker(work, made_up_time, module)
    assert wrap_spans(work, steps, worker) == ["made_up_drafter.gone", "made_up_drafter.Gone.draft"]
    for _ in range(3):
        worker.forward_batch_generation(_Batch(4))
    worker.forward_batch_generation(_Batch(4, decodes=False))
    worker.forward_batch_generation(_Batch(4))
    totals = steps.totals()
    assert totals["step_python_seconds"] == pytest.approx(0.2)
    assert totals["step_native_seconds"] == pytest.approx(0.5)
    assert totals["step_launch_seconds"] == pytest.approx(0.002)
    assert totals["step_wait_seconds"] == pytest.approx(1.0)
    assert work.counts.steps == 4
    assert work.timeline.idle_of["reading"] == pytest.approx(3 * 0.2 + 0.0, abs=0.21)


def test_only_steps_that_follow_one_of_the_same_rows_are_summed_up(
    work: Any, made_up_time: MadeUpTime, module: types.ModuleType
) -> None:
    steps, worker = Steps(work), _Worker(work, made_up_time, module)
    wrap_spans(work, steps, worker)
    for rows, decodes in ((4, True), (4, True), (4, False), (4, True), (4, True), (3, True), (4, True)):
        worker.forward_batch_generation(_Batch(rows, decodes))
    assert set(steps.by_rows) == {4}
    sums = steps.by_rows[4]
    assert sums["steps"] == 2
    assert sums["python_seconds"] == pytest.approx(0.4)
    assert sums["busy_seconds"] == pytest.approx(2.0)
    assert sums["idle_seconds"] == pytest.approx(2 * 0.702)
    assert sums["seconds"] == pytest.approx(2 * 1.702)


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
