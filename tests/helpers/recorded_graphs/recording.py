"""Records the operations that a function runs on tensors, and runs the same operations again on the same tensors.

    with recording() as record:          later, with other contents in the same tensors:
        output = function()              record.replay()   # `output` holds the new result

That is what a captured CUDA graph does: Python does not run again, so a tensor that took the place of a recorded one is
not seen, and what Python computed while it was recorded stays as it was. What a CUDA capture refuses is refused here:
Python must not read what a tensor holds.

Memory that a recording allocated belongs to a pool which all recordings share, as graphs share theirs: once another
recording is replayed, the outputs of this one are gone, and are overwritten with NaN or a number that is no token.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

# Operations whose result, or its shape, depends on what a tensor holds: Python would wait for the device.
_READS = frozenset(
    {
        "aten::_local_scalar_dense", "aten::item", "aten::is_nonzero", "aten::equal", "aten::allclose", "aten::nonzero",
        "aten::argwhere", "aten::masked_select", "aten::unique_consecutive", "aten::_unique", "aten::_unique2",
        "aten::unique_dim", "aten::bincount", "aten::repeat_interleave",
    }
)  # fmt: skip
# Methods that hand a tensor's memory to Python without an operation.
_READING_METHODS = frozenset({"tolist", "numpy", "cpu", "__array__", "item"})
# These reserve memory, and nothing writes to it.
_ALLOCATIONS = frozenset({"aten::empty", "aten::empty_strided", "aten::empty_like", "aten::new_empty"})

NO_TOKEN = -(1 << 30)
"""What overwritten whole numbers become, as far as their type holds it."""


class CaptureError(RuntimeError):
    """What was recorded could not be captured in a CUDA graph."""


class _Operation:
    """One operation as it was run, with the tensors that it was run on."""

    __slots__ = ("_args", "_function", "_kwargs", "_written")

    def __init__(self, function: Any, args: Any, kwargs: Any, written: list[tuple[int, Tensor]]) -> None:
        self._function, self._args, self._kwargs = function, args, kwargs
        self._written = written

    def run(self) -> None:
        results = tree_leaves(self._function(*self._args, **self._kwargs))
        for result in results:
            if isinstance(result, torch.ScriptObject):
                # Other ranks' part of a collective operation: on a GPU its stream waits for that.
                result.wait()
        for place, tensor in self._written:
            tensor.copy_(results[place])


class Recording:
    """The operations of one run of a function."""

    _pool: ClassVar[list[Recording]] = []
    """All recordings whose outputs hold a result."""

    def __init__(self) -> None:
        self._operations: list[_Operation] = []
        self._allocated: set[int] = set()
        # Storages are told apart by their address, so none of them may be freed.
        self._kept: list[Tensor] = []
        self._outputs: list[Tensor] = []

    def __len__(self) -> int:
        return len(self._operations)

    def replay(self) -> None:
        """Runs all operations again."""
        for other in Recording._pool:
            if other is not self:
                other._overwrite()
        Recording._pool[:] = [self]
        with torch.inference_mode():
            for operation in self._operations:
                operation.run()

    def add(self, function: Any, args: Any, kwargs: Any, result: Any) -> None:
        """Adds an operation that was run; its result is what later operations are given."""
        read = {_storage(leaf) for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)}
        fresh = [
            (place, leaf)
            for place, leaf in enumerate(tree_leaves(result))
            if isinstance(leaf, Tensor) and _storage(leaf) not in read
        ]
        for _, tensor in fresh:
            self._allocated.add(_storage(tensor))
            self._kept.append(tensor)
        # A collective operation writes to what it is given, which its schema does not tell.
        writes = function._schema.is_mutable or function._schema.name.startswith("c10d::")
        if not fresh and not writes and tree_leaves(result):
            # A view: the recorded one stays one.
            return
        if function._schema.name not in _ALLOCATIONS:
            self._operations.append(_Operation(function, args, kwargs, fresh))

    def finish(self, output: Any) -> None:
        """Says what the function returned."""
        self._outputs = [tensor for tensor in _tensors(output) if _storage(tensor) in self._allocated]
        Recording._pool.append(self)

    def _overwrite(self) -> None:
        with torch.inference_mode():
            for tensor in self._outputs:
                if tensor.is_floating_point():
                    tensor.fill_(float("nan"))
                elif tensor.dtype != torch.bool:
                    tensor.fill_(max(NO_TOKEN, torch.iinfo(tensor.dtype).min))


@contextmanager
def recording() -> Iterator[Recording]:
    """Records what runs inside, on this thread; to be ended with Recording.finish().

    Raises:
        CaptureError: Python reads what a tensor holds.
    """
    record = Recording()
    with _Refusals(), _Recorder(record):
        yield record


class _Recorder(TorchDispatchMode):
    def __init__(self, record: Recording) -> None:
        super().__init__()
        self._record = record

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        _refuse_read(function, args, kwargs)
        # What a custom operation does inside stands for a kernel.
        with torch._C.DisableTorchFunction():
            result = function(*args, **kwargs)
        self._record.add(function, args, kwargs, result)
        return result


class _Refusals(TorchFunctionMode):
    """Refuses the reads that run no operation."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(function, "__name__", "")
        if name in _READING_METHODS:
            raise CaptureError(f"Tensor.{name} was called in a capture: Python must not read what a tensor holds")
        return function(*args, **(kwargs or {}))


def _refuse_read(function: Any, args: Any, kwargs: Any) -> None:
    name = function._schema.name
    reads = name in _READS and not (name == "aten::repeat_interleave" and kwargs.get("output_size") is not None)
    if name == "aten::where":
        reads = len(args) == 1
    if name in ("aten::index", "aten::index_put", "aten::index_put_") and len(args) > 1:
        masks = any(isinstance(index, Tensor) and index.dtype in (torch.bool, torch.uint8) for index in args[1])
        # One value for all places of a mask is filled in without a look at the mask.
        reads = masks and not (len(args) > 2 and args[2].numel() == 1)
    if reads:
        raise CaptureError(f"{function} was called in a capture: its result depends on what a tensor holds")


def _storage(tensor: Tensor) -> int:
    return tensor.untyped_storage()._cdata


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            yield from _tensors(getattr(value, field.name))
    elif isinstance(value, dict):
        for item in value.values():
            yield from _tensors(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _tensors(item)


def record(function: Callable[[], Any]) -> tuple[Recording, Any]:
    """Records one run of `function`, and returns the record and what the function returned."""
    with recording() as found:
        output = function()
    found.finish(output)
    return found, output
