"""The run as a whole, without a server: what is planned, left out, kept and resumed, and what the script calls."""

from __future__ import annotations

import json
import subprocess
import tarfile
from pathlib import Path
from typing import Any

import pytest

from agentspec.errors import ConfigError
from agentspec.evals.gpu import run
from agentspec.evals.gpu.plan import CALLS, PARTS, Task, fits, plan
from agentspec.evals.gpu.run import main
from agentspec.evals.gpu.servers import BACKENDS, SYSTEMS
from agentspec.evals.gpu.trip import Results
from agentspec.evals.gpu.work import TRACES

SCRIPT = Path(run.__file__).with_name("device_script.sh")
ROW = {"part": "replay", "size": "tiny", "backend": "cpu", "trace": "sql", "concurrency": 1, "accept_length": 1.0}


def test_the_plan_covers_what_is_to_be_measured() -> None:
    tasks = plan()
    assert {task.part for task in tasks} == set(PARTS) and {task.call for task in tasks} == set(CALLS)
    assert len({task.name for task in tasks}) == len(tasks)
    replays = [task for task in tasks if task.part == "replay"]
    for size in ("llama-8b", "qwen-32b"):
        found = [task for task in replays if task.size == size]
        assert {system for task in found for system in task.systems} == set(SYSTEMS)
        assert {"sql", "swe"} <= {trace for task in found for trace in task.traces}
    assert {task.backend for task in replays} == set(BACKENDS)
    assert {trace for task in replays for trace in task.traces} == set(TRACES)
    # Predictions need a profile, and the measurements that they are compared with.
    for number, task in enumerate(tasks):
        if task.part == "predict":
            before = {(other.part, other.size) for other in tasks[:number]}
            assert {("replay", task.size), ("profile", task.size)} <= before


def test_tasks_are_chosen_by_call_part_and_size() -> None:
    assert {task.call for task in plan(calls=[2])} == {2}
    assert {task.part for task in plan(parts=["profile"])} == {"profile"}
    assert {task.size for task in plan(sizes=["qwen-32b"])} == {"", "qwen-32b"}
    with pytest.raises(ConfigError, match="--part must be one of parity"):
        plan(parts=["prophecy"])
    assert not fits(Task(part="parity", call=1, seconds=100), 80) and fits(Task(part="replay", call=1, seconds=100), 80)


def done_by(tasks: list[str], monkeypatch: pytest.MonkeyPatch, rate: float = 10.0) -> None:
    """Replaces the measurements: notes which ones are asked for, and gives a record for each system."""

    def compare(trip: Any, size: Any, backend: Any, systems: Any, works: Any, on_record: Any) -> bool:
        tasks.append("+".join(systems))
        for system in systems:
            on_record({**ROW, "system": system, "tokens_per_second": rate})
        return True

    monkeypatch.setattr(run, "compare", compare)
    monkeypatch.setattr(run, "_works", lambda trip, size: dict.fromkeys(TRACES))


def test_what_is_done_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[str] = []
    done_by(asked, monkeypatch)
    words = ["--dry-run", "--part", "replay", "--out", str(tmp_path)]
    assert main([*words, "--call", "1"]) == 0
    assert main(words) == 0
    assert asked == ["none+suffix", "eagle3+hybrid", "ngram"]
    content = json.loads((tmp_path / "results.json").read_text())
    assert [record["system"] for records in content["tasks"].values() for record in records] == [
        *("none", "suffix", "eagle3", "hybrid", "ngram")
    ]
    assert {"command", "versions", "hardware"} <= set(content) and content["settings"]["dry_run"] is True
    # The table comes last, and compares each system with plain decoding.
    assert "1.00" in capsys.readouterr().out.splitlines()[-1] or (tmp_path / "table.txt").read_text().count("1.00")
    with pytest.raises(ConfigError, match="same settings"):
        Results(tmp_path / "results.json", {"quick": True})


def test_what_no_longer_fits_is_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--dry-run", "--minutes", "0", "--out", str(tmp_path)]) == 0
    assert "left out: parity" in capsys.readouterr().out


