"""The reference solver: answers that an agent can act on, the same every time, over the API that agents speak."""

from __future__ import annotations

import http.client
import json
import os
import re
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agentspec.errors import ConfigError
from agentspec.workflows.swe.endpoint import Endpoint
from agentspec.workflows.swe.reference_solver import NAME, STYLES, ReferenceSolver, answers
from agentspec.workflows.swe.solver_server import SolverServer
from agentspec.workflows.swe.tasks import Task, draw_tasks, read_tasks, write_tasks
from agentspec.workflows.swe.unit_tests import judge
from agentspec.workflows.swe.workspace import Workspace, command_environment


def test_every_answer_holds_one_command(tmp_path: Path) -> None:
    write_tasks(tmp_path, draw_tasks(seed=9, count=60))
    for task in read_tasks(tmp_path):
        steps = answers(task)
        assert steps == answers(task)
        assert 9 <= len(steps) <= 15
        for step in steps:
            # mini-swe-agent finds commands with this expression.
            assert len(re.findall(r"```mswea_bash_command\s*\n(.*?)\n```", step, re.DOTALL)) == 1
        assert "COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT" in steps[-1]


def command_of(answer: str, style: str) -> str | None:
    """The command that an agent of this style runs; None where it ends."""
    if style == "backticks":
        (command,) = re.findall(r"```mswea_bash_command\s*\n(.*?)\n```", answer, re.DOTALL)
        return None if "COMPLETE_TASK" in command else str(command)
    ((tool, name, value),) = re.findall(
        r"<function=(\w+)>\n<parameter=(\w+)>(.*?)</parameter>\n</function>$", answer, re.DOTALL
    )
    assert (tool, name) in (("terminal", "command"), ("finish", "message"))
    return str(value) if tool == "terminal" else None


def test_commands_of_both_styles_do_the_same(tmp_path: Path) -> None:
    write_tasks(tmp_path / "tasks", draw_tasks(seed=9, count=6))
    tasks = read_tasks(tmp_path / "tasks")
    with Workspace(tmp_path / "work") as place:
        for task in tasks:
            printed: dict[str, list[str]] = {}
            for style in STYLES:
                folder = place.prepare(task)
                *commands, end = (command_of(answer, style) for answer in answers(task, style))
                assert end is None
                printed[style] = []
                for command in commands:
                    assert command is not None and (style == "backticks" or "\n" not in command)
                    done = subprocess.run(
                        ["bash", "-c", command], cwd=folder, env={**os.environ, **command_environment()},
                        capture_output=True, text=True, check=False,
                    )  # fmt: skip
                    assert done.returncode in (0, 1), done.stderr
                    printed[style].append(re.sub(r"\d\.\d+s", "", done.stdout))
                assert judge(task, folder, 60.0).passed
            assert printed["function"] == printed["backticks"]


@pytest.mark.parametrize(("system", "style"), [("s", "backticks"), ("start with <function= and so on", "function")])
def test_answers_follow_the_quoted_issue(tasks: list[Task], system: str, style: str) -> None:
    solver = ReferenceSolver(tasks)
    for task in tasks:
        messages: list[dict[str, Any]] = [
            {"role": "system", "content": system},
            {"role": "user", "content": [{"type": "text", "text": f"Solve this:\n{task.issue}\nNow."}]},
        ]
        given = []
        for _ in answers(task):
            answer = solver.answer(messages)
            given.append(answer)
            messages += [{"role": "assistant", "content": answer}, {"role": "user", "content": "done"}]
        assert given == answers(task, style)
        assert solver.answer(messages) == given[-1]
    assert solver.answer([{"role": "user", "content": "Hello"}]) is None
    assert solver.answer([]) is None


def test_tasks_without_a_fix_are_refused(tasks: list[Task]) -> None:
    with pytest.raises(ConfigError, match="needs the fix"):
        ReferenceSolver([replace(tasks[0], fix=None)])


def test_served_over_http(tasks: list[Task]) -> None:
    def ask(method: str, path: str, body: bytes | None = None) -> tuple[int, Any]:
        connection.request(method, path, body)
        response = connection.getresponse()
        return response.status, json.loads(response.read())

    with SolverServer(tasks) as server:
        Endpoint(base_url=server.base_url, model=NAME).check()
        host, port = server.base_url.split("/")[2].split(":")
        connection = http.client.HTTPConnection(host, int(port))
        chat = "/v1/chat/completions"
        good = {"model": NAME, "messages": [{"role": "user", "content": tasks[1].issue}]}
        status, answer = ask("POST", chat, json.dumps(good).encode())
        assert status == 200
        assert answer["choices"][0]["message"]["content"] == answers(tasks[1])[0]
        assert answer["usage"]["completion_tokens"] > 5
        for stop in ("```", ["nowhere", "\n\n```"]):
            _, answer = ask("POST", chat, json.dumps({**good, "stop": stop}).encode())
            assert answer["choices"][0]["message"]["content"].strip() == answers(tasks[1])[0].split("\n\n```")[0]
        for body in (b"{", b"[]", b'{"messages": "x"}', b'{"messages": [1]}'):
            assert ask("POST", chat, body)[0] == 400
        assert ask("POST", chat, json.dumps({**good, "stream": True}).encode())[0] == 400
        assert ask("POST", chat, json.dumps({**good, "messages": []}).encode())[0] == 400
        assert ask("POST", "/v1/other", b"{}")[0] == 404
        assert ask("GET", "/v1/other")[0] == 404
        connection.close()
        with pytest.raises(ConfigError, match="another --port"):
            SolverServer(tasks, int(port))
