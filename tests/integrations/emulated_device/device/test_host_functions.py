"""Functions of the host in the order of a stream: when they run, and whose time they take.

A launch takes the host 0.001 s, a copy the device 0.02, and a stream 0.005 until the host runs its function.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from dataclasses import replace

import pytest
from made_up_time import MadeUpTime

torch = pytest.importorskip("torch")

from agentspec.integrations.emulated_device.device.tensors import DeviceName, EmulationError, PendingTensor
from agentspec.integrations.emulated_device.device.work import Work
from agentspec.integrations.emulated_device.models.step_times import StepTimes

HERE = DeviceName("cpu")


def _computing(time: MadeUpTime, seconds: float, blocked: float = 0.0) -> Callable[[], None]:
    """A function that takes `seconds`, of which its thread waits `blocked`."""

    def function() -> None:
        time.seconds += seconds
        time.blocked += blocked

    return function


def test_the_streams_time_passes_and_the_schedulers_does_not(work: Work, made_up_time: MadeUpTime) -> None:
    device, start = work.device, work.clock.now()
    verified = device.launch("verify", 1.0, 0.0)
    work.host_function(_computing(made_up_time, 0.5))
    behind = device.event_type()
    behind.record()
    assert work.clock.now() == pytest.approx(start + 0.001)
    assert device.current_stream.free_at == pytest.approx(verified + 0.505)
    made_up_time.seconds += 1.5
    assert not behind.query(), "the function ends 4 ms later"
    behind.synchronize()
    assert work.clock.now() == pytest.approx(verified + 0.505)
    assert device.launch("verify", 1.0, 0.0) == pytest.approx(verified + 1.505)


def test_other_streams_go_on_and_wait_for_a_function_at_its_event(work: Work, made_up_time: MadeUpTime) -> None:
    """
    main   verify ────┬── passes ──────────┬─ verify
    side              └─ host function ────┘
    """
    device, side = work.device, work.device.stream_type()
    verified = device.launch("verify", 1.0, 0.0)
    side.wait_stream(device.default_stream)
    with device.context_type(side):
        work.host_function(_computing(made_up_time, 0.5))
    assert device.launch("passes", 0.2, 0.0) == pytest.approx(verified + 0.2)
    device.default_stream.wait_event(side.record_event())
    assert device.launch("verify", 1.0, 0.0) == pytest.approx(verified + 1.505)
    assert work.timeline.idle_of["host_function"] == pytest.approx(0.305)


@pytest.mark.parametrize(
    ("seconds", "blocked", "charged"),
    [
        (0.3, 0.0, 0.3),
        (0.3, 0.15, 0.3),  # Half of the time, other threads work for the function.
        (0.3, 0.29, 0.01),  # It waited for something that it would not need on the driver's thread.
    ],
)
def test_waiting_counts_unless_it_is_most_of_the_time(
    work: Work, made_up_time: MadeUpTime, seconds: float, blocked: float, charged: float
) -> None:
    work.host_function(_computing(made_up_time, seconds, blocked))
    assert work.timeline.host_functions == pytest.approx(0.005 + charged)


def test_a_function_reads_a_copy_that_is_done_when_its_stream_has_come_so_far(work: Work) -> None:
    copied = torch.arange(3, device=HERE).to("cpu", non_blocking=True)
    seen: list[int] = []
    work.host_function(lambda: seen.extend(copied.tolist()))
    assert seen == [0, 1, 2]
    assert isinstance(copied, PendingTensor), "the scheduler's thread has not waited for it"
    with pytest.raises(EmulationError, match="has not written yet"):
        copied.tolist()


def test_a_function_on_a_stream_that_does_not_wait_for_the_copy_reads_too_early(work: Work) -> None:
    copied = torch.arange(3, device=HERE).to("cpu", non_blocking=True)
    other = work.device.stream_type()
    with work.device.context_type(other), pytest.raises(EmulationError, match="has not written yet"):
        work.host_function(copied.tolist)
    assert not work.clock.stands, "a function that fails leaves the clock as it was"
    assert not work.runs_host_function


def test_where_the_host_is_the_device_a_function_is_a_call(times: StepTimes, made_up_time: MadeUpTime) -> None:
    work = Work(replace(times, blocking=True), made_up_time.clock())
    start = work.clock.now()
    work.host_function(_computing(made_up_time, 0.5, blocked=0.5))
    assert work.clock.now() == pytest.approx(start + 0.5)
    assert work.counts.host_functions == 1
    assert work.timeline.host_functions == 0.0


def test_the_device_module_of_torch_launches_functions(work: Work, made_up_time: MadeUpTime) -> None:
    module = types.SimpleNamespace()
    work.replace_torch(module)
    side = module.Stream()
    with module.stream(side):
        module.launch_host_function(_computing(made_up_time, 0.5))
    assert not side.query()
    assert module.default_stream().query()