def test_failures_are_told_and_the_rest_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    done_by(asked, monkeypatch)

    def broken(*args: Any) -> Any:
        raise OSError("the server is gone")

    monkeypatch.setattr(run, "measure_profile", broken)
    words = ["--dry-run", "--out", str(tmp_path), "--part", "replay", "--part", "profile"]
    assert main(words) == 1
    assert len(asked) == 3
    assert "server is gone" in (tmp_path / "table.txt").read_text()
    # Only what failed is tried again.
    monkeypatch.setattr(run, "measure_profile", lambda *rest: {"part": "none"})
    assert main(words) == 0
    assert len(asked) == 3


@pytest.mark.parametrize(
    "words", [["--part", "prepare"], ["--head-accept-length", "9"], ["--call", "4"], ["--size", "huge"]]
)
def test_wrong_arguments(words: list[str], tmp_path: Path) -> None:
    assert main([*words, "--out", str(tmp_path), "--data", str(tmp_path)]) == 2


def test_a_call_of_the_script_unpacks_builds_runs_and_brings_back(tmp_path: Path) -> None:
    carried, state, out = (tmp_path / name for name in ("carried", "state", "out"))
    carried.mkdir()
    for name, file in (("site.tar.xz", "sglang.py"), ("data.tar.xz", "work.npz")):
        source = tmp_path / file
        source.write_text(file)
        with tarfile.open(carried / name, "w:xz") as archive:
            archive.add(source, file)
    whole = (carried / "site.tar.xz").read_bytes()
    (carried / "site.tar.xz").unlink()
    for number, part in enumerate((whole[:50], whole[50:])):
        (carried / f"site.tar.xz.{number:02}").write_bytes(part)
    # A stand-in for Python on that machine, which notes its arguments.
    python = tmp_path / "python"
    python.write_text('#!/bin/bash\necho "$@" >> "$NOTES"\nmkdir -p run/logs; echo {} > run/results.json\n')
    python.chmod(0o755)
    notes = tmp_path / "notes"
    environment = {
        "PATH": "/usr/bin:/bin", "GPU_RUN_CARRIED": str(carried), "GPU_RUN_STATE": str(state), "OUT": str(out),
        "PYTHON": str(python), "NOTES": str(notes),
    }  # fmt: skip
    for call in ("1", "2"):
        subprocess.run(["bash", str(SCRIPT), call], check=True, env=environment, capture_output=True, cwd=tmp_path)
    assert (state / "site" / "sglang.py").read_text() == "sglang.py"
    assert (state / "data" / "work.npz").read_text() == "work.npz"
    assert {path.name for path in out.iterdir()} == {"results.json", "logs.tar.gz"}
    built, first, second = notes.read_text().splitlines()
    # The package is built once for both calls.
    assert "pip install" in built and "--no-build-isolation" in built
    for call, line in ((1, first), (2, second)):
        words = line.split()
        args = run.parser().parse_args(words[words.index("agentspec.evals.gpu") + 1 :])
        assert args.call == [call] and 8.0 < args.minutes < 9.2 and args.data == state / "data"


def test_the_script_for_the_machine_is_sound(tmp_path: Path) -> None:
    subprocess.run(["bash", "-n", str(SCRIPT)], check=True)
    told = subprocess.run(["bash", str(SCRIPT)], check=False, capture_output=True, text=True)
    assert told.returncode == 2 and "stage" in told.stdout
    carried, state = tmp_path / "carried", tmp_path / "state"
    carried.mkdir()
    (carried / "site.tar.xz.00").write_bytes(b"part")
    environment = {"PATH": "/usr/bin:/bin", "GPU_RUN_CARRIED": str(carried), "GPU_RUN_STATE": str(state)}
    subprocess.run(["bash", str(SCRIPT), "stage"], check=True, env=environment, capture_output=True)
    assert (state / "archives" / "site.tar.xz.00").read_bytes() == b"part"
