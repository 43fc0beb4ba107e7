"""How busy the GPU is while servers are measured, by the driver's own count.

nvidia-smi's utilization is the share of the time since its last sample in which a kernel ran. It says nothing of how
much of the chip a kernel uses. Beside it, records of agentspec give `verify_share`: verification by the device's clock
over the time of the steps. The first counts prefills and drafters too, the second what a step waits for the CPU.
"""

from __future__ import annotations

import shutil
import statistics
import subprocess
import threading
import time
from types import TracebackType
from typing import Self

_COMMAND = ("nvidia-smi", "--query-gpu=utilization.gpu", "--format=csv,noheader,nounits", "-lms", "100")


class BusyMeter:
    """Samples while it is entered; without nvidia-smi it knows nothing."""

    def __init__(self) -> None:
        self._samples: list[tuple[float, float]] = []
        self._process: subprocess.Popen[str] | None = None
        self._reader: threading.Thread | None = None

    def __enter__(self) -> Self:
        if shutil.which(_COMMAND[0]):
            self._process = subprocess.Popen(_COMMAND, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
            self._reader = threading.Thread(target=self._read, daemon=True)
            self._reader.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait()
        if self._reader is not None:
            self._reader.join(timeout=5.0)

    def share(self, since: float, until: float) -> float | None:
        """The mean share of that time, by time.monotonic(), in which the GPU ran something; None without a sample."""
        # A sample is about the time before it.
        values = [value for at, value in list(self._samples) if since + 0.2 <= at <= until]
        return round(statistics.fmean(values) / 100.0, 3) if values else None

    def _read(self) -> None:
        assert self._process is not None and self._process.stdout is not None
        for line in self._process.stdout:
            try:
                self._samples.append((time.monotonic(), float(line.split(",")[0])))
            except ValueError:
                continue
