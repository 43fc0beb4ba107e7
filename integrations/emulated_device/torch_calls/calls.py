"""Intercepts every torch call of the scheduler's thread and works out what it would be on a GPU.

    call                                              on the emulated device
    computes from a tensor of the device              an eager operation: launch, small kernel, result on the device
    factory with the server's device                  the same
    view                                              no work of the device; host time passes
    .to(device), copy_ from the host                  a copy; if it blocks, the host waits for its stream
    .cpu(), .item(), .tolist(), masks as indices ...  a read: the host waits for its stream
    .to("cpu", non_blocking=True), copy_ to the host  a copy; reading its result too early raises EmulationError
    anything else                                     host work; host time passes

There is no list of call sites: the arguments tell what a call does. A tensor is on the device if it was made from other
tensors of the device or with the server's device; its class marks it (tensors.py).

Two things go unnoticed: memory that is shared with numpy before a copy to it begins, and tensors among the sizes that
native code reads.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from agentspec.integrations.emulated_device.device.tensors import (
    DeviceTensor,
    EmulationError,
    ForcedLogits,
    PendingTensor,
    emulated_device,
    is_emulated,
    pending,
    to_device,
    to_host,
)
from agentspec.integrations.emulated_device.device.work import Work
from agentspec.integrations.emulated_device.torch_calls.logits import logits_answer
from agentspec.integrations.emulated_device.torch_calls.torch_names import (
    ALLOCATIONS,
    CONSTRUCTORS,
    FACTS,
    INDEXING,
    READS,
    SHAPED_BY_DATA,
    writes,
)

_ROUNDS, _CALLS = 5, 2000


class Calls(TorchFunctionMode):
    """The mode that intercepts torch calls. It is entered once, on the scheduler's thread."""

    def __init__(self, work: Work) -> None:
        super().__init__()
        self.work = work
        self.overhead = 0.0
        """Seconds that interception adds to a call, before and after __torch_function__."""
        self.suspended = False
        """Whether calls are not intercepted, for example while weights are loaded."""
        self.mixed: Counter[str] = Counter()
        """Operations on tensors of both the host and the device, by name. A GPU would refuse them."""
        self._names: dict[Any, str] = {}
        self._special: dict[str, Callable[..., Any]] = {
            "to": self._to, "cpu": self._cpu, "cuda": self._cuda, "copy_": self._copy, "pin_memory": self._pin_memory,
            "type": self._to_type,
        }  # fmt: skip

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if self.suspended:
            return func(*args, **(kwargs or {}))
        clock = self.work.clock
        entered = clock.wall()
        kwargs = kwargs or {}
        name = self._name(func)
        if clock.stands:
            return self._seen(func, name, args, kwargs)
        before = self.work.let_pass
        self.work.let_pass = 0.0
        clock.stop(entered)
        try:
            return self._seen(func, name, args, kwargs)
        finally:
            # The host time of the call itself counts, so it is taken out of the excluded time.
            clock.start()
            passed = self.work.let_pass
            self.work.let_pass = before
            clock.exclude(self.overhead - passed)

    def _seen(self, func: Any, name: str, args: Any, kwargs: dict[str, Any]) -> Any:
        if func is torch.device:
            return emulated_device() if args and is_emulated(args[0]) else func(*args, **kwargs)
        tensors = list(_tensors(args))
        if kwargs:
            tensors += _tensors(kwargs.values())
        for tensor in tensors:
            if isinstance(tensor, ForcedLogits):
                return logits_answer(self.work, func, name, tensor, args, kwargs)
            if isinstance(tensor, PendingTensor) and name not in FACTS:
                self._check(tensor, name)
        if name in FACTS:
            return self._on_host(func, args, kwargs)
        special = self._special.get(name)
        if special is not None:
            return special(func, args, kwargs)
        kwargs.pop("pin_memory", None)
        on_device = any(isinstance(tensor, DeviceTensor) for tensor in tensors)
        wanted = kwargs.get("device")
        if wanted is not None:
            on_device = is_emulated(wanted)
            if on_device:
                kwargs = {**kwargs, "device": "cpu"}
        if not on_device:
            return self._on_host(func, args, kwargs)
        if name in CONSTRUCTORS:
            return self._constructed(func, args, kwargs, is_emulated(wanted))
        return self._on_device(func, name, args, kwargs, tensors)

    def _on_host(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        started = self.work.clock.wall()
        try:
            return func(*args, **kwargs)
        finally:
            self.work.let_pass += self.work.clock.wall() - started

    def _on_device(self, func: Any, name: str, args: Any, kwargs: dict[str, Any], tensors: list[Tensor]) -> Any:
        self.work.check_order(name, tensors)
        if name in READS:
            self.work.read(name)
            return func(*args, **kwargs)
        if self._depends_on_data(name, args, kwargs):
            self.work.read(name)
        self._take_up(name, args, kwargs, tensors)
        started = self.work.clock.wall()
        result = func(*args, **kwargs)
        took = self.work.clock.wall() - started
        made = list(_tensors((result,)))
        for tensor in made:
            to_device(tensor)
        if not (writes(name) or kwargs.get("out") is not None or self._is_new(made, tensors)) or name in ALLOCATIONS:
            self.work.let_pass += took
            # A view is ready when its base is ready.
            known = max((tensor.ready_at for tensor in tensors if isinstance(tensor, DeviceTensor)), default=0.0)
            for tensor in made:
                tensor.ready_at = known  # type: ignore[attr-defined]
        else:
            written = made or tensors[:1]
            self.work.kernel(name, written[0].nbytes, took)
            self.work.wrote(written)
        return result

    def _depends_on_data(self, name: str, args: Any, kwargs: dict[str, Any]) -> bool:
        if name in SHAPED_BY_DATA:
            return True
        if name == "where":
            return len(args) == 1
        if name == "repeat_interleave":
            repeats = args[1] if len(args) > 1 else kwargs.get("repeats")
            return isinstance(repeats, Tensor) and kwargs.get("output_size") is None
        if name in INDEXING:
            indices = args[1] if isinstance(args[1], tuple | list) else (args[1],)
            if any(_slice_reads(index) for index in indices):
                return True
            masks = any(isinstance(index, Tensor) and index.dtype in (torch.bool, torch.uint8) for index in indices)
            # Filling a mask's places with one value does not read the mask on the host.
            value = args[2] if len(args) > 2 else None
            filled = name == "__setitem__" and (not isinstance(value, Tensor) or value.numel() == 1)
            return masks and not filled
        return False

    def _take_up(self, name: str, args: Any, kwargs: dict[str, Any], tensors: list[Tensor]) -> None:
        """Counts the uploads of host values that an operation of the device causes."""
        if name == "__setitem__" and not isinstance(args[2], Tensor):
            if args[0][args[1]].dim() == 0:
                # torch makes a tensor from the number and copies it with a blocking copy.
                self.work.upload(args[0].element_size(), blocking=True)
            return
        for tensor in tensors:
            if isinstance(tensor, DeviceTensor) or tensor.dim() == 0:
                continue
            if name in INDEXING:
                self.work.upload(tensor.nbytes, blocking=True)
            elif tensor.numel() and not self.work.is_inside:
                self.mixed[name] += 1

    @staticmethod
    def _is_new(made: list[Tensor], given: list[Tensor]) -> bool:
        if not made:
            return False
        known = {tensor.untyped_storage()._cdata for tensor in given}
        return any(tensor.untyped_storage()._cdata not in known for tensor in made)

    def _constructed(self, func: Any, args: Any, kwargs: dict[str, Any], goes_there: bool) -> Any:
        source = args[0] if args else kwargs.get("data")
        if isinstance(source, DeviceTensor):
            return self._on_device(func, "clone", args, kwargs, [source])
        if isinstance(source, list | tuple):
            # torch reads the value of each tensor in a list that is on the device.
            for tensor in _tensors(source):
                if isinstance(tensor, DeviceTensor):
                    self.work.read("item")
        result = func(*args, **kwargs)
        if not goes_there:
            return result
        if isinstance(source, Tensor) and result.data_ptr() == source.data_ptr():
            result = result.clone()
        # torch.tensor(values, device=...) makes a tensor on the host and copies it with a blocking copy.
        return self._on_its_way(result, blocking=True)

    def _to(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        source = args[0]
        target, rest, non_blocking = _destination(args[1:], kwargs)
        if isinstance(target, Tensor):
            rest = (target.dtype, *rest)
            target = emulated_device() if isinstance(target, DeviceTensor) else "cpu"
        was_there = isinstance(source, DeviceTensor)
        self.work.check_order("to", (source,))
        if target is None:
            if not was_there:
                return self._on_host(func, args, kwargs)
            return self._on_device(func, "to", args, kwargs, [source])
        options = {name: value for name, value in kwargs.items() if name not in ("device", "non_blocking", "other")}
        if is_emulated(target) == was_there:
            result = func(source, "cpu", *rest, **options)
            if was_there and result is not source:
                self.work.kernel("to", to_device(result).nbytes)
                self.work.wrote(result)
            return result
        result = func(source, "cpu", *rest, **options)
        if result is source:
            result = source.clone()
        if was_there:
            return self._downloaded(to_host(result), non_blocking, "to")
        return self._on_its_way(result, blocking=not non_blocking)

    def _to_type(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        if isinstance(args[0], DeviceTensor):
            return self._on_device(func, "type", args, kwargs, [args[0]])
        return self._on_host(func, args, kwargs)

    def _cpu(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        source = args[0]
        if not isinstance(source, DeviceTensor):
            return self._on_host(func, args, kwargs)
        self.work.check_order("cpu", (source,))
        return self._downloaded(to_host(source.clone()), False, "cpu")

    def _cuda(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        raise EmulationError("Tensor.cuda() was called; an emulated server's device is named by its setting")

    def _pin_memory(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        return self._on_host(torch.clone, (args[0],), {})

    def _copy(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        target, source = args[0], args[1] if len(args) > 1 else kwargs["src"]
        non_blocking = bool(args[2] if len(args) > 2 else kwargs.get("non_blocking", False))
        to_there, from_there = isinstance(target, DeviceTensor), isinstance(source, DeviceTensor)
        if to_there == from_there:
            if to_there:
                return self._on_device(func, "copy_", args, kwargs, [target, source])
            return self._on_host(func, args, kwargs)
        self.work.check_order("copy_", (source,))
        result = func(target, source)
        if to_there:
            self._on_its_way(result, blocking=not non_blocking)
        else:
            self._downloaded(result, non_blocking, "copy_")
        return result

    def _on_its_way(self, result: Tensor, *, blocking: bool) -> Tensor:
        """Counts a copy of the tensor to the device and returns the tensor there."""
        self.work.upload(result.nbytes, blocking)
        self.work.wrote(to_device(result))
        return result

    def _downloaded(self, result: Tensor, non_blocking: bool, name: str) -> Tensor:
        if not non_blocking:
            self.work.read(name, result.nbytes)
            return result
        return pending(result, self.work.download(result.nbytes))

    def _check(self, tensor: PendingTensor, name: str) -> None:
        if self.work.is_read_too_early(tensor):
            raise EmulationError(
                f"{name} reads what a copy from the device has not written yet: wait for an event that was recorded "
                "behind the copy"
            )
        # To the scheduler's thread, the copy is still in progress while a function of the host reads it.
        if not self.work.runs_host_function:
            to_host(tensor)

    def _name(self, func: Any) -> str:
        name = self._names.get(func)
        if name is None:
            name = str(getattr(func, "__name__", func))
            if name == "__get__":
                name = str(getattr(getattr(func, "__self__", None), "__name__", name))
            self._names[func] = name
        return name


def _tensors(values: Any) -> Iterator[Tensor]:
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from _tensors(value)


def _slice_reads(index: Any) -> bool:
    return isinstance(index, slice) and any(
        isinstance(part, DeviceTensor) for part in (index.start, index.stop, index.step)
    )


def _destination(args: Any, kwargs: dict[str, Any]) -> tuple[Any, tuple[Any, ...], bool]:
    """Parses the arguments of Tensor.to(). Returns the target (a device, a tensor or None), the remaining positional
    arguments, and whether the call is non-blocking."""
    target = kwargs.get("device", kwargs.get("other"))
    rest = list(args)
    if target is None and rest and isinstance(rest[0], str | torch.device | Tensor):
        target = rest.pop(0)
        # .to(device, dtype, non_blocking, copy)
        flags = 1 if isinstance(target, Tensor) is False else 0
    else:
        # .to(dtype, non_blocking, copy)
        flags = 1
    non_blocking = bool(kwargs.get("non_blocking", False))
    if len(rest) > flags:
        non_blocking = bool(rest[flags])
        rest[flags] = False
    return target, tuple(rest), non_blocking


class _Timed(TorchFunctionMode):
    """Measures the time inside the handler, as Calls does."""

    def __init__(self, wall: Callable[[], float]) -> None:
        super().__init__()
        self._wall = wall
        self.inside: float = 0.0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        started = self._wall()
        result = func(*args, **(kwargs or {}))
        self.inside += self._wall() - started
        return result


def seconds_of_a_call(wall: Callable[[], float]) -> float:
    """Seconds that interception adds to a call outside its handler: the median of some rounds, by the clock `wall`."""
    tensor = torch.zeros(4)
    rounds: list[float] = []
    for _ in range(_ROUNDS):
        timed = _Timed(wall)
        with timed:
            started = wall()
            for _ in range(_CALLS):
                tensor.dim()
            seen = wall() - started - timed.inside
        rounds.append(seen / _CALLS)
    return sorted(rounds)[_ROUNDS // 2]
