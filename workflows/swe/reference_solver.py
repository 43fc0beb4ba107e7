"""A stand-in for a model that can fix bugs: it knows each task's fix and answers like a coding agent.

Its answers say nothing about any model. It exists so that an agent's loop, its commands, the tests and the recorded
conversations can run without a model that solves the tasks. It looks around, searches, reads, reproduces, edits, tests,
and submits; wording and side steps are drawn by the task's id. Answers depend only on the task and on the number of
answers so far, so two runs of the same task give the same conversation.
"""

from __future__ import annotations

import random
import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from agentspec.errors import ConfigError
from agentspec.workflows.swe.tasks import Fix, Task

NAME = "reference-solver"
"""The name of the model that it serves."""

STYLES = ("backticks", "function")
"""How commands are written: as mini-swe-agent reads them, or as OpenHands reads them without tool calls."""

_FUNCTION = "<function="


class ReferenceSolver:
    """Answers for every task that has a fix. Raises ConfigError if a task has no fix."""

    def __init__(self, tasks: Sequence[Task]) -> None:
        self._answers = {task.issue.strip(): {style: answers(task, style) for style in STYLES} for task in tasks}

    def answer(self, messages: Sequence[Mapping[str, Any]]) -> str | None:
        """The next answer of the conversation, or None if it quotes no task's issue.

        The first user message quotes the issue of a task, and the system message determines the style of the commands.
        After the last answer, the last answer is repeated.
        """
        first = next((text_of(message) for message in messages if message.get("role") == "user"), "")
        known = [issue for issue in self._answers if issue in first]
        if not known:
            return None
        # One issue may be part of another, so the longest quoted issue counts.
        says_how = any(_FUNCTION in text_of(message) for message in messages if message.get("role") == "system")
        steps = self._answers[max(known, key=len)]["function" if says_how else "backticks"]
        given = sum(1 for message in messages if message.get("role") == "assistant")
        return steps[min(given, len(steps) - 1)]


def text_of(message: Mapping[str, Any]) -> str:
    """A message's text, even if it consists of parts."""
    content = message.get("content")
    if isinstance(content, list):
        return "".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
    return content if isinstance(content, str) else ""


def answers(task: Task, style: str = "backticks") -> list[str]:
    """All answers of the solver on a task, each with one command, in one of STYLES."""
    fix = task.fix
    if fix is None:
        raise ConfigError(f"the reference solver needs the fix of each task, got none in {task.folder / 'task.json'}")
    drawn = random.Random(f"solver/{task.id}")
    steps = _look_around(drawn, task, fix) + _reproduce(drawn, fix) + _repair(drawn, fix) + _submit(drawn, fix)
    if style == "backticks":
        return [f"THOUGHT: {thought}\n\n```mswea_bash_command\n{command}\n```" for thought, command in steps]
    *commands, (last, _) = steps
    calls = [(thought, "terminal", "command", _on_one_line(command)) for thought, command in commands]
    calls.append((last, "finish", "message", f"`{fix.function}` in `{fix.path}` does now what the issue asks for."))
    return [
        f"{thought}\n\n{_FUNCTION}{tool}>\n<parameter={name}>{value}</parameter>\n</function>"
        for thought, tool, name, value in calls
    ]


def _on_one_line(command: str) -> str:
    """The same command without a here-document, because OpenHands' terminal echoes one with a varying number of empty
    lines."""
    found = re.match(r"(?P<reader>.*) <<'EOF'(?P<rest>.*)\n(?P<text>(.*\n)*?)EOF\n?(?P<next>.*)$", command)
    if found is None:
        return command
    lines = " ".join(shlex.quote(line) for line in found["text"].splitlines())
    reader = "" if found["reader"] == "cat" else f" | {found['reader']}"
    return " && ".join(filter(None, [f"printf '%s\\n' {lines}{reader}{found['rest']}", found["next"]]))


_Step = tuple[str, str]


