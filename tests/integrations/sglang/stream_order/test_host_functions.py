"""Functions of the host are launched where the device runs them: on the emulated device, and by a made-up GPU driver."""

from __future__ import annotations

import ctypes
import logging
import types
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from agentspec.errors import DeviceError
from agentspec.integrations.sglang.stream_order import host_functions

STREAM = 0x7F0000001000
"""More than 32 bits, as addresses have."""

_Launch = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
_Function = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class Driver:
    """A driver's library whose stream runs each function when it is synchronized."""

    def __init__(self) -> None:
        self.code = 0
        self.num_gpus = 1
        self.queued: list[tuple[int | None, int, int]] = []
        self.cuLaunchHostFunc = _Launch(self._launch)

    def cuInit(self, flags: int) -> int:
        return 0

    def cuDeviceGetCount(self, count: Any) -> int:
        count._obj.value = self.num_gpus
        return 0

    def cuGetErrorString(self, code: int, words: Any) -> int:
        words._obj.value = b"invalid argument"
        return 0 if code == 1 else 1

    def _launch(self, stream: int | None, function: int, argument: int) -> int:
        self.queued.append((stream, function, argument))
        return self.code

    def synchronize(self) -> None:
        for _, function, argument in self.queued:
            _Function(function)(argument)
        self.queued.clear()


class Call:
    """A call that cannot be run, only launched."""

    address = (0x7F0000002000, 0x7F0000003000)

    def run(self) -> None:
        raise AssertionError("a GPU's driver runs the function, not this thread")


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], None]:
    """Makes this a machine with the library as its GPU driver; None: without a driver."""
    found = ctypes.CDLL
    host_functions._driver.cache_clear()

    def loaded(name: str | None) -> Any:
        if name != "libcuda.so.1":
            return found(name)
        if library is None:
            raise OSError("libcuda.so.1: cannot open shared object file")
        return library

    def use(wanted: Any) -> None:
        nonlocal library
        library = wanted

    library: Any = None
    monkeypatch.setattr(ctypes, "CDLL", loaded)
    return use


@pytest.fixture
def driver(load: Callable[[Any], None], monkeypatch: pytest.MonkeyPatch) -> Driver:
    """A GPU whose current stream is STREAM."""
    driver = Driver()
    load(driver)
    monkeypatch.setattr(torch.version, "cuda", "12.9")
    stream = types.SimpleNamespace(cuda_stream=STREAM, synchronize=driver.synchronize)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: stream if device.index == 1 else None)
    return driver


@pytest.fixture
def launch(driver: Driver) -> Callable[[Any], None]:
    launch = host_functions.launcher("cuda:1")
    assert launch is not None
    return launch


def test_the_driver_gets_the_devices_stream_and_both_addresses_whole(driver: Driver, launch: Any) -> None:
    launch(Call())
    assert driver.queued == [(STREAM, *Call.address)]


@pytest.mark.parametrize(("code", "words"), [(1, "error 1: invalid argument"), (999, "error 999: unknown")])
def test_a_refused_launch_is_an_error_with_the_drivers_words(
    driver: Driver, launch: Any, code: int, words: str
) -> None:
    driver.code = code
    with pytest.raises(DeviceError, match=words):
        launch(Call())


def test_a_probe_runs_when_the_stream_comes_to_it(launch: Any) -> None:
    assert host_functions.works(launch, "cuda:1")


def test_a_probe_that_is_refused_or_does_not_run_is_noticed(
    driver: Driver, launch: Any, caplog: pytest.LogCaptureFixture
) -> None:
    assert not host_functions.works(lambda call: None, "cuda:1")
    assert "did not run" in caplog.text
    driver.code = 1
    assert not host_functions.works(launch, "cuda:1")
    assert "invalid argument" in caplog.text


@pytest.mark.parametrize("library", [None, types.SimpleNamespace()])
def test_a_driver_that_cannot_launch_is_told_once(
    library: Any, driver: Driver, load: Callable[[Any], None], caplog: pytest.LogCaptureFixture
) -> None:
    load(library)
    caplog.set_level(logging.WARNING, "agentspec")
    assert host_functions.launcher("cuda:1") is None
    assert host_functions.launcher("cuda:0") is None
    assert caplog.text.count("steps wait for their results") == 1


def test_cpus_and_amds_devices_run_no_functions_and_nothing_is_missed(
    driver: Driver, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    assert host_functions.launcher("cpu") is None
    monkeypatch.setattr(torch.version, "cuda", None)
    monkeypatch.setattr(torch.version, "hip", "6.4")
    assert host_functions.launcher("cuda:1") is None
    assert not caplog.records


def test_the_emulated_device_runs_the_call_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    launched: list[Callable[[], None]] = []
    monkeypatch.setattr(torch.cpu, "launch_host_function", launched.append, raising=False)
    launch = host_functions.launcher(torch.device("cpu"))
    assert launch is not None
    call = host_functions._Probe()
    launch(call)
    assert not call.has_run
    launched.pop()()
    assert call.has_run
