"""Counts and charges what the host launches on the emulated device.

    kernel      one eager operation                     host_launch on the host, kernel(bytes) on the device
    graph       what a GPU replays as a captured graph  host_graph_launch, the model's seconds
    prefill     a forward without a graph               host_prefill_launch, the model's seconds
    read        the host needs a value of the device    a copy, then the host waits for the stream
    upload      host to device                          a copy; a blocking one waits for the stream, as CUDA does
    download    device to pinned memory of the host     a copy; the host does not wait
    host function   runs on the host in stream order    host_launch on the host, dispatch and the function on the stream

Code that is one kernel on a GPU but Python on this CPU runs within `inside()`. Its time is excluded, and none of its
operations are counted.

If the device is `blocking`, the host itself is the device: operations take the time that they take here, and only
forwards take the model's seconds instead.
"""

from __future__ import annotations

import contextlib
import functools
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

from torch import Tensor

from agentspec.integrations.emulated_device.device.clock import Clock
from agentspec.integrations.emulated_device.device.device import Device
from agentspec.integrations.emulated_device.device.tensors import DeviceTensor, PendingTensor, to_device
from agentspec.integrations.emulated_device.device.trace import HOST_FUNCTION, ChromeTrace, Timeline
from agentspec.integrations.emulated_device.models.step_times import StepTimes


@dataclass(slots=True)
class Counts:
    """The number of events since the server started."""

    steps: int = 0
    """Decode or verify steps."""
    prefills: int = 0
    host_reads: int = 0
    """Waits of the host for a value of the device."""
    eager_ops: int = 0
    """Operations launched outside captured graphs."""
    h2d_copies: int = 0
    h2d_bytes: int = 0
    blocking_h2d_copies: int = 0
    """Host-to-device copies that make the host wait until its stream is done."""
    d2h_copies: int = 0
    """Device-to-host copies that do not make the host wait at their launch."""
    graphs: int = 0
    host_functions: int = 0
    """Functions of the host that ran in the order of a stream."""
    tokens: int = 0
    """Tokens that the target computes in decode and verify steps, padding included."""


