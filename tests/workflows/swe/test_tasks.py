"""Drawn tasks depend on the seed alone, are sound, and fall into splits. Incomplete folders are refused."""

from __future__ import annotations

import re
import shutil
import sys
from collections import Counter
from pathlib import Path

import pytest
from programs import output_of

from agentspec.errors import ConfigError
from agentspec.workflows.swe.components import COMPONENTS
from agentspec.workflows.swe.repositories import MAX_REPOSITORIES, draw_repositories
from agentspec.workflows.swe.tasks import DrawnTask, Task, draw_tasks, read_task, read_tasks, write_tasks
from agentspec.workflows.swe.unit_tests import HIDDEN, check_task, judge, run_tests


@pytest.mark.parametrize("seed", [0, 5])
def test_every_bug_changes_a_place_of_its_own(seed: int) -> None:
    for repository in draw_repositories(seed)[:24]:
        for component in COMPONENTS:
            source = repository.fill(component.source)
            compile(source, component.name, "exec")
            for bug in component.bugs:
                assert source.count(repository.fill(bug.right)) == 1, (component.name, bug.name)
                wrong = source.replace(repository.fill(bug.right), repository.fill(bug.wrong))
                assert wrong != source
                compile(wrong, bug.name, "exec")


def test_every_kind_of_bug_is_seen_and_healed(tmp_path: Path) -> None:
    """Checks one task for each kind of bug, from as many repositories as that takes."""
    wanted = {f"{component.name}-{bug.name}" for component in COMPONENTS for bug in component.bugs}
    chosen: dict[str, DrawnTask] = {}
    for drawn in draw_tasks(seed=2, count=MAX_REPOSITORIES * 8, per_repository=8):
        chosen.setdefault(str(drawn.record["id"]).split("-", 1)[1], drawn)
    assert chosen.keys() == wanted
    write_tasks(tmp_path / "tasks", chosen.values())
    for task in read_tasks(tmp_path / "tasks"):
        folder = tmp_path / "work" / task.id
        assert check_task(task, folder) == "", task.id
        # check_task leaves the fixed repository: the issue's example now prints what the issue says.
        assert task.fix is not None
        assert output_of(sys.executable, "-c", task.fix.reproduce, cwd=folder).strip() == task.fix.expected
        assert f"`{task.fix.expected}`" in task.issue


def test_tasks_depend_on_the_seed_alone() -> None:
    many, few = draw_tasks(seed=4, count=30), draw_tasks(seed=4, count=9)
    assert few == many[:9]
    assert draw_tasks(seed=5, count=9) != few
    assert len({task.record["id"] for task in many}) == 30
    # The reference solver tells tasks apart by their issues.
    assert len({task.record["issue"] for task in many}) == 30


def test_both_splits_are_of_the_same_repositories() -> None:
    drawn = draw_tasks(seed=6, count=48, per_repository=6)
    counts = Counter((task.record["repository"], task.record["split"]) for task in drawn)
    assert len(counts) == 16 and set(counts.values()) == {3}


def test_agents_do_not_see_hidden_tests(tasks: list[Task]) -> None:
    for task in tasks:
        names = {path.name for path in (task.folder / "repository").rglob("*")}
        assert not names & {path.name for path in (task.folder / HIDDEN).iterdir()}
        assert "task.json" not in names


@pytest.mark.parametrize(("count", "per_repository"), [(0, 4), (10**6, 4), (5, 1), (5, 99)])
def test_numbers_out_of_range_are_refused(count: int, per_repository: int) -> None:
    with pytest.raises(ConfigError, match="must be from"):
        draw_tasks(seed=0, count=count, per_repository=per_repository)


