"""Edits of files: rename a parameter of a function from a real repository. Most of an answer stands in its prompt.

It is what a person asks first of a new server, and what editors ask all day. A server has learnt nothing from others'
answers that helps: what repeats is the request's own prompt, after a beginning that is new.
"""

from __future__ import annotations

import ast
import builtins
import random
import re
import tarfile
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import starmap

from agentspec.errors import ConfigError
from agentspec.evals.workloads.prompts import chat_encoder
from agentspec.evals.workloads.task import Conversation, EndlessPool, FixedCall, Pool, Task, TaskInputs, trace_path

SOURCES = "repo_sources.tar.xz"
LEAST_LINES, MOST_LINES = 15, 40
_ANSWER_TOKENS = 640


@dataclass(frozen=True, slots=True)
class Edit:
    """A function, and what to rename in it."""

    source: str
    old: str
    new: str

    @property
    def edited(self) -> str:
        """The function with the parameter renamed wherever its name stands."""
        return re.sub(rf"\b{self.old}\b", self.new, self.source)

    @property
    def request(self) -> str:
        return (
            f"Rename the parameter `{self.old}` of this function to `{self.new}`, everywhere in it. Answer with the "
            f"whole function in one code block and nothing else.\n\n```python\n{self.source}\n```"
        )


def edits_of(source: str) -> Iterator[Edit]:
    """An edit of each top-level function and method of a Python file that is neither short nor long."""
    lines = source.splitlines()
    with warnings.catch_warnings():
        # Old sources have escapes that newer Pythons warn of.
        warnings.simplefilter("ignore")
        tree = ast.parse(source)
    for node in ast.walk(tree):
        if not isinstance(node, ast.FunctionDef) or node.end_lineno is None:
            continue
        text = lines[node.lineno - 1 : node.end_lineno]
        names = [argument.arg for argument in node.args.args if argument.arg not in ("self", "cls")]
        used = [name for name in names if len(name) > 3 and not hasattr(builtins, name)]
        if used and LEAST_LINES <= len(text) <= MOST_LINES:
            indent = len(text[0]) - len(text[0].lstrip())
            yield Edit("\n".join(line[indent:] for line in text), used[0], f"given_{used[0]}")


def _edits(inputs: TaskInputs) -> Iterator[Edit]:
    found: list[Edit] = []
    with tarfile.open(trace_path(inputs.data, SOURCES)) as archive:
        for member in archive:
            file = archive.extractfile(member) if member.name.endswith(".py") else None
            if file is not None:
                found += edits_of(file.read().decode())
    if not found:
        raise ConfigError(f"{SOURCES} must hold Python files with functions of {LEAST_LINES} to {MOST_LINES} lines")
    # Functions of the same text are edited once.
    drawn = sorted({edit.source: edit for edit in found}.values(), key=lambda edit: edit.source)
    random.Random(f"edits/{inputs.seed}").shuffle(drawn)
    yield from drawn


def _pool(inputs: TaskInputs) -> Pool:
    encode = chat_encoder(inputs.model)
    sampling = {"temperature": 0, "max_new_tokens": min(_ANSWER_TOKENS, inputs.max_answer_tokens)}

    def unit(number: int, edit: Edit) -> Conversation:
        body = {"input_ids": encode([{"role": "user", "content": edit.request}]), "sampling_params": sampling}
        return Conversation(f"edit-{number}", (FixedCall(body),))

    return EndlessPool(starmap(unit, enumerate(_edits(inputs))), 1, inputs.learnt_calls)


EDITS = Task(
    name="edits",
    data=f"functions of {LEAST_LINES} to {MOST_LINES} lines from four repositories, a parameter to rename, live",
    metric="none",
    source="sqlfluff, pydicom, marshmallow, MIT; pvlib, BSD-3",
    pool=_pool,
)
