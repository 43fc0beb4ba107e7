"""Runs: the reference solver end to end, a model that misbehaves, an agent that dies, and resuming."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from byte_tokenizer import byte_tokenizer
from chat_server import Reply, chat_server

from agentspec.analysis.logs.formats import calls_of
from agentspec.analysis.replay.traces import read_trace
from agentspec.errors import ConfigError, ServerError
from agentspec.workflows.swe.__main__ import main
from agentspec.workflows.swe.agents.agent_process import agent_python
from agentspec.workflows.swe.endpoint import Endpoint
from agentspec.workflows.swe.reference_solver import NAME, answers
from agentspec.workflows.swe.run import RunConfig, run_tasks
from agentspec.workflows.swe.tasks import Task
from agentspec.workflows.swe.workspace import Workspace, command_environment

SERVED = b'{"data": [{"id": "scripted"}]}'


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    with chat_server(lambda body: 500, models=SERVED) as url:
        yield Endpoint(base_url=url, model="scripted", timeout_s=1)


@pytest.mark.agents
def test_reference_solver_end_to_end(tasks: list[Task], agent_environment: str, tmp_path: Path) -> None:
    """Runs with one and with two tasks at a time have the same conversations, and the log readers can read them."""
    traces = []
    for concurrency in ("1", "2"):
        folder = tmp_path / f"run{concurrency}"
        traces.append(tmp_path / f"traces{concurrency}.jsonl")
        command = ["run", "--reference-solver", "--tasks", str(tasks[0].folder.parent), "--concurrency", concurrency]
        places = ["--workspace", str(tmp_path / "work"), "--trajectories", str(folder), "--traces", str(traces[-1])]
        assert main([*command, "--split", "warm", *places, "--json", str(tmp_path / "run.json")]) == 0
    warm = [task for task in tasks if task.split == "warm"]
    document = json.loads((tmp_path / "run.json").read_text())
    assert document["answered_by"] == NAME and "nothing about any model" in document["note"]
    assert [one["id"] for one in document["tasks"]] == [task.id for task in warm]
    assert document["summary"]["resolved"] == len(warm)
    assert document["summary"]["steps"] == sum(len(answers(task)) for task in warm)
    assert document["summary"]["completion_tokens"] > 0
    for one in document["tasks"]:
        assert 0 < one["model_seconds"] + one["command_seconds"] <= one["seconds"]
    assert traces[0].read_text() == traces[1].read_text()
    assert str(tmp_path) not in traces[0].read_text()
    # Working folders are gone, trajectories are there, and each reader finds every answer.
    assert not [path for path in (tmp_path / "work").iterdir() if not path.name.startswith(".")]
    calls = read_trace(str(traces[0]), byte_tokenizer()).calls
    assert len(calls) == document["summary"]["steps"]
    first = answers(warm[0])[0].encode()
    assert first in calls[0].output.astype(np.uint8).tobytes()
    found = sorted(path for path in (tmp_path / "run1").rglob("*") if path.is_file() and path.name[0] != ".")
    assert len(found) == len(warm)
    for path in found:
        name, logged = calls_of(json.loads(path.read_text()), "s")
        task = next(task for task in warm if path.name == f"{task.id}.traj.json")
        assert name == "mini-swe-agent" and [call.output for call in logged] == answers(task)


@pytest.mark.agents
def test_openhands_end_to_end(tasks: list[Task], openhands_environment: str, tmp_path: Path) -> None:
    """The OpenHands SDK reads our configuration and works on the tasks. Its logs are readable, and both runs equal."""
    traces = []
    warm = [task for task in tasks if task.split == "warm"]
    for concurrency in ("1", "2"):
        folder, out = tmp_path / f"run{concurrency}", tmp_path / "run.json"
        traces.append(tmp_path / f"traces{concurrency}.jsonl")
        command = ["run", "--agent", "openhands", "--agent-python", openhands_environment, "--reference-solver"]
        command += ["--tasks", str(tasks[0].folder.parent), "--split", "warm", "--concurrency", concurrency]
        places = ["--workspace", str(tmp_path / "work"), "--trajectories", str(folder), "--traces", str(traces[-1])]
        assert main([*command, *places, "--json", str(out), "--tenant", "acme"]) == 0
        document = json.loads(out.read_text())
        assert document["summary"]["resolved"] == len(warm)
        for one in document["tasks"]:
            assert one["exit_status"] == "Submitted" and 0 < one["model_seconds"] + one["command_seconds"]
            assert one["model_seconds"] + one["command_seconds"] <= one["seconds"]
    # What OpenHands' terminal shows of a command besides its output is a matter of timing.
    first, second = (
        [
            (run["session"], [message for message in run["messages"] if message["role"] == "assistant"])
            for run in map(json.loads, trace.read_text().splitlines())
        ]
        for trace in traces
    )
    assert first == second and all(answered for _, answered in first)
    for task in warm:
        logs = [json.loads(path.read_text()) for path in (tmp_path / "run1" / task.id / "calls").iterdir()]
        logs.sort(key=lambda log: float(log["timestamp"]))
        read = [calls_of(log, "s") for log in logs]
        assert {name for name, _ in read} == {"openhands"}
        # OpenHands asks the server to stop where a call's last line begins.
        assert [call.output for _, calls in read for call in calls] == [
            answer.removesuffix("</function>") for answer in answers(task, "function")
        ]
        for log in logs:
            assert log["kwargs"]["temperature"] == 0 and "reasoning_effort" not in log["kwargs"]
            assert log["kwargs"]["extra_body"]["cache_salt"] == "acme"


@pytest.mark.agents
def test_models_that_misbehave(tasks: list[Task], agent_environment: str, tmp_path: Path) -> None:
    def command(line: str) -> str:
        return f"```mswea_bash_command\n{line}\n```"

    package = tasks[1].repository
    hang = [f"echo 'while True: pass' > {package}/__init__.py", "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"]
    requests: list[tuple[Task, dict[str, Any]]] = []

    def script(body: dict[str, Any]) -> str | Reply:
        task = next(task for task in tasks if task.issue in body["messages"][1]["content"])
        requests.append((task, body))
        steps = sum(message["role"] == "assistant" for message in body["messages"])
        said: list[str | Reply] = [
            command("ls"),  # for ever
            command(hang[min(steps, 1)]),
            "I am not sure what to do.",
            Reply(body=b"<html>busy</html>"),
            Reply(seconds=6.0),
        ]
        return said[tasks.index(task)]

    config = RunConfig(concurrency=5, step_limit=4, test_timeout_s=1.5, tenants_by="repository")
    with chat_server(script, models=SERVED, key="key") as url:
        endpoint = Endpoint(base_url=url, model="scripted", timeout_s=4, retries=1, tenant="acme", api_key="key")
        run = run_tasks(tasks, endpoint, config, python=agent_environment, workspace=tmp_path / "work")
    outcomes = [(result.outcome, result.exit_status, result.steps) for result in run.results]
    assert outcomes[:3] == [
        ("unresolved", "LimitsExceeded", 4),
        ("unresolved", "Submitted", 2),
        ("unresolved", "RepeatedFormatError", 3),
    ]
    assert "took longer than 1.5 s" in run.results[1].detail
    assert [result.outcome for result in run.results[3:]] == ["error", "error"]
    assert "imeout" in run.results[4].detail
    assert run.summary()["error"] == 2 and run.summary()["resolved"] == 0
    for task, body in requests:
        assert body["model"] == "scripted" and body["temperature"] == 0
        assert body["cache_salt"] == f"acme/{task.repository}"
        assert "/testbed" not in body["messages"][1]["content"]
    # Only the client retries. Retries of the agent would multiply the client's.
    assert sum(task is tasks[4] for task, _ in requests) == 2


def _fake_agent(path: Path, body: str) -> str:
    """Writes an executable that replaces the agent's interpreter and everything that it would run."""
    path.write_text(f"#!/usr/bin/env python3\nimport json, sys\njob = json.load(sys.stdin)\n{body}\n")
    path.chmod(0o755)
    return str(path)