class Work:
    """Counts and charges launches, on the scheduler's thread only."""

    def __init__(self, steps: StepTimes, clock: Clock, trace: ChromeTrace | None = None) -> None:
        self.steps = steps
        self.clock = clock
        self.timeline = Timeline(clock.now, trace)
        self.device = Device(clock, steps.blocking, self.timeline.worked, self.timeline.waited)
        self.counts = Counts()
        self.by_name: Counter[str] = Counter()
        """Eager operations and reads by name."""
        self.unordered: Counter[str] = Counter()
        """Operations and reads, by name, on a stream that does not wait for the stream that writes their input."""
        self.let_pass = 0.0
        """Seconds of the torch call in progress that the host of a GPU would spend as well."""
        self._inside = 0
        self._function_begins: float | None = None

    def replace_torch(self, module: Any) -> None:
        """Makes a torch device module, such as torch.cpu, the one of this device.

        The module also gets `launch_host_function(function)`, which torch.cuda has not: see host_function().
        """
        self.device.replace_torch(module)
        module.launch_host_function = self.host_function

    def kernel(self, name: str, num_bytes: int, took: float = 0.0) -> None:
        """Notes that an eager operation was called and took `took` seconds on this CPU."""
        if self.steps.blocking:
            self.let_pass += took
        if self._inside:
            return
        self.counts.eager_ops += 1
        self.by_name[name] += 1
        if not self.steps.blocking:
            self._launch("kernel", self.steps.kernel(num_bytes), self.steps.host_launch)

    def read(self, name: str, num_bytes: int = 8) -> None:
        """Notes that the host reads a value from the device."""
        if self._inside:
            return
        self.counts.host_reads += 1
        self.by_name[f"read {name}"] += 1
        if not self.steps.blocking:
            self._launch("copy", self.steps.copy(num_bytes), self.steps.host_launch)
            self.device.synchronize()

    def upload(self, num_bytes: int, blocking: bool) -> None:
        if self._inside:
            return
        self.counts.h2d_copies += 1
        self.counts.h2d_bytes += num_bytes
        self.counts.blocking_h2d_copies += blocking
        if not self.steps.blocking:
            self._launch("copy", self.steps.copy(num_bytes), self.steps.host_launch)
            if blocking:
                self.device.synchronize()

    def download(self, num_bytes: int) -> float:
        """Notes a copy to the host that begins now. Returns when it will be done, in emulated seconds."""
        if self._inside:
            return 0.0
        self.counts.d2h_copies += 1
        if self.steps.blocking:
            return 0.0
        return self._launch("copy", self.steps.copy(num_bytes), self.steps.host_launch)

    def graph(self, kind: str, seconds: float) -> None:
        """Notes that a captured graph is replayed."""
        self.counts.graphs += 1
        self._launch(kind, seconds, self.steps.host_graph_launch)

    def prefill(self, kind: str, seconds: float) -> None:
        self._launch(kind, seconds, self.steps.host_prefill_launch)

    def host_function(self, function: Callable[[], object]) -> None:
        """Queues a function of the host on the current stream, as cuLaunchHostFunc does.

        Its time is that of the stream, not of the calling thread: see Clock.seconds_of(). The function runs at once,
        because the values that it reads exist already, and its results are there too early for the host. Wait for an
        event that was recorded behind it before you read them; nothing checks this. If the host is the device, the
        function is an ordinary call. Raises EmulationError if the function reads a copy from the device that is not
        done when the function begins.
        """
        if self._inside:
            function()
            return
        self.counts.host_functions += 1
        if self.steps.blocking:
            function()
            return
        with self.left_out():
            launch = self.steps.host_launch
            self._function_begins = max(self.device.current_stream.free_at, self.clock.now() + launch)
            try:
                seconds = self.clock.seconds_of(function)
            finally:
                self._function_begins = None
            self._launch(HOST_FUNCTION, self.steps.host_function_dispatch + seconds, launch)

    def is_read_too_early(self, tensor: PendingTensor) -> bool:
        """Whether the running code reads a tensor that a copy from the device has not written yet."""
        begins = self._function_begins
        return (self.clock.now() if begins is None else begins) < tensor.ready_at

    @property
    def runs_host_function(self) -> bool:
        """Whether the running code is a function of the host that was queued on a stream."""
        return self._function_begins is not None

    @property
    def is_inside(self) -> bool:
        """Whether the running code is counted as something else, or not at all."""
        return self._inside > 0

    @contextlib.contextmanager
    def inside(self) -> Iterator[None]:
        """Treats the block as work of the device or of the emulation, so that nothing in it is counted."""
        stops = not self.steps.blocking
        self._inside += 1
        if stops:
            self.clock.stop()
        try:
            yield
        finally:
            if stops:
                self.clock.start()
            self._inside -= 1

    @contextlib.contextmanager
    def left_out(self) -> Iterator[None]:
        """Like inside(), for the emulation's own work, whose time is excluded."""
        self._inside += 1
        self.clock.stop()
        try:
            yield
        finally:
            self.clock.start()
            self._inside -= 1

    def as_kernel(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Wraps the function as one kernel of the device."""
        label = getattr(function, "__name__", "kernel")

        @functools.wraps(function)
        def kernel(*args: Any, **kwargs: Any) -> Any:
            with self.inside():
                result = function(*args, **kwargs)
                has_tensors = self.steps.blocking or self._marked(result) or _has_tensors((args, *kwargs.values()))
            # Functions without tensors decide on the host what to launch, and launch nothing themselves.
            if has_tensors:
                self.kernel(label, 0)
                self.wrote(result)
            return result

        kernel._emulated_kernel = True  # type: ignore[attr-defined]
        return kernel

    def wrote(self, result: Any) -> None:
        """Notes that the last launched operation writes the tensors in `result`."""
        if isinstance(result, DeviceTensor):
            result.ready_at = self.device.current_stream.free_at
        elif isinstance(result, list | tuple):
            for item in result:
                self.wrote(item)

    def check_order(self, name: str, tensors: Iterable[Tensor]) -> None:
        """Counts an operation as unordered if it would begin before its input tensors are written."""
        if self._inside or self.steps.blocking:
            return
        begins = max(self.device.current_stream.free_at, self.clock.now())
        if any(isinstance(tensor, DeviceTensor) and tensor.ready_at > begins for tensor in tensors):
            self.unordered[name] += 1

    def on_device(self, tensor: Tensor) -> Tensor:
        """Moves the tensor to the device and returns it. If the host is the device, the tensor stays unchanged."""
        return tensor if self.steps.blocking else to_device(tensor)

    def _marked(self, result: Any) -> bool:
        """Moves all tensors of a result to the device. Returns whether there were any."""
        if isinstance(result, Tensor):
            if not isinstance(result, DeviceTensor | PendingTensor):
                to_device(result)
            return True
        if not isinstance(result, list | tuple):
            return False
        # any() would stop at the first tensor, but all must be moved.
        return sum(map(self._marked, result)) > 0

    def totals(self) -> dict[str, Any]:
        """Seconds, shares and counts since the server started, for reports."""
        return {
            "device": self.steps.name,
            "emulated_seconds": self.clock.now(),
            "wall_seconds": time.perf_counter(),
            "excluded_seconds": self.clock.excluded,
            "launch_seconds": self.clock.launching,
            "waited_seconds": self.device.waited,
            **asdict(self.counts),
            **self.timeline.totals(),
            "by_name": dict(self.by_name.most_common()),
        }

    def _launch(self, kind: str, seconds: float, host_seconds: float) -> float:
        # The time of the bookkeeping belongs to the emulation and is excluded.
        self.clock.stop()
        self.timeline.launching()
        end = self.device.launch(kind, seconds, host_seconds)
        self.timeline.launched()
        self.clock.start()
        return end


def _has_tensors(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return any(_has_tensors(item) for item in value)
    return isinstance(value, Tensor)
