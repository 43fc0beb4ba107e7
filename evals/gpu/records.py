"""The file results.json of a trip: written at every record, so that a run that is killed leaves what it has."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import Any

from agentspec.environment import describe, without_folders
from agentspec.evals.page.served_rows import gpu_rows

Record = dict[str, Any]
_PACKAGES = ("agentspec", "sglang", "sglang-kernel", "torch", "triton", "transformers", "numpy")


class Results:
    """The records of one trip, of all its commands.

    Args:
        path: The file. What an earlier command of the trip wrote is kept.
        facts: What holds for all records, such as the trip and the commit.
    """

    def __init__(self, path: Path, facts: Record) -> None:
        self._path, self._facts, self._context = path, facts, context()
        old = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
        self.phases: list[Record] = old.get("phases", [])
        self.records: list[Record] = old.get("records", [])

    def add(self, record: Record) -> None:
        """Keeps a record at once."""
        self.records.append(record)
        self._save()

    def begin(self, phase: str) -> None:
        """Notes that a phase began. Until end() it counts as incomplete."""
        self.phases.append({"name": phase, "complete": False, "began": time.time()})
        self._save()

    def end(self, error: str = "") -> None:
        """Notes how the latest phase ended."""
        last = self.phases[-1]
        last["seconds"] = round(time.time() - last.pop("began"), 1)
        last["complete"] = not error
        if error:
            last["error"] = without_folders(error)
        self._save()

    def table(self) -> str:
        """For people: the checks, the replays as the page of results shows them, and the phases."""
        lines = []
        for record in self.records:
            rest = {key: value for key, value in record.items() if key not in ("part", "met", "examples", "backend")}
            if record["part"] in ("smoke", "parity", "sampling", "profile"):
                verdict = "FAILED" if "error" in record or not record.get("met", True) else "passed"
                lines.append(f"{record['part']}: {verdict} {rest}"[:600])
            elif "error" in record:
                lines.append(f"{record['part']} {record['system']} failed: {record['error'][-300:]}")
        for row in gpu_rows({"results.json": {"records": self.records}}):
            lines.append(f"{row.workload}: {row.system} {row.figure} {row.baseline}".rstrip())
        for phase in self.phases:
            said = "complete" if phase["complete"] else f"INCOMPLETE: {str(phase.get('error', ''))[:300]}"
            lines.append(f"phase {phase['name']}: {phase.get('seconds', 0.0)} s, {said}")
        return "\n".join(lines)

    def _save(self) -> None:
        content = {**self._facts, "phases": self.phases, "records": self.records, **self._context}
        part = self._path.with_suffix(".part")
        part.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
        part.replace(self._path)


def context() -> Record:
    """The command, the versions and the hardware with its GPU."""
    found = describe(_PACKAGES)
    import torch

    if torch.cuda.is_available():
        facts = torch.cuda.get_device_properties(0)
        found["hardware"]["gpu"] = {
            "name": facts.name,
            "memory_gib": round(facts.total_memory / (1 << 30), 1),
            "cuda": torch.version.cuda,
            "driver": _driver(),
        }
    return found


def device_gigabytes() -> float:
    """The GPU's memory in gigabytes; 0 without one."""
    import torch

    return torch.cuda.get_device_properties(0).total_memory / 1e9 if torch.cuda.is_available() else 0.0


def _driver() -> str:
    path = Path("/proc/driver/nvidia/version")
    found = re.search(r"\b\d{3}\.\d[\d.]*", path.read_text()) if path.is_file() else None
    return found[0] if found else "unknown"