def test_folders_that_are_not_whole_are_refused(tasks: list[Task], tmp_path: Path) -> None:
    good = tasks[0].folder
    shutil.copytree(good, tmp_path / "a")
    with pytest.raises(ConfigError, match="new or empty"):
        write_tasks(tmp_path, [])
    with pytest.raises(ConfigError, match="split must be"):
        read_tasks(tmp_path, "hot")
    with pytest.raises(ConfigError, match="no task of split warm"):
        read_tasks(tmp_path, "warm")
    shutil.copytree(good, tmp_path / "b")
    with pytest.raises(ConfigError, match="distinct"):
        read_tasks(tmp_path)
    shutil.rmtree(tmp_path / "a" / HIDDEN)
    with pytest.raises(ConfigError, match="tests that decide"):
        read_task(tmp_path / "a")
    shutil.rmtree(tmp_path / "b" / "repository")
    with pytest.raises(ConfigError, match="needs the folder"):
        read_task(tmp_path / "b")
    for text, error in (
        ("{", "must be JSON"),
        ("[]", "must be JSON"),
        ('{"id": "x"}', "must be JSON"),
        ('{"id": "../x", "issue": "i"}', "letters, digits"),
        ('{"id": "x", "issue": " "}', "needs an issue"),
        ('{"id": "x", "issue": "i", "fix": {"path": "p"}}', "must be JSON"),
    ):
        (tmp_path / "b" / "task.json").write_text(text)
        with pytest.raises(ConfigError, match=error):
            read_task(tmp_path / "b")


@pytest.mark.parametrize(
    ("source", "detail"),
    [
        ("while True: pass", "took longer than 1 s"),
        ("import os\nos._exit(0)", "without a result, exit status 0"),
        ("raise SystemExit(0)", "without a result|failed"),
        ("", "no test that ran"),
        ("import unittest\nclass T(unittest.TestCase):\n    def test_it(self): self.fail()", "1 of 1"),
    ],
)
def test_tests_that_do_not_pass(source: str, detail: str, tmp_path: Path) -> None:
    (tmp_path / "checks").mkdir()
    (tmp_path / "checks" / "__init__.py").touch()
    (tmp_path / "checks" / "test_it.py").write_text(source)
    verdict = run_tests(tmp_path, "checks", timeout_s=1 if "while" in source else 60)
    assert not verdict.passed
    assert re.search(detail, verdict.detail)


def test_what_tests_print_and_leave_running_does_not_count(tmp_path: Path) -> None:
    source = (
        "import subprocess, sys, unittest\nclass T(unittest.TestCase):\n    def test_it(self):\n"
        "        print('x' * 1_000_000, '\\n[1, 0, [\"forged\"]]')\n"
        "        subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])\n"
    )
    (tmp_path / "checks").mkdir()
    (tmp_path / "checks" / "__init__.py").touch()
    (tmp_path / "checks" / "test_it.py").write_text(source)
    assert run_tests(tmp_path, "checks", timeout_s=20.0).passed


def test_changed_visible_tests_are_put_back(tasks: list[Task], tmp_path: Path) -> None:
    task = tasks[0]
    assert task.fix is not None
    shutil.copytree(task.folder / "repository", tmp_path, dirs_exist_ok=True)
    path = tmp_path / task.fix.path
    path.write_text(path.read_text().replace(task.fix.broken, task.fix.fixed))
    for test in (tmp_path / "tests").glob("test_*.py"):
        test.write_text("raise SystemExit(1)")
    (tmp_path / HIDDEN).mkdir()
    (tmp_path / HIDDEN / "test_own.py").write_text("raise SystemExit(0)")
    assert judge(task, tmp_path, 30).passed


def test_what_stands_in_the_place_of_tests_is_replaced(tasks: list[Task], tmp_path: Path) -> None:
    """An agent may have left a file there, or a link out of its folder."""
    task, elsewhere, folder = tasks[0], tmp_path / "elsewhere", tmp_path / "work"
    elsewhere.mkdir()
    shutil.copytree(task.folder / "repository", folder)
    shutil.rmtree(folder / "tests")
    (folder / "tests").symlink_to(elsewhere)
    (folder / HIDDEN).write_text("notes")
    assert "in hidden_tests failed" in judge(task, folder, 30).detail
    assert not any(elsewhere.iterdir()) and (folder / "tests" / "__init__.py").is_file()
