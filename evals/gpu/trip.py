"""What the parts of a run share: folders, limits, and their records."""

from __future__ import annotations

import json
import shutil
import statistics
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from agentspec.environment import describe, without_folders
from agentspec.errors import AgentspecError, ConfigError
from agentspec.integrations.servers.server import Server
from agentspec.progress import say

_COMMAND = ("nvidia-smi", "--query-gpu=utilization.gpu", "--format=csv,noheader,nounits", "-lms", "100")


class BusyMeter:
    """How busy the GPU is, by the driver's count. It samples while it is entered; without nvidia-smi it has no samples.

    The utilization of nvidia-smi is the share of the time since its last sample in which a kernel ran. It does not say
    how much of the chip a kernel uses. Records of agentspec also have `verify_share`: verification by the device's
    clock over the time of the steps. The utilization includes prefills and draft models; verify_share includes the time
    in which a step waits for the CPU.
    """

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

    def __exit__(self, *exc_info: object) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait()
        if self._reader is not None:
            self._reader.join(timeout=5.0)

    def share(self, since: float, until: float) -> float | None:
        """The mean share of an interval of time.monotonic() in which the GPU ran something; None without a sample."""
        # A sample describes the time before it.
        values = [value for at, value in list(self._samples) if since + 0.2 <= at <= until]
        return round(statistics.fmean(values) / 100.0, 3) if values else None

    def _read(self) -> None:
        assert self._process is not None and self._process.stdout is not None
        for line in self._process.stdout:
            try:
                self._samples.append((time.monotonic(), float(line.split(",")[0])))
            except ValueError:
                continue


Record = dict[str, Any]
_PACKAGES = ("agentspec", "sglang", "torch", "triton", "flashinfer-python", "transformers", "numpy")


@dataclass(slots=True, kw_only=True)
class Trip:
    """One run of the command."""

    data: Path
    """What prepare made."""
    out: Path
    """Records, profiles and logs."""
    deadline: float = float("inf")
    """By time.monotonic()."""
    on_cpu: bool = False
    """A dry run: no GPU, no graphs, the small model."""
    quick: bool = False
    head_acceptance: float = 0.8
    """Probability with which a token of the simulated head is right."""
    head_accept_length: float = 4.0
    concurrencies: Sequence[int] = (1, 4, 16, 64)
    busy: BusyMeter = field(default_factory=BusyMeter)

    @property
    def logs(self) -> Path:
        return self.out / "logs"

    def seconds_left(self) -> float:
        return self.deadline - time.monotonic()

    @contextmanager
    def started(self, servers: Sequence[Server]) -> Iterator[list[Server | str]]:
        """Starts servers at the same time. A server that did not start is replaced by the reason. All are stopped at
        the end."""
        with ExitStack() as stack, ThreadPoolExecutor(max(len(servers), 1)) as pool:

            def start(server: Server) -> Server | str:
                try:
                    stack.enter_context(server)
                except (AgentspecError, OSError) as error:
                    return _reason(str(error))
                say(f"  {server.command[server.command.index('--model-path') + 1].rpartition('/')[2]} ready after "
                    f"{server.start_seconds:.0f} s")  # fmt: skip
                return server

            try:
                found = list(pool.map(start, servers))
            except BaseException:
                # Ending the run does not wait for servers that are still starting.
                for server in servers:
                    server.stop()
                raise
            yield found


class Results:
    """The file results.json: records of finished tasks, so that an interrupted run can go on."""

    def __init__(self, path: Path, settings: Record) -> None:
        """Reads the file. Raises ConfigError if it has other settings."""
        self._path = path
        self._settings = settings
        self.tasks: dict[str, list[Record]] = {}
        self.errors: dict[str, str] = {}
        if path.is_file():
            content = json.loads(path.read_text(encoding="utf-8"))
            if content["settings"] != settings:
                raise ConfigError(
                    f"{path} must be of the same settings, {settings}, got {content['settings']}; choose another --out"
                )
            self.tasks, self.errors = content["tasks"], content["errors"]

    @property
    def records(self) -> list[Record]:
        """Of all tasks, in the order in which they were done."""
        return [record for records in self.tasks.values() for record in records]

    def is_done(self, task: str) -> bool:
        """Whether nothing of the task is missing."""
        return (
            task in self.tasks and task not in self.errors and not any("error" in record for record in self.tasks[task])
        )

    def begin(self, task: str) -> None:
        """Drops what an earlier run has of the task."""
        self.tasks.pop(task, None)
        self.errors.pop(task, None)

    def keep(self, task: str, records: list[Record]) -> None:
        self.tasks[task] = records
        self.save()

    def fail(self, task: str, error: str) -> None:
        self.errors[task] = without_folders(error)
        self.save()

    def save(self) -> None:
        content = {
            "settings": self._settings,
            "tasks": self.tasks,
            "errors": self.errors,
            **context(),
        }
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
        }
    return found


def _reason(text: str) -> str:
    """The first line, and the last line that names an error."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    named = [line for line in lines[1:] if "Error" in line or "error:" in line]
    return without_folders(" ".join([*lines[:1], *named[-1:]]))[:600]
