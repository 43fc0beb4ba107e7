"""What a long command has started ends with it, also where it is told to stop rather than interrupted."""

from __future__ import annotations

import signal
from types import FrameType


def exit_on_sigterm() -> None:
    """From now on SIGTERM raises SystemExit in the main thread, with the status that shells give, so that whatever is open
    is closed: servers are stopped, files are whole. To be called in the main thread, once, by commands alone."""
    signal.signal(signal.SIGTERM, _exit)


def _exit(number: int, frame: FrameType | None) -> None:
    del frame
    raise SystemExit(128 + number)
