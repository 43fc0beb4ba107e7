from __future__ import annotations

import sys
import types
from typing import Any

import pytest
from made_up_time import MadeUpTime

pytest.importorskip("torch")

from agentspec.integrations.emulated_device import spans
from agentspec.integrations.emulated_device.spans import Steps, wrap_spans


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
