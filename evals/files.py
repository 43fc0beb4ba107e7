"""The folders and files of a bench: where it works, and what it writes."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from agentspec.errors import ConfigError
from agentspec.record_file import write_json

__all__ = ["drawing", "plugin_site", "work_folder", "write_json", "write_text"]


@contextmanager
def work_folder(logs: Path | None, prefix: str = "agentspec-bench-") -> Iterator[tuple[Path, Path]]:
    """A folder that is removed at the end, and the folder for logs: `logs` if it is given, else the first one."""
    with tempfile.TemporaryDirectory(prefix=prefix) as text:
        folder = Path(text)
        logs = logs or folder
        logs.mkdir(parents=True, exist_ok=True)
        yield folder, logs


def write_text(path: Path | None, text: str) -> None:
    """Writes a text and a final newline to a file; None: writes nothing."""
    if path is not None:
        path.write_text(text + "\n", encoding="utf-8")


def plugin_site(site: Path, name: str, module: str) -> Path:
    """Makes a folder for PYTHONPATH whose entry point makes SGLang load the function `register` of a module."""
    info = site / f"agentspec_{name}-1.0.dist-info"
    info.mkdir(parents=True, exist_ok=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: agentspec-{name.replace('_', '-')}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[sglang.srt.plugins]\nagentspec_{name} = {module}:register\n")
    return site


@contextmanager
def drawing(path: Path, size: tuple[float, float]) -> Iterator[Any]:
    """A matplotlib figure of `size` inches, which is saved to a .png or .svg file at the end. Equal figures give equal
    files.

    Raises:
        ConfigError: matplotlib is not installed.
    """
    try:
        from matplotlib import rc_context
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ConfigError("drawing needs matplotlib; `pip install 'sglang-agentspec[plots]'`") from error
    # Without the date and random ids.
    with rc_context({"svg.hashsalt": "agentspec"}):
        figure = Figure(figsize=size, layout="constrained")
        yield figure
        figure.savefig(path, dpi=120, metadata={"Date": None} if path.suffix == ".svg" else None)
