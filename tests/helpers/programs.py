"""Programs that tests run."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any


def output_of(*command: str | Path, **options: Any) -> str:
    """What a program prints, which must succeed; `options` are those of subprocess.run()."""
    done = subprocess.run(command, check=False, capture_output=True, text=True, **{"timeout": 300, **options})
    assert done.returncode == 0, f"{' '.join(map(str, command))[:300]}: {done.stdout[-1000:]}{done.stderr[-3000:]}"
    return done.stdout
