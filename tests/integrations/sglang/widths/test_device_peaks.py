"""The peak figures of this machine's CPU."""

from __future__ import annotations

import pytest
import torch

from agentspec.integrations.sglang.widths import device_peaks
from agentspec.integrations.sglang.widths.device_peaks import measured_peaks


def test_peaks_are_those_of_the_fastest_run(monkeypatch: pytest.MonkeyPatch) -> None:
    # Each product takes 1 ms for its first size and eight times as long for each further one; a copy takes 0.1 s.
    seconds = iter([1e-3, 8e-3, 64e-3, 0.1])
    monkeypatch.setattr(device_peaks, "_COPIED_BYTES", 1 << 20)
    monkeypatch.setattr(device_peaks, "_least_seconds", lambda device, run: (run(), next(seconds))[1])
    peaks = measured_peaks(torch.device("cpu"), torch.float32)
    assert peaks.flops == pytest.approx(2 * 256**3 / 1e-3)
    assert peaks.bandwidth == pytest.approx(2 * (1 << 20) / 0.1)


def test_a_copy_that_does_not_fit_is_made_smaller(monkeypatch: pytest.MonkeyPatch) -> None:
    ones = torch.ones

    def limited(size: int, **settings: object) -> torch.Tensor:
        if isinstance(size, int) and size > 3 << 20:
            raise torch.OutOfMemoryError
        return ones(size, **settings)  # type: ignore[call-overload]

    monkeypatch.setattr(torch, "ones", limited)
    assert 1e6 < measured_peaks(torch.device("cpu"), torch.float32).bandwidth < 1e13
