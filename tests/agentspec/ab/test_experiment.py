"""The command `agentspec ab` and its turns: who does what in which order, what is kept, and how a run goes on."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
from chat_server import chat_server

from agentspec.ab.arms import Arm
from agentspec.ab.experiment import ExperimentConfig, Outcome, run_experiment, slices_of
from agentspec.ab.workload import Target, TaskResult
from agentspec.cli import main
from agentspec.errors import ConfigError


@dataclass
class Asking:
    """A workload whose tasks ask one question each."""

    count: int
    ran: list[tuple[str, int, int]] = field(default_factory=list)
    stop_after: int = 10_000
    notes: Sequence[str] = ()

    @property
    def tasks(self) -> Sequence[str]:
        return [f"t{number}" for number in range(self.count)]

    def describe(self) -> dict[str, Any]:
        return {"asking": self.count}

    def run(self, start: int, count: int, target: Target) -> list[TaskResult]:
        if len(self.ran) == self.stop_after:
            raise KeyboardInterrupt
        self.ran.append((target.model, start, count))
        for task in self.tasks[start : start + count]:
            body = {"model": target.model, "messages": [{"role": "user", "content": task}], "temperature": 0}
            httpx.post(f"{target.base_url(task)}/chat/completions", json=body, timeout=10).raise_for_status()
        return [TaskResult(task=task, seconds=1.0) for task in self.tasks[start : start + count]]


@dataclass
class Scripted:
    """Servers that answer what they are asked; each open and close is noted."""

    together: bool
    events: list[str] = field(default_factory=list)
    models: str = "m"

    def describe(self) -> dict[str, Any]:
        return {"models": self.models}

    @contextmanager
    def open(self, label: str) -> Iterator[Arm]:
        self.events.append(f"+{label}")
        with ExitStack() as stack:
            url = stack.enter_context(chat_server(lambda body: str(body["messages"][0]["content"])))
            yield Arm(label=label, name=label, url=url.removesuffix("/v1"), model=f"model-{label}", is_sglang=False)
        self.events.append(f"-{label}")


def ran(workload: Asking, arms: Scripted, folder: Path, **config: int) -> Outcome:
    return run_experiment(workload, arms, ExperimentConfig(**config), folder=folder, concurrency=1)


def test_slices_hold_every_task_once_and_are_no_smaller_than_what_runs_at_a_time() -> None:
    assert slices_of(7, ExperimentConfig(turns=3), 1) == [(0, 2), (2, 2), (4, 3)]
    assert slices_of(100, ExperimentConfig(), 4)[-1] == (90, 10)
    assert len(slices_of(12, ExperimentConfig(), 4)) == 3
    assert slices_of(2, ExperimentConfig(), 8) == [(0, 2)]
    assert slices_of(5, ExperimentConfig(warm_up=2, turns=3), 1) == [(0, 2), (2, 1), (3, 1), (4, 1)]
    assert slices_of(1, ExperimentConfig(warm_up=2), 1) == [(0, 1)]


def test_both_servers_do_every_slice_and_take_turns_in_beginning(tmp_path: Path) -> None:
    workload, arms = Asking(4), Scripted(together=True)
    outcome = ran(workload, arms, tmp_path, turns=2)
    assert workload.ran == [("model-a", 0, 2), ("model-b", 0, 2), ("model-b", 2, 2), ("model-a", 2, 2)]
    assert sorted(arms.events[:2]) == ["+a", "+b"] and len(arms.events) == 4
    assert [[call.task for call in turn.calls] for turn in outcome.turns] == [
        ["t0", "t1"],
        ["t0", "t1"],
        ["t2", "t3"],
        ["t2", "t3"],
    ]
    assert not outcome.notes and {arm.model for arm in outcome.arms.values()} == {"model-a", "model-b"}


def test_where_one_server_fits_the_other_is_stopped_first(tmp_path: Path) -> None:
    workload, arms = Asking(4), Scripted(together=False)
    outcome = ran(workload, arms, tmp_path, turns=2, repeats=2)
    assert arms.events == ["+a", "-a", "+b", "-b", "+a", "-a"]
    assert [name for name, _, _ in workload.ran] == ["model-a"] * 2 + ["model-b"] * 4 + ["model-a"] * 2
    # These servers cannot be made to forget, and B goes on from one repeat to the next.
    assert any("Server b could not be made to forget" in note for note in outcome.notes)


@pytest.mark.parametrize("together", [True, False])
def test_a_stopped_run_goes_on_where_it_was(together: bool, tmp_path: Path) -> None:
    stopped = Asking(6, stop_after=3)
    with pytest.raises(KeyboardInterrupt):
        ran(stopped, Scripted(together=together), tmp_path, turns=3)
    # The machine stopped within a line.
    with (tmp_path / "turns.jsonl").open("a") as file:
        file.write('{"repeat": 0, "sl')
    workload = Asking(6)
    outcome = ran(workload, Scripted(together=together), tmp_path, turns=3)
    assert outcome.resumed == 3 and sorted(stopped.ran + workload.ran) == sorted(
        (f"model-{label}", start, 2) for label in "ab" for start in (0, 2, 4)
    )
    assert len(outcome.turns) == 6 and any("interrupted" in note for note in outcome.notes)
    finished = Asking(6)
    arms = Scripted(together=together)
    again = ran(finished, arms, tmp_path, turns=3)
    assert not finished.ran and not arms.events
    assert again.turns == outcome.turns and again.arms == outcome.arms


def test_another_experiment_does_not_go_on_from_a_folder(tmp_path: Path) -> None:
    ran(Asking(2), Scripted(together=True), tmp_path, turns=1)
    with pytest.raises(ConfigError, match="holds a run with other settings"):
        ran(Asking(3), Scripted(together=True), tmp_path, turns=1)
    with pytest.raises(ConfigError, match="holds a run with other settings .servers was"):
        ran(Asking(2), Scripted(together=True, models="other"), tmp_path, turns=1)


def test_no_text_is_kept(tmp_path: Path) -> None:
    ran(Asking(2), Scripted(together=True), tmp_path, turns=1)
    turns = [json.loads(line) for line in (tmp_path / "turns.jsonl").read_text().splitlines()]
    assert all(len(call["request"]) == len(call["answer"]) == 16 for turn in turns for call in turn["calls"])


CLIENT = """
import json, sys, urllib.request
body = {"model": sys.argv[2], "messages": [{"role": "user", "content": sys.argv[3]}], "temperature": 0}
request = urllib.request.Request(sys.argv[1] + "/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"})
urllib.request.urlopen(request).read()
"""
MODELS = b'{"data": [{"id": "model"}]}'
COMMAND = f"{shlex.quote(sys.executable)} -c {shlex.quote(CLIENT)} {{url}} {{model}} {{task}}"


def test_a_command_is_compared_and_everything_is_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tasks = tmp_path / "tasks.txt"
    tasks.write_text("one\ntwo\nthree\n")
    with chat_server(lambda body: "x", models=MODELS) as a, chat_server(lambda body: "y", models=MODELS) as b:
        words = ["ab", "--command", COMMAND, "--task-file", str(tasks), "--a", a, "--b", b, "--turns", "3"]
        assert main([*words, "--concurrency", "1", "--out", str(tmp_path / "out"), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts == json.loads((tmp_path / "out/ab.json").read_text())
    assert (facts["tasks"], facts["pairs"]) == (3, 3)
    assert (facts["answers"]["compared"], facts["answers"]["identical"]) == (3, 0)
    assert facts["success"]["both"] == 3
    assert facts["headline"] in (tmp_path / "out/ab.html").read_text()


def test_a_command_that_fails_because_its_server_does_is_not_taken_for_a_fast_task(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tasks = tmp_path / "tasks.txt"
    tasks.write_text("one\ntwo\n")

    def broken(body: dict[str, Any]) -> str | int:
        return 500 if body["messages"][0]["content"] == "two" else "x"

    with chat_server(lambda body: "x", models=MODELS) as a, chat_server(broken, models=MODELS) as b:
        words = ["ab", "--command", COMMAND, "--task-file", str(tasks), "--a", a, "--b", b, "--turns", "2", "--json"]
        assert main([*words, "--concurrency", "1"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["tasks"] == 1 and facts["success"]["graded"] == 1
    assert facts["arms"]["b"]["failed_tasks"] == 1 and "1 of 2 failed on B" in facts["headline"]


def test_a_log_is_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "log.jsonl"
    messages = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]
    log.write_text("".join(json.dumps({"session": f"s{i}", "messages": messages}) + "\n" for i in range(4)))
    with chat_server(lambda body: "x", models=MODELS) as a, chat_server(lambda body: "x", models=MODELS) as b:
        assert main(["ab", str(log), "--a", a, "--b", b, "--concurrency", "1"]) == 0
    text = capsys.readouterr().out
    assert "identical greedy answers        4 of 4" in text and "The log has no times" in text


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--a", "x", "--b", "y"], "the work must be one of"),
        (["--workload", "sql", "--command", "x {url}"], "the work must be one of"),
        (["--command", "x {url}"], "--a URL and --b URL name the two servers"),
        (["--command", "x {url}", "--a", "x", "--b", "y", "--out", __file__], "--out must be a folder"),
        (["--command", "x {url}", "--start", "m", "--a", "x"], "--start starts both servers"),
        (["--command", "x {url} {task}", "--a", "x", "--b", "y"], "--task-file go together"),
        (["--command", "x {url} {out}", "--a", "x", "--b", "y"], "needs --tasks N"),
        (["--command", "x {url}", "--a", "x", "--b", "y", "--repeat", "-1"], "--repeat at least 1"),
        (["--command", "x {url}", "--a", "ftp://x", "--b", "y"], "must be like http://HOST:30000"),
        (["--command", "x {url}", "--a", "127.0.0.1:9", "--b", "y"], "must answer at http://127.0.0.1:9/v1/models"),
    ],
)
def test_a_wrong_command_line_is_told_in_one_line(
    words: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["ab", *words]) == 2
    error = capsys.readouterr().err
    assert told in error and len(error.strip().splitlines()) == 1
