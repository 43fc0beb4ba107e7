"""Held-out questions in three kinds: new databases of known words, of unseen words, and the six shipped databases."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from agentspec.evals.research.tiny_sql_staged.domains import draw_databases
from agentspec.workflows.text_to_sql.generated.databases import create
from agentspec.workflows.text_to_sql.generated.questions import draw_questions
from agentspec.workflows.text_to_sql.sql.sources import Databases
from agentspec.workflows.text_to_sql.tasks import Task, generated_tasks

KINDS = ("new", "unseen", "shipped")
"""`new`: databases that training did not draw, of the words that it draws from. `unseen`: of words kept from training.
`shipped`: the six databases of the workflow, written by hand and never trained on."""

_QUESTIONS_A_DATABASE = 5


def held_out_questions(kind: str, number: int, folder: Path, *, seed: int = 0) -> tuple[list[Task], Databases]:
    """`number` questions of a kind, and their databases, which are written under `folder`.

    Raises:
        ValueError: There is no such kind.
    """
    if kind == "shipped":
        drawn = generated_tasks(folder, number, seed=seed)
        return drawn.tasks, Databases(drawn.paths, {})
    if kind not in KINDS:
        raise ValueError(f"kind must be one of {', '.join(KINDS)}, got {kind!r}")
    folder.mkdir(parents=True, exist_ok=True)
    paths: dict[str, Path] = {}
    tasks = list(islice(_tasks(kind, folder, paths, seed), number))
    return tasks, Databases(paths, {})


def _tasks(kind: str, folder: Path, paths: dict[str, Path], seed: int) -> Iterator[Task]:
    for place, database in enumerate(draw_databases(seed=f"held out/{kind}/{seed}", unseen_words=kind == "unseen")):
        path = folder / f"{place}.sqlite"
        create(database, path, seed=place)
        name = database.name
        if name in paths:
            continue
        paths[name] = path
        drawn = list(islice(draw_questions({database: path}, split="train", seed=seed), _QUESTIONS_A_DATABASE))
        for number, question in enumerate(drawn):
            yield Task(f"{kind}-{seed}-{place}-{number}", name, question.text, question.sql)