def _look_around(drawn: random.Random, task: Task, fix: Fix) -> list[_Step]:
    package, module = fix.path.split("/")
    title = task.issue.splitlines()[0]
    steps = [
        (
            drawn.choice(
                (
                    f"The issue says: {title}. I'll start by exploring the repository to understand its structure.",
                    "Let me first see what files are in the current directory.",
                    f"I need to understand how {package} is organised before I look into the issue.",
                )
            ),
            "find . -type f -not -path './.git/*' | sort",
        )
    ]
    if drawn.random() < 0.6:
        steps.append(("Let me read the README to see what each module is for.", "cat README.md"))
    steps.append(
        (
            drawn.choice(
                (
                    f"The issue is about `{fix.function}`. Let me find where it is defined and used.",
                    f"Now I'll search for `{fix.function}` in the code and in the tests.",
                )
            ),
            f"grep -rn --include='*.py' '{fix.function}' {package} tests | sort",
        )
    )
    steps.append((f"Now let me look at `{fix.path}`, where this is implemented.", f"cat {fix.path}"))
    if drawn.random() < 0.5:
        steps.append(
            (
                "Let me see what the existing tests cover, so that I know what must keep working.",
                f"cat tests/test_{module}",
            )
        )
    return steps


def _reproduce(drawn: random.Random, fix: Fix) -> list[_Step]:
    steps = [
        (
            drawn.choice(
                (
                    "Let me reproduce the issue with a script before I change anything.",
                    "I'll write a small script with the example from the issue to reproduce the problem.",
                )
            ),
            f"cat <<'EOF' > reproduce.py\n{fix.reproduce}\nEOF\npython reproduce.py 2>&1 | tail -n 1",
        )
    ]
    if drawn.random() < 0.4:
        steps.append(("Let me also run the existing tests to see where we stand.", "python -m tests"))
    return steps


def _repair(drawn: random.Random, fix: Fix) -> list[_Step]:
    broken, fixed = f"```python\n{fix.broken}\n```", f"```python\n{fix.fixed}\n```"
    shown = f"I see the problem. In `{fix.function}` the code reads:\n\n{broken}\n\nIt should be:\n\n{fixed}\n\nI'll change it."
    told = (
        f"That is not the expected `{fix.expected}`. The cause is in `{fix.path}`. I'll replace this part:\n\n{broken}"
    )
    thought = drawn.choice((shown, told))
    edit = (
        "python - <<'EOF'\n"
        "from pathlib import Path\n\n"
        f'path = Path("{fix.path}")\n'
        "source = path.read_text()\n"
        f"old = {_literal(fix.broken)}\n"
        f"new = {_literal(fix.fixed)}\n"
        "assert source.count(old) == 1\n"
        "path.write_text(source.replace(old, new))\n"
        "EOF"
    )
    steps = [(thought, edit)]
    if drawn.random() < 0.5:
        steps.append(("Let me check that the file looks right now.", f"cat {fix.path}"))
    steps.append(
        (f"Now I'll run the script again. It should print `{fix.expected}`.", "python reproduce.py 2>&1 | tail -n 1")
    )
    steps.append(("That is what the issue asks for. Now all of the tests.", "python -m tests"))
    return steps


def _submit(drawn: random.Random, fix: Fix) -> list[_Step]:
    steps = []
    if drawn.random() < 0.7:
        steps.append(("The tests pass. I'll remove my script.", "rm reproduce.py && git status --short"))
    steps.append(
        ("Now I'll create the patch with the source file that I modified.", f"git diff -- {fix.path} > patch.txt")
    )
    steps.append(("Let me verify the patch.", "cat patch.txt"))
    steps.append(
        (
            "The patch contains only the intended change. I'll submit it.",
            "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT && cat patch.txt",
        )
    )
    return steps


def _literal(text: str) -> str:
    """A Python literal of the text, in triple quotes if it has several lines."""
    if "\n" not in text and '"' not in text and "\\" not in text:
        return f'"{text}"'
    if '"""' not in text and "\\" not in text and not text.endswith('"'):
        return f'"""{text}"""'
    return repr(text)
