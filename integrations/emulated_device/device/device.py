"""One emulated device: streams of queued work, and events that tell when the work is done.

    host    launch ─ launch ─ launch ─────── wait ▒▒▒▒▒▒▒▒▒▒▒▒▒ read ─ launch ...
    stream           █████████████████████████████████████            ████
                                                          └── idle ──┘

This module computes nothing. Work queued on a stream begins when the stream is free, at the earliest now, and takes a
given number of seconds. Streams do not slow each other down, because SGLang runs its forwards on one stream, and only
copies and operations of a few microseconds on the others.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any

from agentspec.integrations.emulated_device.device.clock import Clock

OnWork = Callable[[str, float, float, "Stream"], None]
"""Called with the kind of queued work, its begin and end in emulated seconds, and its stream."""

OnWait = Callable[[str, float, float], None]
"""Called with the reason of a wait of the host, and its begin and end in emulated seconds."""


class Stream:
    """Replaces torch.cpu.Stream and behaves like torch.cuda.Stream."""

    device: Device

    def __init__(self, device: Any = None, priority: int = 0, **unused: Any) -> None:
        del device, unused
        self.priority = priority
        self.free_at = 0.0
        """The time when all queued work is done, in emulated seconds."""

    def wait_stream(self, stream: Stream) -> None:
        """Work queued after this call begins when all work queued on `stream` is done."""
        self.free_at = max(self.free_at, stream.free_at)

    def wait_event(self, event: Event) -> None:
        self.free_at = max(self.free_at, event.at)

    def record_event(self, event: Event | None = None) -> Event:
        event = Event() if event is None else event
        event.record(self)
        return event

    def query(self) -> bool:
        return self.device.clock.now() >= self.free_at

    def synchronize(self) -> None:
        self.device.wait(self.free_at, "stream")


class Event:
    """Replaces torch.cpu.Event and behaves like torch.cuda.Event."""

    device: Device

    def __init__(self, enable_timing: bool = False, blocking: bool = False, **unused: Any) -> None:
        del enable_timing, blocking, unused
        self.at = 0.0
        """When the work queued before the event is done, in emulated seconds; 0 until the event is recorded."""

    def record(self, stream: Stream | None = None) -> None:
        self.at = max((stream or self.device.current_stream).free_at, self.device.clock.now())

    def wait(self, stream: Stream | None = None) -> None:
        (stream or self.device.current_stream).wait_event(self)

    def query(self) -> bool:
        return self.device.clock.now() >= self.at

    def synchronize(self) -> None:
        self.device.wait(self.at, "event")

    def elapsed_time(self, end: Event) -> float:
        """Milliseconds from this event to `end`."""
        return (end.at - self.at) * 1e3


class StreamContext(AbstractContextManager[Any]):
    """Replaces torch.cpu.StreamContext."""

    device: Device

    def __init__(self, stream: Stream | None) -> None:
        self.stream = stream
        self._before: list[Stream] = []

    def __enter__(self) -> Stream | None:
        self._before.append(self.device.current_stream)
        if self.stream is not None:
            self.device.current_stream = self.stream
        return self.stream

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.device.current_stream = self._before.pop()


class Device:
    """The emulated device. The scheduler's thread owns it."""

    def __init__(
        self,
        clock: Clock,
        blocking: bool = False,
        on_work: OnWork = lambda kind, begin, end, stream: None,
        on_wait: OnWait = lambda why, begin, end: None,
    ) -> None:
        """`blocking`: whether the host waits for every launch, because it is the device itself."""
        self.clock = clock
        self.blocking = blocking
        self.on_work = on_work
        self.on_wait = on_wait
        self.waited = 0.0
        """The number of seconds that the host has waited for the device."""
        self.stream_type = type("Stream", (Stream,), {"device": self})
        self.event_type = type("Event", (Event,), {"device": self})
        self.context_type = type("StreamContext", (StreamContext,), {"device": self})
        # Streams create events without naming a device, so the classes hold the device.
        Stream.device = Event.device = self
        self.default_stream: Stream = self.stream_type()
        self.current_stream: Stream = self.default_stream

    def launch(self, kind: str, seconds: float, host_seconds: float) -> float:
        """Queues work on the current stream and returns when it will be done.

        Args:
            kind: The kind of work, for traces.
            seconds: The time that the device takes.
            host_seconds: The time that the host takes to queue the work.
        """
        self.clock.charge(host_seconds)
        stream = self.current_stream
        begin = max(stream.free_at, self.clock.now())
        end: float = begin + seconds
        stream.free_at = end
        self.on_work(kind, begin, end, stream)
        if self.blocking:
            self.wait(end, "blocking")
        return end

    def wait(self, moment: float, why: str) -> None:
        """The host waits until `moment`, in emulated seconds."""
        waited = self.clock.sleep_until(moment)
        if waited > 0:
            self.waited += waited
            self.on_wait(why, moment - waited, moment)

    def synchronize(self, device: Any = None) -> None:
        """Waits for the current stream. SGLang never waits in this way for work on other streams."""
        del device
        self.current_stream.synchronize()

    def replace_torch(self, module: Any) -> None:
        """Replaces the streams and events of a torch device module, such as torch.cpu, with those of this device."""
        module.Stream, module.Event, module.StreamContext = self.stream_type, self.event_type, self.context_type
        module.stream = self.context_type
        module.current_stream = lambda device=None: self.current_stream
        module.default_stream = lambda device=None: self.default_stream
        module.set_stream = self._set_stream
        module.synchronize = self.synchronize
        module.is_current_stream_capturing = lambda: False

    def _set_stream(self, stream: Stream) -> None:
        self.current_stream = stream
