"""Tasks: a repository with a bug, an issue that describes what a user observes, and tests that decide.

A task is a folder:

    task.json        its id, repository, split and issue; for drawn tasks the fix as well
    repository/      the repository for the agent, with tests that pass in spite of the bug
    hidden_tests/    unittest files that fail until the bug is fixed

Agents see only a copy of `repository/`. A folder written by hand needs no `fix`, which only the reference solver uses.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from agentspec.errors import ConfigError
from agentspec.workflows.swe.components import COMPONENTS, Bug, Component
from agentspec.workflows.swe.repositories import MAX_REPOSITORIES, Repository, draw_repositories

SPLITS = ("cold", "warm")
"""Warm tasks are further tasks on the repositories of the cold tasks."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,150}")
_OPENINGS = ("", "I came across this in {package} today.\n\n", "This is with the current version of {package}.\n\n")
_CLOSINGS = (
    "",
    "\n\nThe tests that are there all pass.",
    "\n\nPlease fix it without changing how the functions are called.",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fix:
    """The reference solver's fix: `broken`, which occurs once in the file at `path`, must become `fixed`."""

    path: str
    function: str
    broken: str
    fixed: str
    reproduce: str
    """A script that shows the bug."""
    expected: str
    """The output of `reproduce` once the bug is fixed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One task in its folder."""

    id: str
    number: int
    repository: str
    split: str
    kind: str
    issue: str
    folder: Path
    fix: Fix | None = None


@dataclass(frozen=True, slots=True)
class DrawnTask:
    """A task that is not written yet: its task.json, and its files by path."""

    record: Mapping[str, Any]
    files: Mapping[str, str]
    hidden_tests: Mapping[str, str]


def draw_tasks(*, seed: int, count: int, per_repository: int = 4) -> list[DrawnTask]:
    """Draws tasks, `per_repository` of each repository, each with a different bug; every second one is warm. A larger
    count gives the same tasks as a smaller one, followed by others. Raises ConfigError if a number is out of range."""
    bugs = [(component, bug) for component in COMPONENTS for bug in component.bugs]
    if not 2 <= per_repository <= len(bugs):
        raise ConfigError(f"tasks per repository must be from 2 to {len(bugs)}, got {per_repository}")
    if not 1 <= count <= MAX_REPOSITORIES * per_repository:
        raise ConfigError(f"the number of tasks must be from 1 to {MAX_REPOSITORIES * per_repository}, got {count}")
    tasks: list[DrawnTask] = []
    for repository in draw_repositories(seed):
        drawn = random.Random(f"bugs/{seed}/{repository.name}")
        for component, bug in drawn.sample(bugs, per_repository):
            tasks.append(_draw_task(drawn, len(tasks), repository, component, bug))
            if len(tasks) == count:
                return tasks
    return tasks


def _draw_task(drawn: random.Random, number: int, repository: Repository, component: Component, bug: Bug) -> DrawnTask:
    fill = repository.fill
    files = repository.files()
    path = f"{repository.name}/{component.name}.py"
    right, wrong = fill(bug.right), fill(bug.wrong)
    broken = files[path].replace(right, wrong, 1)
    fixed = files[path]
    files[path] = broken
    reproduce, expected = fill(bug.reproduce), fill(bug.expected)
    opening, closing = drawn.choice(_OPENINGS).format(package=repository.name), drawn.choice(_CLOSINGS)
    issue = (
        f"{fill(bug.title)}\n\n{opening}{fill(bug.symptom)}\n\n```python\n{reproduce}\n```\n\n"
        f"This should print `{expected}`.{closing}"
    )
    before, after = _shortest_edit(broken, fixed)
    fix = Fix(
        path=path, function=fill(bug.function), broken=before, fixed=after, reproduce=reproduce, expected=expected
    )
    record = {
        "id": f"{repository.name}-{component.name}-{bug.name}",
        "number": number,
        "repository": repository.name,
        "split": SPLITS[number % 2],
        "kind": bug.kind,
        "issue": issue,
        "fix": asdict(fix),
    }
    return DrawnTask(record, files, repository.hidden_tests())


def _shortest_edit(broken: str, fixed: str) -> tuple[str, str]:
    """The lines that differ, with enough lines around them that the first text occurs only once in `broken`."""
    old, new = broken.splitlines(), fixed.splitlines()
    start = 0
    while start < min(len(old), len(new)) and old[start] == new[start]:
        start += 1
    same = 0
    while same < min(len(old), len(new)) - start and old[-1 - same] == new[-1 - same]:
        same += 1
    first, last, last_new = start, len(old) - same, len(new) - same
    while first == last or broken.count("\n".join(old[first:last])) != 1:
        first = max(first - 1, 0)
        if last < len(old):
            last, last_new = last + 1, last_new + 1
    return "\n".join(old[first:last]), "\n".join(new[first:last_new])


def write_tasks(folder: Path, tasks: Iterable[DrawnTask]) -> None:
    """Writes each task into a folder named after it. Raises ConfigError if the folder is not empty, or cannot be
    written."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise ConfigError(f"the folder for tasks must be new or empty, got {folder}; choose another --out")
        for task in tasks:
            target = folder / str(task.record["id"])
            _write(target / "task.json", json.dumps(task.record, indent=2) + "\n")
            for path, text in task.files.items():
                _write(target / "repository" / path, text)
            for name, text in task.hidden_tests.items():
                _write(target / "hidden_tests" / name, text)
    except OSError as error:
        raise ConfigError(f"cannot write tasks to {folder}: {error}") from error


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def read_tasks(folder: Path, split: str = "all") -> list[Task]:
    """The tasks of a folder, in the order of their numbers. Raises ConfigError if there is no task, or a task lacks its
    repository, its tests or part of its task.json. `folder`: A folder from `write_tasks`, or one written by hand.
    `split`: "all", or one of SPLITS."""
    if split != "all" and split not in SPLITS:
        raise ConfigError(f"the split must be all or one of {', '.join(SPLITS)}, got {split!r}")
    tasks = sorted((read_task(path.parent) for path in folder.glob("*/task.json")), key=lambda t: (t.number, t.id))
    chosen = [task for task in tasks if split in ("all", task.split)]
    if not chosen:
        raise ConfigError(
            f"no task of split {split} in {folder}: each is a folder with a task.json; draw some with "
            "`python -m agentspec.workflows.swe tasks --out FOLDER`"
        )
    twice = {task.id for task in tasks if sum(other.id == task.id for other in tasks) > 1}
    if twice:
        raise ConfigError(f"ids of tasks must be distinct, got several of {', '.join(sorted(twice))} in {folder}")
    return chosen


def read_task(folder: Path) -> Task:
    """Reads one task. Raises ConfigError if a part of it is missing."""
    path = folder / "task.json"
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        fix = Fix(**record["fix"]) if record.get("fix") else None
        task = Task(
            id=record["id"],
            number=int(record.get("number", 0)),
            repository=str(record.get("repository", "")),
            split=str(record.get("split", SPLITS[0])),
            kind=str(record.get("kind", "")),
            issue=record["issue"],
            folder=folder,
            fix=fix,
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(
            f"{path} must be JSON with an `id` and an `issue`: {type(error).__name__}: {error}"
        ) from error
    if not isinstance(task.id, str) or not _NAME.fullmatch(task.id):
        raise ConfigError(f"the id of a task names a folder: letters, digits and ._- only, got {task.id!r} in {path}")
    if not isinstance(task.issue, str) or not task.issue.strip():
        raise ConfigError(f"a task needs an issue, got none in {path}")
    if not (folder / "repository").is_dir():
        raise ConfigError(f"a task needs the folder {folder / 'repository'}, which agents work on a copy of")
    if not list((folder / "hidden_tests").glob("test_*.py")):
        raise ConfigError(f"a task needs tests that decide: no test_*.py in {folder / 'hidden_tests'}")
    return task
