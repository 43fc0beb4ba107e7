"""The folders and files of a bench: where it works, and what it writes."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from agentspec.record_file import write_json

__all__ = ["plugin_site", "work_folder", "write_json", "write_text"]


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
