"""Measures what a device computes and reads at most: the figures of the roofline (SSSD, section 3.2)."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

_SIZES = (256, 512, 1024, 2048, 4096, 8192)
_ENOUGH_SECONDS = 0.02
"""Products that take longer are not made larger: the device is busy then."""
_REPEATS = 5
_COPIED_BYTES = 256 << 20
"""More than the caches of any device hold."""


@dataclass(frozen=True, slots=True)
class DevicePeaks:
    """The most that was seen. A model's steps reach less."""

    flops: float
    """Floating-point operations per second, in products of square matrices of the model's type."""
    bandwidth: float
    """Bytes per second, read and written, in copies within the device's memory."""


def measured_peaks(device: torch.device, dtype: torch.dtype) -> DevicePeaks:
    """Measures a device that is otherwise idle. Takes about a second and 512 MiB of its memory at most.

    Where the device lacks that memory, smaller arrays are measured.

    Raises:
        RuntimeError: The device does not even hold the smallest arrays.
    """
    flops = 0.0
    for size in _SIZES:
        seconds = _product_seconds(device, dtype, size)
        flops = max(flops, 2.0 * size**3 / seconds)
        if seconds > _ENOUGH_SECONDS:
            break
    return DevicePeaks(flops, _bandwidth(device))


def _product_seconds(device: torch.device, dtype: torch.dtype, size: int) -> float:
    matrix = torch.ones((size, size), dtype=dtype, device=device)
    return _least_seconds(device, lambda: matrix @ matrix)


def _bandwidth(device: torch.device) -> float:
    copied = _COPIED_BYTES
    while True:
        try:
            return 2.0 * copied / _copy_seconds(device, copied)
        except torch.OutOfMemoryError:
            if copied <= 1 << 20:
                raise
            copied //= 2


def _copy_seconds(device: torch.device, copied: int) -> float:
    source = torch.ones(copied, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return _least_seconds(device, lambda: target.copy_(source))


def _least_seconds(device: torch.device, run: Callable[[], object]) -> float:
    """The seconds of the fastest run. The first one, which may set things up, is left out."""
    synchronize = torch.get_device_module(device).synchronize
    found = []
    for _ in range(1 + _REPEATS):
        synchronize()
        begun = time.perf_counter()
        run()
        synchronize()
        found.append(time.perf_counter() - begun)
    return max(min(found[1:]), 1e-9)
