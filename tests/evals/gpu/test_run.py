"""A trip as a whole, without a server: the plan, deadlines, what a killed run leaves, and the script of the host."""

from __future__ import annotations

import json
import subprocess
import tarfile
from pathlib import Path
from typing import Any, ClassVar

import pytest

from agentspec.evals.gpu import __main__ as command
from agentspec.evals.gpu.correct import CheckFailedError
from agentspec.evals.gpu.records import Results
from agentspec.evals.gpu.run import OutOfTimeError
from agentspec.evals.gpu.servers import SYSTEMS
from agentspec.evals.gpu.trips import LENT_SECONDS, TRIPS, next_trip

SCRIPT = Path(command.__file__).with_name("device.sh")
MOST_SECONDS = 600.0
"""Of one command on the host."""


def test_every_trip_fits_a_loan() -> None:
    for trip in TRIPS:
        assert trip.seconds < LENT_SECONDS
        assert sum(phase.seconds for phase in trip.phases) <= trip.limit < MOST_SECONDS
        limits = [phase.limit for phase in trip.phases]
        assert limits == sorted(limits)
        assert set(trip.systems) <= set(SYSTEMS)


def test_committed_results_say_which_trip_is_next(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def commit(number: int, *incomplete: str) -> None:
        trip = next(trip for trip in TRIPS if trip.number == number)
        names = [phase.name for phase in trip.phases]
        phases = [{"name": name, "complete": name not in incomplete} for name in names]
        (tmp_path / f"trip-{number}.json").write_text(json.dumps({"phases": phases}))

    found = next_trip(tmp_path)
    assert found is not None and found.number == 1
    commit(1, "parity")
    assert next_trip(tmp_path) == found
    commit(1)
    assert command.main(["--next", "--results", str(tmp_path)]) == 0
    assert "device.sh 2 " in capsys.readouterr().out
    for trip in TRIPS[1:]:
        commit(trip.number)
    assert next_trip(tmp_path) is None
    assert command.main(["--plan"]) == 0
    assert capsys.readouterr().out.count("Trip ") == len(TRIPS)


def test_a_killed_run_leaves_its_records(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    results = Results(path, {"trip": 1})
    results.begin("smoke")
    results.end()
    results.begin("parity")
    results.add({"part": "parity", "system": "suffix", "met": True})
    # Nothing else is written: the process is killed here. A further command goes on in the same file.
    again = Results(path, {"trip": 1})
    assert [phase["complete"] for phase in again.phases] == [True, False]
    assert again.records == results.records
    assert {"command", "versions", "hardware", "trip"} <= set(json.loads(path.read_text()))


class StandIn:
    """In place of servers: notes which systems are replayed."""

    asked: ClassVar[list[str]] = []
    error: ClassVar[Exception | None] = None

    def __init__(self, run: Any, systems: list[str], started: list[Any]) -> None:
        self.systems = systems

    def replay(self, run: Any) -> None:
        self.asked.append("+".join(self.systems))
        for system in self.systems:
            run.results.add({"part": "replay", "system": system, "size": "llama-8b", "trace": "sql", "clients": 1,
                             "repetition": 0, "calls": 1, "tokens_per_second": 10.0 * len(system), "accept_length": 1.0})  # fmt: skip
        if self.error is not None:
            raise self.error


def run_with(
    monkeypatch: pytest.MonkeyPatch, out: Path, *, right: Exception | None = None, replay: Exception | None = None
) -> list[str]:
    """Runs trip 1 on a host with 80 GB; its exit status and the systems that were replayed."""

    def check_right(run: Any, limits: Any) -> None:
        if right is not None:
            raise right
        for name in ("parity", "sampling"):
            run.results.end()
            run.results.begin(name)

    monkeypatch.setattr(command, "check_right", check_right)
    monkeypatch.setattr(command, "Servers", StandIn)
    monkeypatch.setattr(command, "replay_servers", lambda run, systems: [])
    for name in ("sample", "trace"):
        monkeypatch.setattr(command, name, lambda run, servers: None)
    monkeypatch.setattr(command, "device_gigabytes", lambda: 85.5)
    monkeypatch.setattr(StandIn, "asked", [])
    monkeypatch.setattr(StandIn, "error", replay)
    status = command.main(["--trip", "1", "--out", str(out), "--data", str(out)])
    return [str(status), *StandIn.asked]


def test_a_phase_that_fails_is_told_and_the_others_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # As many servers side by side as fit.
    groups = ["none+suffix+hybrid", "eagle3+ngram"]
    wrong, late = CheckFailedError("parity was missed"), OutOfTimeError("0 s were left")
    assert run_with(monkeypatch, tmp_path, right=wrong, replay=late) == ["1", *groups]
    content = json.loads((tmp_path / "results.json").read_text())
    said = {phase["name"]: phase.get("error", "") for phase in content["phases"]}
    assert "parity was missed" in said["smoke"] and "0 s were left" in said["replay"]
    assert len(content["records"]) == 5
    table = (tmp_path / "table.txt").read_text()
    assert "INCOMPLETE: 0 s were left" in table
    assert "SQL agents, 1 client, 1 calls: suffix drafts 60 tokens/s (1.00) 1.50 x plain" in table
    assert run_with(monkeypatch, tmp_path / "other") == ["0", *groups]


@pytest.mark.parametrize("words", [[], ["--trip", "9"], ["--prepare"], ["--trip", "1", "--dry-run"]])
def test_wrong_arguments(words: list[str], tmp_path: Path) -> None:
    assert command.main([*words, "--out", str(tmp_path), "--data", str(tmp_path)]) == 2


def test_the_script_unpacks_once_runs_and_brings_back(tmp_path: Path) -> None:
    root, state, out = (tmp_path / name for name in ("root", "state", "out"))
    carried = root / ".gpu" / "carried"
    carried.mkdir(parents=True)
    (root / "evals" / "gpu").mkdir(parents=True)
    script = root / "evals" / "gpu" / SCRIPT.name
    script.write_bytes(SCRIPT.read_bytes())
    for name, file in (("sglang.tar.xz", "site/sglang.py"), ("agentspec.tar.xz", "data/work.npz")):
        source = tmp_path / "file"
        source.write_text(file)
        with tarfile.open(carried / name, "w:xz") as archive:
            archive.add(source, file)
    (carried / "commit").write_text("abc\n")
    # A stand-in for Python on that host, which notes its arguments. The second call is killed by a signal.
    python = tmp_path / "python"
    python.write_text(
        '#!/bin/bash\necho "$GPU_RUN_COMMIT $@" >> "$NOTES"\n[ "$2" = compileall ] && exit\n'
        'mkdir -p "$OUT/logs"; echo "{}" >> "$OUT/results.json"\n[ $(wc -l < "$NOTES") -lt 3 ] || kill -9 $$\n'
    )
    python.chmod(0o755)
    notes = tmp_path / "notes"
    environment = {
        "PATH": "/usr/bin:/bin", "GPU_RUN_STATE": str(state), "OUT": str(out), "PYTHON": str(python), "NOTES": str(notes),
    }  # fmt: skip
    for number, status in (("1", 0), ("2", 137)):
        done = subprocess.run(["bash", str(script), number], env=environment, capture_output=True, check=False)
        assert done.returncode == status, done.stderr
    assert (state / "site" / "sglang.py").read_text() == "site/sglang.py"
    assert (state / "data" / "work.npz").read_text() == "data/work.npz"
    assert {path.name for path in out.iterdir()} == {"results.json", "logs-1.tar.gz", "logs-2.tar.gz"}
    compiled, first, second = notes.read_text().splitlines()
    assert "compileall" in compiled
    for trip, line in ((1, first), (2, second)):
        words = line.split()
        args = command.parser().parse_args(words[words.index("agentspec.evals.gpu") + 1 :])
        assert words[0] == "abc" and args.trip == trip and args.data == state / "data"
