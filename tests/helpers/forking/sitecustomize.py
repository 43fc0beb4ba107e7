"""Makes SGLang fork its processes instead of spawning them, in tests that put this folder on PYTHONPATH.

Starting a server is mostly imports, and SGLang spawns two more interpreters that import everything again. A fork takes
a third of the CPU time. Other tests use servers that spawn, to test what a spawned scheduler finds when it starts.
"""

from __future__ import annotations

import sys

if "sglang.launch_server" in sys.orig_argv:
    import multiprocessing
    import os

    if os.environ.get("TEST_WITHOUT_SERVERS"):
        sys.exit("a test that starts a server must be marked `server`, and this one is not")

    _set_start_method = multiprocessing.set_start_method

    def _fork(method: str | None, force: bool = False) -> None:
        _set_start_method("fork" if method == "spawn" else method, force)

    multiprocessing.set_start_method = _fork
