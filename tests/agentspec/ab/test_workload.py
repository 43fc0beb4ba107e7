"""Workloads that are commands, and the results that they write."""

from __future__ import annotations

import json
import shlex
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agentspec.ab.command import SliceCommand, TaskCommand, run_process
from agentspec.ab.presets import preset
from agentspec.ab.workload import Target, filled, read_results
from agentspec.errors import ConfigError

PYTHON = shlex.quote(sys.executable)


def target(folder: Path) -> Target:
    return Target(base_url=lambda task: f"http://proxy/{task}/v1", model="m", folder=folder)


def test_names_are_replaced_within_words_and_other_braces_stay() -> None:
    words = filled("""run --url {url} '{"a": {task}}' x{task}y""", {"url": "http://h/v1", "task": "a b"})
    assert words == ["run", "--url", "http://h/v1", '{"a": a b}', "xa by"]
    with pytest.raises(ConfigError, match="words as a shell reads them"):
        filled("run 'open", {})


def test_braces_of_a_task_stay() -> None:
    assert filled("run {task} {seed}", {"task": "print {seed}", "seed": 7}) == ["run", "print {seed}", "7"]


def test_a_command_is_run_for_each_task_with_the_tasks_own_url(tmp_path: Path) -> None:
    code = "import sys; print(*sys.argv[1:]); sys.exit(sys.argv[2] == 'two')"
    command = TaskCommand(template=f"{PYTHON} -c {shlex.quote(code)} {{url}} {{task}}", tasks=["one", "two", "three"])
    results = command.run(0, 2, target(tmp_path))
    assert [(r.task, r.success, r.error) for r in results] == [("one", True, ""), ("two", False, "")]
    assert (tmp_path / "task-1/output.txt").read_text().split() == ["http://proxy/two/v1", "two"]
    assert all(result.seconds > 0 for result in results)


def test_a_command_that_cannot_run_or_does_not_end_is_no_failed_task_but_an_error(tmp_path: Path) -> None:
    missing = TaskCommand(template="/does/not/exist {url}", tasks=["t"]).run(0, 1, target(tmp_path))
    assert missing[0].success is None and "cannot be run" in missing[0].error
    code = shlex.quote("import time; time.sleep(60)")
    (tmp_path / "b").mkdir()
    endless = TaskCommand(template=f"{PYTHON} -c {code} {{url}}", tasks=["t"], timeout_s=0.5)
    assert "killed after 0.5 s" in endless.run(0, 1, target(tmp_path / "b"))[0].error


def test_processes_that_a_command_leaves_behind_are_ended(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    child = f"import time, pathlib; time.sleep(1.5); pathlib.Path({str(mark)!r}).touch()"
    code = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {child!r}])"
    assert run_process([sys.executable, "-c", code], tmp_path / "output.txt", 10).status == 0
    with pytest.raises(OSError):
        run_process(["sleep", "2"], tmp_path / "none/output.txt", 10)
    run_process(["sleep", "2"], tmp_path / "output.txt", 10)
    assert not mark.exists()


def test_a_run_that_is_told_to_stop_does_not_wait_for_its_tasks(tmp_path: Path) -> None:
    def stop(done: int) -> None:
        raise KeyboardInterrupt

    code = shlex.quote("import sys, time; time.sleep(60 if sys.argv[2] == 'long' else 1)")
    command = TaskCommand(template=f"{PYTHON} -c {code} {{url}} {{task}}", tasks=["short", "long"], concurrency=2)
    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        command.run(0, 2, replace(target(tmp_path), say=stop))
    assert time.monotonic() - began < 30


def test_a_command_without_a_url_is_refused() -> None:
    with pytest.raises(ConfigError, match="base URL"):
        TaskCommand(template="agent", tasks=["t"])
    with pytest.raises(ConfigError, match="{limit} or {end}"):
        SliceCommand(template="agent {url} {out} {skip}", count=3)


def test_a_slice_is_one_command_that_writes_its_results(tmp_path: Path) -> None:
    code = (
        "import json, sys; url, skip, limit, out = sys.argv[1:];"
        "open(out, 'w').write(''.join(json.dumps({'id': f't{i}', 'seconds': i + 0.5, 'outcome': 'correct'}) + '\\n'"
        " for i in range(int(skip), int(skip) + int(limit))))"
    )
    command = SliceCommand(template=f"{PYTHON} -c {shlex.quote(code)} {{url}} {{skip}} {{limit}} {{out}}", count=10)
    results = command.run(2, 3, target(tmp_path))
    assert [(r.task, r.seconds, r.success) for r in results] == [
        ("t2", 2.5, True),
        ("t3", 3.5, True),
        ("t4", 4.5, True),
    ]


