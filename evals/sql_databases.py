"""The databases of the text-to-SQL agents, and prompts about them."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path

from agentspec.workflows.text_to_sql import DATABASES, Database, Message, create_all, draw_questions
from agentspec.workflows.text_to_sql.agents.prompts import link_messages


def databases_in(folder: Path | str) -> dict[Database, Path]:
    """Writes the generated databases to a folder; gives the file of each."""
    paths = create_all(DATABASES, Path(folder))
    return {database: paths[database.name] for database in DATABASES}


@contextmanager
def temporary_databases() -> Iterator[dict[Database, Path]]:
    """The generated databases, in a folder that is removed at the end."""
    with tempfile.TemporaryDirectory(prefix="agentspec-databases-") as folder:
        yield databases_in(folder)


def render(messages: Sequence[Message]) -> str:
    """The prompt text of a request, as the small model's chat template renders it."""
    turns = "".join(f"<|{message['role']}|>{message['content']}<|end|>" for message in messages)
    return f"<|begin|>{turns}<|assistant|>"


def link_prompts(number: int, seed: int) -> list[str]:
    """What the schema linker is asked for `number` held-out questions, rendered with the small model's chat template."""
    by_name = {database.name: database for database in DATABASES}
    with temporary_databases() as databases:
        questions = islice(draw_questions(databases, split="heldout", seed=seed), number)
        return [render(link_messages(by_name[q.database], q.text)) for q in questions]