def _record(task: str, error: str = "") -> str:
    """A line of Python with which a stand-in says that a task has ended."""
    result: dict[str, Any] = {"exit_status": "LimitsExceeded", "error": error, "steps": 1, "prompt_tokens": 2}
    result |= {"completion_tokens": 3, "seconds": 4, "model_seconds": 1, "command_seconds": 1}
    return f"print(json.dumps({{'id': {task}['id'], **{result!r}}}), flush=True)"


def test_an_interrupted_run_goes_on(tasks: list[Task], endpoint: Endpoint, tmp_path: Path) -> None:
    seen: list[Any] = []

    def run(body: str, config: RunConfig | None = None) -> Any:
        return run_tasks(
            tasks,
            endpoint,
            config or RunConfig(),
            python=_fake_agent(tmp_path / "agent", body),
            workspace=tmp_path / "work",
            trajectories=tmp_path / "run",
            progress=lambda *event: seen.append(event),
        )

    # The agent ends two tasks, one of them in an error, and then dies.
    dying = f"first, second = job['tasks'][:2]\n{_record('first')}\n{_record('second', 'refused')}"
    with pytest.raises(ServerError, match="status 7.*\n.*gone"):
        run(f"{dying}\nprint('all is gone', file=sys.stderr)\nsys.exit(7)")
    assert [number for _, number, _ in seen] == [1, 2]
    with (tmp_path / "run" / ".results.jsonl").open("a") as file:
        file.write('{"id": "cut')
    finishing = f"for task in job['tasks']:\n    {_record('task')}"
    whole = run(finishing)
    assert whole.resumed == 1
    assert [result.id for result in whole.results] == [task.id for task in tasks]
    assert {result.outcome for result in whole.results} == {"unresolved"}
    # Nothing is left to do, so no agent is started.
    assert run("sys.exit(9)").resumed == len(tasks)
    with pytest.raises(ConfigError, match="other settings"):
        run(finishing, RunConfig(step_limit=3))


