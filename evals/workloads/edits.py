"""Edits of files: rename a parameter of a function from a real repository. Most of an answer stands in its prompt.

It is what a person asks first of a new server, and what editors ask all day. A server has learnt nothing from others'
answers that helps: what repeats is the request's own prompt, after a beginning that is new.

The answers of the tasks `edits_*` are forced, so that they can be asked of an emulated device. In half of them the prompt
does not show the function, as for a model that knows the file from elsewhere. In half of them the client sends the
function as the predicted output, as editors do that apply a change.
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
from functools import partial
from itertools import starmap

from agentspec.errors import ConfigError
from agentspec.evals.workloads.prompts import chat_encoder, served_tokenizer
from agentspec.evals.workloads.task import Conversation, EndlessPool, FixedCall, Pool, Task, TaskInputs, trace_path

SOURCES = "repo_sources.tar.xz"
LEAST_LINES, MOST_LINES = 15, 40
_ANSWER_TOKENS = 640
_SOURCE = "sqlfluff, pydicom, marshmallow, MIT; pvlib, BSD-3"


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
        return f"{self._wish('this function')}\n\n```python\n{self.source}\n```"

    @property
    def short_request(self) -> str:
        """The same request without the function."""
        name = re.search(r"\bdef (\w+)", self.source)
        assert name is not None
        return self._wish(f"the function `{name[1]}`")

    @property
    def answer(self) -> str:
        return f"```python\n{self.edited}\n```"

    def _wish(self, what: str) -> str:
        return (
            f"Rename the parameter `{self.old}` of {what} to `{self.new}`, everywhere in it. Answer with the whole "
            "function in one code block and nothing else."
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


def _forced_pool(inputs: TaskInputs, *, shown: bool, predicted: bool) -> Pool:
    encode, tokenizer = chat_encoder(inputs.model), served_tokenizer(inputs.model)
    longest = min(_ANSWER_TOKENS, inputs.max_answer_tokens)

    def unit(number: int, edit: Edit) -> Conversation:
        answer = tokenizer.encode(edit.answer).tolist()
        options: dict[str, object] = {} if inputs.own_answers else {"replay": {"ids": answer[:longest]}}
        if predicted:
            options["prediction"] = edit.source
        sampling = {
            "temperature": 0,
            # A whole answer ends with a token of its own.
            "max_new_tokens": min(len(answer) + 1, longest),
            "custom_params": {"agentspec": options},
        }
        asked = edit.request if shown else edit.short_request
        body = {"input_ids": encode([{"role": "user", "content": asked}]), "sampling_params": sampling}
        return Conversation(f"edit-{number}", (FixedCall(body, answer=tuple(answer[:longest])),))

    return EndlessPool(starmap(unit, enumerate(_edits(inputs))), 1, inputs.learnt_calls)


def _forced(*, shown: bool, predicted: bool) -> Task:
    where = "in the prompt" if shown else "not in the prompt"
    return Task(
        name=f"edits_{'shown' if shown else 'unseen'}{'_predicted' if predicted else ''}",
        data=f"the same edits, the function {where}, {'and' if predicted else 'not'} sent as the predicted output",
        metric="none but speed; the edited functions come back token for token",
        source=_SOURCE,
        pool=partial(_forced_pool, shown=shown, predicted=predicted),
        trace=SOURCES,
    )


EDITS = Task(
    name="edits",
    data=f"functions of {LEAST_LINES} to {MOST_LINES} lines from four repositories, a parameter to rename, live",
    metric="none",
    source=_SOURCE,
    pool=_pool,
)

FORCED_EDITS = tuple(
    _forced(shown=shown, predicted=predicted) for shown in (True, False) for predicted in (False, True)
)
