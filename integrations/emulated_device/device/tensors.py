"""Tensors of an emulated device: CPU tensors that report another device.

    DeviceName      the server's device, "cpu"; its type distinguishes it from the literal "cpu"
    DeviceTensor    on the emulated device; its `device` is torch.device("emulated")
    PendingTensor   on the host, while a copy from the device to it is in progress
    ForcedLogits    a target's logits, known only by their most likely token

A tensor changes its kind only by changing its class, so every holder of the tensor sees the change. The classes compute
like plain tensors, also on threads without an emulation; calls.py maintains the kinds.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

BACKEND = "emulated"


class EmulationError(RuntimeError):
    """An operation is impossible on a GPU, or unknown to the emulation."""


class DeviceName(str):
    """The name of the server's device. It equals "cpu", which SGLang compares it with."""

    __slots__ = ()


def name_backend(module: Any) -> None:
    """Makes torch.device("emulated") valid, with `module` as its device module. Call it once per process."""
    # torch looks for an accelerator in many places and must not find this one.
    module.is_available = lambda: False
    # torch.manual_seed() uses both functions and warns if they are missing.
    module._is_in_bad_fork = lambda: False
    module.manual_seed_all = lambda seed: None
    # torch.distributed asks for it, and its groups are those of a CPU.
    torch._C._get_accelerator = lambda *unused: torch.device("cpu")
    if torch._C._get_privateuse1_backend_name() != BACKEND:
        torch._C._rename_privateuse1_backend(BACKEND)
    if not hasattr(torch, BACKEND):
        setattr(torch, BACKEND, module)


def emulated_device() -> torch.device:
    return torch.device(BACKEND, 0)


def is_emulated(device: Any) -> bool:
    """Whether an argument that names a device names the emulated one."""
    if isinstance(device, torch.device):
        return device.type == BACKEND
    return isinstance(device, DeviceName)


class DeviceTensor(Tensor):
    """Memory of the emulated device."""

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    ready_at = 0.0
    """When the operation that writes the tensor ends, in emulated seconds; 0 if that is unknown."""

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return emulated_device()

    @property
    def is_cpu(self) -> bool:  # type: ignore[override]
        return False

    def record_stream(self, stream: Any) -> None:
        """Does nothing, because no allocator reuses memory that is in use."""

    def __deepcopy__(self, memo: dict[int, Any]) -> DeviceTensor:
        return to_device(self.clone())


class PendingTensor(Tensor):
    """Memory of the host that a copy from the device writes to."""

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    ready_at: float
    """The time when the copy is done, in emulated seconds."""


class ForcedLogits(DeviceTensor):
    """int64 [n, 1], the most likely token of each row of logits that do not exist."""

    vocab_size: int


class HostLogits(ForcedLogits):
    """Forced logits for a device that is the host itself."""

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return torch.device("cpu")

    @property
    def is_cpu(self) -> bool:  # type: ignore[override]
        return True


def to_device(tensor: Tensor) -> DeviceTensor:
    """Moves a tensor to the device and returns the same object."""
    if not isinstance(tensor, DeviceTensor):
        tensor.__class__ = DeviceTensor
    return tensor  # type: ignore[return-value]


def to_host(tensor: Tensor) -> Tensor:
    """Moves a tensor to the host and returns the same object."""
    tensor.__class__ = Tensor
    return tensor


def pending(tensor: Tensor, ready_at: float) -> Tensor:
    """Moves a tensor to the host and returns the same object, not to be read before `ready_at`, in emulated seconds."""
    tensor.__class__ = PendingTensor
    tensor.ready_at = ready_at  # type: ignore[attr-defined]
    return tensor


def forced_logits(tokens: Tensor, vocab_size: int, kind: type[ForcedLogits] = ForcedLogits) -> ForcedLogits:
    """Logits whose most likely tokens are `tokens`, int64 [n]."""
    made = tokens.detach().reshape(-1, 1).clone()
    made.__class__ = kind
    made.vocab_size = vocab_size  # type: ignore[attr-defined]
    return made  # type: ignore[return-value]