def test_agents_that_say_nothing(tasks: list[Task], endpoint: Endpoint, tmp_path: Path) -> None:
    python = _fake_agent(tmp_path / "agent", "")
    with pytest.raises(ServerError, match="without a word on 5 tasks"):
        run_tasks(tasks, endpoint, RunConfig(), python=python, workspace=tmp_path / "work")


def test_servers_that_are_none(tasks: list[Task], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["run", "--tasks", str(tasks[0].folder.parent), "--workspace", str(tmp_path), "--agent-python", "/bin/true"]
    nobody = "http://127.0.0.1:9/v1"
    for more, error in (
        (["--base-url", nobody, "--model", "m"], "no model server answers"),
        (["--base-url", nobody, "--reference-solver"], "answers by itself"),
        ([], "base URL must be"),
        (["--agent", "aider"], "one of mini-swe-agent, openhands, got 'aider'"),
        (["--tenants-by", "user"], "none, repository, task"),
        (["--concurrency", "0"], "above 0"),
        (["--split", "hot"], "split must be"),
    ):
        assert main([*flags, *more]) == 2
        assert error in capsys.readouterr().err
    for models, error in ((SERVED, "serves scripted, not m"), (b"<html>", "no list of models")):
        with chat_server(lambda body: "x", models=models) as url:
            assert main([*flags, "--base-url", url, "--model", "m"]) == 2
        assert error in capsys.readouterr().err


def test_a_run_from_a_hook_of_git_leaves_the_users_repository_alone(
    tasks: list[Task], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "mine.git"))
    with Workspace(tmp_path / "work") as place:
        assert (place.prepare(tasks[0]) / ".git").is_dir()
    assert not (tmp_path / "mine.git").exists()


def test_one_run_a_workspace(tasks: list[Task], tmp_path: Path) -> None:
    with Workspace(tmp_path) as place:
        folder = place.prepare(tasks[0])
        (folder / "left.txt").touch()
        assert not (place.prepare(tasks[0]) / "left.txt").exists()
        with pytest.raises(ConfigError, match="another run works in"), Workspace(tmp_path):
            pass
    with Workspace(tmp_path):
        pass


def test_a_folder_with_other_files_is_no_workspace(tmp_path: Path) -> None:
    (tmp_path / "mine").touch()
    with pytest.raises(ConfigError, match="new or empty folder"), Workspace(tmp_path):
        pass


def test_agents_change_no_settings_of_git_outside_their_folder(tasks: list[Task], tmp_path: Path) -> None:
    settings = Path(command_environment()["GIT_CONFIG_GLOBAL"])
    # Root's git replaces even a device by a file.
    assert not settings.parent.exists()
    with Workspace(tmp_path / "work") as workspace:
        folder = workspace.prepare(tasks[0])
        words = ["git", "config", "--global", "user.name", "x"]
        environment = {**os.environ, **command_environment()}
        done = subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode and "could not lock config file" in done.stderr
    assert not settings.parent.exists() and Path(os.devnull).is_char_device()


def test_a_missing_agent_names_the_extra(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("AGENTSPEC_AGENT_PYTHON", str(tmp_path / "none"))
    with pytest.raises(ConfigError, match="executable file"):
        agent_python("openhands")
    monkeypatch.delenv("AGENTSPEC_AGENT_PYTHON")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("agentspec.workflows.swe.agents.agent_process._HERE", tmp_path / "a" / "b" / "c")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    for agent, extra, target, folder in (
        ("mini-swe-agent", "swe", "agents", ".venv-agents"),
        ("openhands", "openhands", "openhands", ".venv-openhands"),
    ):
        with pytest.raises(ConfigError, match=rf"{agent} is not.*agentspec\[{extra}\].*make {target}"):
            agent_python(agent)
        python = tmp_path / folder / "bin" / "python"
        python.parent.mkdir(parents=True)
        os.symlink("/bin/true", python)
        assert agent_python(agent) == str(python)