def test_the_time_limit_of_a_slice_is_that_of_all_its_tasks(tmp_path: Path) -> None:
    code = shlex.quote("import sys, time; time.sleep(3); open(sys.argv[1], 'w')")
    command = SliceCommand(template=f"{PYTHON} -c {code} {{out}} {{url}} {{skip}} {{limit}}", count=10, timeout_s=2.0)
    assert command.run(0, 10, target(tmp_path)) == []


def test_a_slice_that_fails_ends_the_comparison_with_the_end_of_its_output(tmp_path: Path) -> None:
    code = shlex.quote("import sys; print('no such model'); sys.exit(2)")
    command = SliceCommand(template=f"{PYTHON} -c {code} {{url}} {{skip}} {{limit}} {{out}}", count=3)
    with pytest.raises(ConfigError, match="no such model"):
        command.run(0, 3, target(tmp_path))


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        (
            {"session": "s", "task": "db", "seconds": 2, "outside_seconds": 0.5, "outcome": "wrong"},
            ("s", 1.5, None, False),
        ),
        (
            {"id": "t", "seconds": 2, "model_seconds": 1, "command_seconds": 0.25, "outcome": "resolved"},
            ("t", 1, 0.25, True),
        ),
        ({"task": "t", "seconds": 2, "success": False}, ("t", None, None, False)),
        ({"task": "t", "seconds": 2, "outcome": "ungraded"}, ("t", None, None, None)),
    ],
)
def test_results_of_agentspecs_workflows_are_understood(
    record: dict[str, Any], expected: tuple[object, ...], tmp_path: Path
) -> None:
    for text in (json.dumps(record) + "\n", json.dumps([record]), json.dumps({"tasks": [record], "note": ""})):
        (tmp_path / "out").write_text(text)
        (found,) = read_results(tmp_path / "out")
        assert (found.task, found.model_seconds, found.tool_seconds, found.success) == expected


def test_results_may_hold_any_text_of_a_model(tmp_path: Path) -> None:
    (tmp_path / "out").write_text(
        "".join(f'{{"id": "{i}", "seconds": 1, "output": "a\u2028b\x85"}}\n' for i in range(2))
    )
    assert [result.task for result in read_results(tmp_path / "out")] == ["0", "1"]


def test_a_failed_task_is_an_error_with_its_reason(tmp_path: Path) -> None:
    (tmp_path / "out").write_text(json.dumps({"id": "t", "seconds": 1, "outcome": "error", "detail": "no answer"}))
    (found,) = read_results(tmp_path / "out")
    assert found.error == "no answer" and found.success is False


@pytest.mark.parametrize("text", ["", "nonsense", '{"id": "t"}', '{"seconds": 1}', "[3]"])
def test_results_without_a_task_or_seconds_are_refused(text: str, tmp_path: Path) -> None:
    if text:
        (tmp_path / "out").write_text(text)
    with pytest.raises(ConfigError, match="out"):
        read_results(tmp_path / "out")


def test_trajectories_of_mini_swe_agent_are_timed_by_their_messages(tmp_path: Path) -> None:
    messages = [{"role": "user"}, *({"role": "assistant", "extra": {"timestamp": 100.0 + i}} for i in range(3))]
    (tmp_path / "x").mkdir()
    trajectory = {"messages": messages, "info": {"exit_status": "Submitted"}}
    (tmp_path / "x/x.traj.json").write_text(json.dumps(trajectory))
    (found,) = read_results(tmp_path)
    assert (found.task, found.seconds, found.success, found.error) == ("x", 2.0, None, "")


def test_named_workloads_ask_for_what_they_need() -> None:
    for name, needed in (("sql", "--dataset"), ("openhands", "tasks --out"), ("nothing", "must be one of")):
        with pytest.raises(ConfigError, match=needed):
            preset(name)
    found = preset("mini-swe-agent", "--tasks folder", tasks=7)
    assert found.count == 7 and "--agent mini-swe-agent" in found.template
