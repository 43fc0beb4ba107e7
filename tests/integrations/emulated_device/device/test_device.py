from __future__ import annotations

import types

import pytest
from made_up_time import MadeUpTime

from agentspec.integrations.emulated_device.device.device import Device


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
