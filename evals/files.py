"""The folders and files of a bench: where it works, and what it writes."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from agentspec.record_file import write_json

__all__ = ["commit", "plugin_path", "work_folder", "write_json", "write_lines"]


@contextmanager
def work_folder(logs: Path | None) -> Iterator[tuple[Path, Path]]:
    """A folder that is removed at the end, and the folder for logs: `logs` if it is given, else the first one."""
    with tempfile.TemporaryDirectory(prefix="agentspec-bench-") as text:
        folder = Path(text)
        logs = logs or folder
        logs.mkdir(parents=True, exist_ok=True)
        yield folder, logs


def write_lines(path: Path, head: Mapping[str, Any], records: Iterable[Mapping[str, Any]]) -> None:
    """Replaces a file at once by a JSON object: what `head` holds, and `records`, one a line."""
    lines = ",\n".join(json.dumps(record) for record in records)
    fields = "".join(f"{json.dumps(name)}: {json.dumps(value)},\n" for name, value in head.items())
    part = path.with_name(path.name + ".part")
    part.write_text(f'{{{fields}"records": [\n{lines}\n]}}\n', encoding="utf-8")
    part.replace(path)


def commit() -> str | None:
    """The project's commit, or None where there is no repository."""
    words = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty"]
    try:
        return subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None


def plugin_path(folder: Path, modules: Sequence[str]) -> str:
    """PYTHONPATH with which SGLang's processes load plugins: the function `register` of each module. Their entry points are
    made in the folder."""
    from agentspec.integrations.sglang_cpu import activate, environment

    sites = []
    for module in modules:
        name = module.rpartition(".")[2]
        sites.append(folder / f"{name}-site")
        info = sites[-1] / f"agentspec_{name}-1.0.dist-info"
        info.mkdir(parents=True, exist_ok=True)
        about = f"Metadata-Version: 2.1\nName: agentspec-{name.replace('_', '-')}\nVersion: 1.0\n"
        (info / "METADATA").write_text(about)
        (info / "entry_points.txt").write_text(f"[sglang.srt.plugins]\nagentspec_{name} = {module}:register\n")
    kept = environment()["PYTHONPATH"] if activate() else os.environ.get("PYTHONPATH", "")
    return os.pathsep.join(filter(None, (*map(str, sites), kept)))
