"""Servers of one GPU start in turn, and samples of their schedulers are summed up."""

from __future__ import annotations

import fcntl
import threading
from pathlib import Path

import pytest

from agentspec.evals.gpu import start_lock
from agentspec.evals.gpu.steps import inclusive


def test_a_server_waits_for_the_one_that_starts_but_not_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "lock"
    with path.open("w") as first, path.open("w") as second:
        start_lock._take(first.fileno())
        with pytest.raises(BlockingIOError):
            fcntl.flock(second, fcntl.LOCK_EX | fcntl.LOCK_NB)
        waiting = threading.Thread(target=start_lock._take, args=(second.fileno(),))
        waiting.start()
        fcntl.flock(first, fcntl.LOCK_UN)
        waiting.join(20.0)
        assert not waiting.is_alive()
        with pytest.raises(BlockingIOError):
            fcntl.flock(first, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # The second one hangs.
        monkeypatch.setattr(start_lock, "_PATIENCE", 0.3)
        start_lock._take(first.fileno())


def test_a_function_counts_once_a_sample() -> None:
    found = inclusive("main;loop;step 3\nmain;loop;loop 1\n")
    assert found == {"samples": 4, "shares": {"main": 1.0, "loop": 1.0, "step": 0.75}}
