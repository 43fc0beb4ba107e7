"""Launches native functions of the host in the order of a stream, so that no thread waits for what they need.

    emulated device    launch_host_function() of its torch device module
    CUDA               cuLaunchHostFunc of the driver's library, found at run time: nothing is built against CUDA
    all others         no launch; callers run the function on their own thread, once its input is there

The driver runs such a function on a thread of its own, and the stream goes on when the function returns. The function
must not take the GIL, call CUDA, or wait for a thread that may be waiting for the device: each can end in a deadlock.

torch is imported only where it is needed, because `agentspec doctor` asks for the driver without it.
"""

from __future__ import annotations

import ctypes
import functools
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from agentspec.errors import DeviceError

if TYPE_CHECKING:
    import torch

logger = logging.getLogger("agentspec")

_LIBRARY = "libcuda.so.1"


class HostCall(Protocol):
    """A native call that needs no GIL. It can be launched again and again."""

    def run(self) -> None:
        """Runs the call on this thread."""

    @property
    def address(self) -> tuple[int, int]:
        """A C function `void (*)(void*)` and its argument, both valid while this object lives.

        A launch does not keep the object alive: its owner does, until the stream has run the call.
        """


Launch = Callable[[HostCall], None]
"""Queues a call on the current stream of a device. Raises DeviceError if the device's driver refuses it."""


def launcher(device: torch.device | str) -> Launch | None:
    """The function that queues calls on the device's current stream; None if the device runs no function of the host.

    Logs a warning if the device should run them, but its driver cannot.
    """
    import torch

    device = torch.device(device)
    emulated = getattr(torch.get_device_module(device), "launch_host_function", None)
    if emulated is not None:
        return lambda call: emulated(call.run)
    # AMD's devices have the type "cuda", too, but torch.version.hip instead of torch.version.cuda.
    driver = _driver() if device.type == "cuda" and torch.version.cuda is not None else None
    if driver is None:
        return None
    return lambda call: driver.launch(torch.cuda.current_stream(device).cuda_stream, *call.address)


def works(launch: Launch, device: torch.device | str) -> bool:
    """Launches a small call and waits for it. Returns whether it ran; logs a warning if not."""
    import torch

    device = torch.device(device)
    call = _Probe()
    try:
        launch(call)
        torch.get_device_module(device).current_stream(device).synchronize()
    except RuntimeError as error:
        _warn(str(error))
        return False
    if not call.has_run:
        _warn(f"a call that was launched on {device} did not run")
    return call.has_run


class _Driver:
    """The part of the driver's library that launches functions."""

    def __init__(self, library: Any) -> None:
        """Raises AttributeError if the library is of a driver that cannot launch functions."""
        self._library = library
        self._launch = library.cuLaunchHostFunc
        self._launch.argtypes, self._launch.restype = (ctypes.c_void_p,) * 3, ctypes.c_int

    def launch(self, stream: int, function: int, argument: int) -> None:
        """Queues function(argument), both addresses, on a stream, a CUstream.

        Raises:
            DeviceError: The driver refuses it.
        """
        code = self._launch(stream, function, argument)
        if code:
            raise DeviceError(f"cuLaunchHostFunc failed with error {code}: {self._words(code)}")

    def _words(self, code: int) -> str:
        words = ctypes.c_char_p()
        unknown = self._library.cuGetErrorString(code, ctypes.byref(words))
        return "unknown" if unknown or words.value is None else words.value.decode()


class _Probe:
    """A call of the C library's `time`, which writes the time to its argument: native, and nothing to be built."""

    def __init__(self) -> None:
        self._seconds = ctypes.c_int64(0)
        self._function = ctypes.CDLL(None).time
        self._function.argtypes, self._function.restype = (ctypes.c_void_p,), ctypes.c_int64

    def run(self) -> None:
        self._function(ctypes.addressof(self._seconds))

    @property
    def address(self) -> tuple[int, int]:
        function = ctypes.cast(self._function, ctypes.c_void_p).value
        assert function is not None
        return function, ctypes.addressof(self._seconds)

    @property
    def has_run(self) -> bool:
        return self._seconds.value != 0


@functools.cache
def _driver() -> _Driver | None:
    """The driver; None, with one warning in a process, if it is missing or cannot launch functions."""
    try:
        return _Driver(ctypes.CDLL(_LIBRARY))
    except (OSError, AttributeError) as error:
        _warn(str(error))
        return None


def _warn(why: str) -> None:
    logger.warning("no functions of the host can be launched on the GPU, so steps wait for their results: %s", why)
