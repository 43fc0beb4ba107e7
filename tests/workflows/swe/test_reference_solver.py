"""The reference solver: answers that an agent can act on, the same every time, over the API that agents speak."""

from __future__ import annotations

import http.client
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agentspec.errors import ConfigError
from agentspec.workflows.swe.endpoint import Endpoint
from agentspec.workflows.swe.reference_solver import NAME, ReferenceSolver, answers
from agentspec.workflows.swe.solver_server import SolverServer
from agentspec.workflows.swe.tasks import Task, draw_tasks, read_tasks, write_tasks


def test_every_answer_holds_one_command(tmp_path: Path) -> None:
    write_tasks(tmp_path, draw_tasks(seed=9, count=60))
    for task in read_tasks(tmp_path):
        steps = answers(task)
        assert steps == answers(task)
        assert 9 <= len(steps) <= 15
        for step in steps:
            # The expression by which mini-swe-agent finds commands.
            assert len(re.findall(r"```mswea_bash_command\s*\n(.*?)\n```", step, re.DOTALL)) == 1
        assert "COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT" in steps[-1]


def test_answers_follow_the_quoted_issue(tasks: list[Task]) -> None:
    solver = ReferenceSolver(tasks)
    for task in tasks:
        messages: list[dict[str, Any]] = [
            {"role": "system", "content": "s"},
            {"role": "user", "content": [{"type": "text", "text": f"Solve this:\n{task.issue}\nNow."}]},
        ]
        given = []
        for _ in answers(task):
            answer = solver.answer(messages)
            given.append(answer)
            messages += [{"role": "assistant", "content": answer}, {"role": "user", "content": "done"}]
        assert given == answers(task)
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
        assert Endpoint(base_url=server.base_url, model=NAME).models() == [NAME]
        host, port = server.base_url.split("/")[2].split(":")
        connection = http.client.HTTPConnection(host, int(port))
        chat = "/v1/chat/completions"
        good = {"model": NAME, "messages": [{"role": "user", "content": tasks[1].issue}]}
        status, answer = ask("POST", chat, json.dumps(good).encode())
        assert status == 200
        assert answer["choices"][0]["message"]["content"] == answers(tasks[1])[0]
        assert answer["usage"]["completion_tokens"] > 5
        for body in (b"{", b"[]", b'{"messages": "x"}', b'{"messages": [1]}'):
            assert ask("POST", chat, body)[0] == 400
        assert ask("POST", chat, json.dumps({**good, "stream": True}).encode())[0] == 400
        assert ask("POST", chat, json.dumps({**good, "messages": []}).encode())[0] == 400
        assert ask("POST", "/v1/other", b"{}")[0] == 404
        assert ask("GET", "/v1/other")[0] == 404
        connection.close()
        with pytest.raises(ConfigError, match="another --port"):
            SolverServer(tasks, int(port))
