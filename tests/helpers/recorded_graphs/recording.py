"""Records the operations that a function runs on tensors, and runs the same operations again on the same tensors.

    with recording() as record:          later, with other contents in the same tensors:
        output = function()              record.replay()   # `output` holds the new result

A captured CUDA graph behaves like this. Python does not run again, so a replay does not see a tensor that replaced a
recorded one, and values that Python computed during the recording stay the same. As in a CUDA capture, Python must not
read the contents of a tensor.

All recordings share one memory pool for the memory that they allocate, as graphs do. Once another recording is
replayed, the outputs of this one are lost: they are overwritten with NaN or a number that is not a token.
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

# Operations whose result, or its shape, depends on the contents of a tensor, so Python would wait for the device.
_READS = frozenset(
    {
        "aten::_local_scalar_dense", "aten::item", "aten::is_nonzero", "aten::equal", "aten::allclose", "aten::nonzero",
        "aten::argwhere", "aten::masked_select", "aten::unique_consecutive", "aten::_unique", "aten::_unique2",
        "aten::unique_dim", "aten::bincount", "aten::repeat_interleave",
    }
)  # fmt: skip
# Methods that hand a tensor's memory to Python without an operation.
_READING_METHODS = frozenset({"tolist", "numpy", "cpu", "__array__", "item"})
# These operations reserve memory and do not write to it.
_ALLOCATIONS = frozenset({"aten::empty", "aten::empty_strided", "aten::empty_like", "aten::new_empty"})

NO_TOKEN = -(1 << 30)
"""The value that overwritten integers get, if their type can hold it."""


class CaptureError(RuntimeError):
    """The recorded function could not be captured in a CUDA graph."""


class _Operation:
    """A recorded operation, with the tensors that it ran on."""

    __slots__ = ("_args", "_function", "_kwargs", "_written")

    def __init__(self, function: Any, args: Any, kwargs: Any, written: list[tuple[int, Tensor]]) -> None:
        self._function, self._args, self._kwargs = function, args, kwargs
        self._written = written

    def run(self) -> None:
        results = tree_leaves(self._function(*self._args, **self._kwargs))
        for result in results:
            if isinstance(result, torch.ScriptObject):
                # Wait for the other ranks' part of a collective operation, as its stream does on a GPU.
                result.wait()
        for place, tensor in self._written:
            tensor.copy_(results[place])


class Recording:
    """The operations of one run of a function."""

    _pool: ClassVar[list[Recording]] = []
    """All recordings whose outputs hold a valid result."""

    def __init__(self) -> None:
        self._operations: list[_Operation] = []
        self._allocated: set[int] = set()
        # Storages are identified by their address, so none of them may be freed.
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
        """Adds an operation that has run. Later operations may use its result."""
        read = {_storage(leaf) for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)}
        fresh = [
            (place, leaf)
            for place, leaf in enumerate(tree_leaves(result))
            if isinstance(leaf, Tensor) and _storage(leaf) not in read
        ]
        for _, tensor in fresh:
            self._allocated.add(_storage(tensor))
            self._kept.append(tensor)
        # A collective operation writes to its arguments, although its schema does not say so.
        writes = function._schema.is_mutable or function._schema.name.startswith("c10d::")
        if not fresh and not writes and tree_leaves(result):
            # The recorded result is a view and stays one.
            return
        if function._schema.name not in _ALLOCATIONS:
            self._operations.append(_Operation(function, args, kwargs, fresh))

    def finish(self, output: Any) -> None:
        """Ends the recording with the function's return value."""
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
    """Records the operations that this thread runs in the context. Call Recording.finish() at its end.

    Raises:
        CaptureError: Python reads the contents of a tensor.
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
        # The inside of a custom operation stands for a kernel and may read tensors.
        with torch._C.DisableTorchFunction():
            result = function(*args, **kwargs)
        self._record.add(function, args, kwargs, result)
        return result


class _Refusals(TorchFunctionMode):
    """Refuses reads that do not run an operation."""

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
        # Filling all places of a mask with one value does not read the mask on the host.
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
