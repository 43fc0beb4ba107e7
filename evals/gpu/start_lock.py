"""An SGLang plugin: servers of one GPU load weights and capture graphs one after another.

Each of them reads from the device how much memory is left to it, which is wrong while another one takes its own. The run
creates the entry point that loads the plugin; the plugin is never part of an installation.
"""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path
from typing import Any

VARIABLE = "GPU_START_LOCK"
"""Names the file that is locked."""
_PATIENCE = 100.0
"""Seconds after which a server starts without the lock."""


def register() -> None:
    """Called by SGLang in each of its processes."""
    from sglang.srt.managers.scheduler import Scheduler

    make = Scheduler.init_model_worker

    def make_alone(self: Any) -> None:
        with Path(os.environ[VARIABLE]).open("w") as lock:
            _take(lock.fileno())
            make(self)

    Scheduler.init_model_worker = make_alone


def _take(lock: int) -> None:
    """Locks an open file, unless another server hangs while it holds the lock."""
    end = time.monotonic() + _PATIENCE
    while time.monotonic() < end:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(0.1)
        else:
            return
