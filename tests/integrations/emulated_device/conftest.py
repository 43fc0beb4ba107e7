"""An emulated device whose time is made up."""

from __future__ import annotations

import types
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from made_up_time import MadeUpTime

from agentspec.integrations.emulated_device.models.step_times import StepTimes


@pytest.fixture
def made_up_time() -> MadeUpTime:
    return MadeUpTime()


@pytest.fixture
def times() -> StepTimes:
    """A kernel takes the device 0.01 s and the host 0.001; a copy takes the device 0.02, a host function 0.005 more."""
    return replace(
        StepTimes.load("h200-8b"),
        kernel_seconds=0.01,
        kernel_seconds_per_byte=0.0,
        copy_seconds=0.02,
        copy_seconds_per_byte=0.0,
        host_function_dispatch=0.005,
        host_launch=0.001,
        host_graph_launch=0.002,
        host_prefill_launch=0.004,
    )


@pytest.fixture
def calls(times: StepTimes, made_up_time: MadeUpTime) -> Iterator[Any]:
    """Intercepts every torch call of this thread."""
    pytest.importorskip("torch")
    from agentspec.integrations.emulated_device.device.tensors import name_backend
    from agentspec.integrations.emulated_device.device.work import Work
    from agentspec.integrations.emulated_device.torch_calls.calls import Calls

    name_backend(types.ModuleType("emulated"))
    with Calls(Work(times, made_up_time.clock())) as seen:
        yield seen


@pytest.fixture
def work(calls: Any) -> Any:
    return calls.work
