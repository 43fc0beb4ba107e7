"""The clock of an emulated device, its queue, and the time that its host takes."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
import types

import pytest
from made_up_time import MadeUpTime

from agentspec.integrations.emulated_device.device.clock import undisturbed, use_emulated_time
from agentspec.integrations.emulated_device.device.device import Device

BUSY = "import os, sys\nos.sched_setaffinity(0, {int(sys.argv[1])})\nwhile True: pass"


def test_time_passes_but_for_what_is_left_out_and_with_what_is_charged(made_up_time: MadeUpTime) -> None:
    clock = made_up_time.clock()
    start = clock.now()
    made_up_time.seconds += 2.0
    clock.exclude(0.5)
    clock.charge(0.25)
    assert clock.now() - start == pytest.approx(1.75)
    assert (clock.excluded, clock.charged, clock.launching) == (0.5, 0.25, 0.25)


def test_the_clock_stands_between_stop_and_start_however_often_they_are_nested(made_up_time: MadeUpTime) -> None:
    clock = made_up_time.clock()
    start = clock.now()
    clock.stop()
    made_up_time.seconds += 1.0
    clock.stop()
    made_up_time.seconds += 1.0
    clock.exclude(0.5)
    clock.start()
    made_up_time.seconds += 1.0
    assert clock.stands
    assert clock.now() == start
    clock.start()
    assert not clock.stands
    assert clock.now() == pytest.approx(start)
    made_up_time.seconds += 1.0
    assert clock.now() == pytest.approx(start + 1.0)


def test_who_wakes_up_too_late_has_not_waited_longer(made_up_time: MadeUpTime) -> None:
    clock = made_up_time.clock()
    made_up_time.late = 0.3
    start = clock.now()
    assert clock.sleep_until(start + 1.0) == pytest.approx(1.0)
    assert clock.now() == pytest.approx(start + 1.0)


def test_time_in_which_another_thread_has_the_core_does_not_pass() -> None:
    core = {min(os.sched_getaffinity(0))}
    # Several processes that keep the core busy.
    others = [subprocess.Popen([sys.executable, "-c", BUSY, str(*core)]) for _ in range(2)]
    kept = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, core)
        seconds = undisturbed()
        time.sleep(0.3)
        began, began_wall, began_cpu = seconds(), time.perf_counter(), time.thread_time()
        while time.perf_counter() < began_wall + 0.5:
            pass
        passed, cpu = seconds() - began, time.thread_time() - began_cpu
        assert passed == pytest.approx(cpu, rel=0.2)
        assert passed < 0.45
        before = seconds()
        time.sleep(0.1)
        assert seconds() - before >= 0.09
    finally:
        os.sched_setaffinity(0, kept)
        for other in others:
            other.kill()
            other.wait()


def test_waiting_lets_time_pass_also_where_it_is_left_out(made_up_time: MadeUpTime) -> None:
    clock = made_up_time.clock()
    start = clock.now()
    clock.stop()
    made_up_time.seconds += 5.0
    assert clock.sleep_until(start + 1.0) == pytest.approx(1.0)
    assert clock.now() == pytest.approx(start + 1.0)
    clock.start()
    assert clock.now() == pytest.approx(start + 1.0)
    assert clock.launching == 0.0


def _device(time: MadeUpTime, blocking: bool = False) -> Device:
    return Device(time.clock(), blocking)


def test_work_queues_up_and_the_host_goes_on(made_up_time: MadeUpTime) -> None:
    device = _device(made_up_time)
    start = device.clock.now()
    assert device.launch("verify", 1.0, 0.1) == pytest.approx(start + 1.1)
    assert device.launch("verify", 1.0, 0.1) == pytest.approx(start + 2.1)
    assert device.clock.now() == pytest.approx(start + 0.2)
    device.synchronize()
    assert device.clock.now() == pytest.approx(start + 2.1)
    assert device.waited == pytest.approx(1.9)


def test_events_tell_when_the_work_before_them_is_done(made_up_time: MadeUpTime) -> None:
    device = _device(made_up_time)
    first, second = device.event_type(enable_timing=True), device.event_type(enable_timing=True)
    start = device.clock.now()
    first.record()
    device.launch("verify", 1.0, 0.0)
    second.record()
    device.launch("draft", 1.0, 0.0)
    assert first.query()
    assert not second.query()
    second.synchronize()
    assert device.clock.now() == pytest.approx(start + 1.0)
    assert second.query()
    assert first.elapsed_time(second) == pytest.approx(1000.0)


def test_streams_run_beside_each_other_and_wait_where_they_are_told_to(made_up_time: MadeUpTime) -> None:
    device = _device(made_up_time)
    start = device.clock.now()
    device.launch("verify", 1.0, 0.0)
    copies, others = device.stream_type(), device.stream_type()
    with device.context_type(others):
        assert device.launch("copy", 0.1, 0.0) == pytest.approx(start + 0.1)
    copies.wait_stream(device.default_stream)
    with device.context_type(copies):
        assert device.current_stream is copies
        assert device.launch("copy", 0.1, 0.0) == pytest.approx(start + 1.1)
    event = copies.record_event()
    others.wait_event(event)
    with device.context_type(others):
        assert device.launch("kernel", 0.1, 0.0) == pytest.approx(start + 1.2)
    assert device.current_stream is device.default_stream


def test_where_the_host_is_the_device_it_waits_for_each_launch(made_up_time: MadeUpTime) -> None:
    device = _device(made_up_time, blocking=True)
    start = device.clock.now()
    device.launch("verify", 1.0, 0.5)
    assert device.clock.now() == pytest.approx(start + 1.5)


def test_streams_and_events_take_the_place_of_torchs(made_up_time: MadeUpTime) -> None:
    device = _device(made_up_time)
    module = types.SimpleNamespace()
    device.replace_torch(module)
    stream = module.Stream(priority=0)
    with module.stream(stream):
        assert module.current_stream() is stream
        end = device.launch("verify", 1.0, 0.0)
        module.synchronize()
    assert device.clock.now() == pytest.approx(end)
    assert module.current_stream() is module.default_stream()


def test_code_that_measures_itself_sees_emulated_seconds_on_the_schedulers_thread(
    made_up_time: MadeUpTime, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = types.ModuleType("agentspec.made_up")
    module.time = time  # type: ignore[attr-defined]
    # The clock may change only this module, because other tests use the other modules of agentspec.
    loaded = {name: value for name, value in sys.modules.items() if not name.startswith("agentspec.")}
    monkeypatch.setattr(sys, "modules", {**loaded, "agentspec.made_up": module})
    clock = made_up_time.clock()
    assert use_emulated_time(clock) == ["agentspec.made_up"]
    assert module.time is not time
    before = module.time.perf_counter()
    made_up_time.seconds += 2.0
    clock.exclude(1.5)
    assert module.time.perf_counter() - before == pytest.approx(0.5)
    assert module.time.monotonic() == pytest.approx(time.monotonic(), abs=5)
    elsewhere: list[float] = []
    thread = threading.Thread(target=lambda: elsewhere.append(module.time.perf_counter()))
    thread.start()
    thread.join()
    assert elsewhere[0] == pytest.approx(time.perf_counter(), abs=5)
