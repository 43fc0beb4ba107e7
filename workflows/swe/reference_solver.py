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
from dataclasses import asdict
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
    steps = _steps(random.Random(f"solver/{task.id}"), task, fix)
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


_BROKEN, _FIXED = (f"\n\n```python\n{{{name}}}\n```" for name in ("broken", "fixed"))
_EDIT = """python - <<'EOF'
from pathlib import Path

path = Path("{path}")
source = path.read_text()
old = {old}
new = {new}
assert source.count(old) == 1
path.write_text(source.replace(old, new))
EOF"""
# Share of the tasks with the step, its thoughts, of which one is drawn, and its command.
_STEPS: tuple[tuple[float, tuple[str, ...], str], ...] = (
    (
        1.0,
        (
            "The issue says: {title}. I'll start by exploring the repository to understand its structure.",
            "Let me first see what files are in the current directory.",
            "I need to understand how {package} is organised before I look into the issue.",
        ),
        "find . -type f -not -path './.git/*' | sort",
    ),
    (0.6, ("Let me read the README to see what each module is for.",), "cat README.md"),
    (
        1.0,
        (
            "The issue is about `{function}`. Let me find where it is defined and used.",
            "Now I'll search for `{function}` in the code and in the tests.",
        ),
        "grep -rn --include='*.py' '{function}' {package} tests | sort",
    ),
    (1.0, ("Now let me look at `{path}`, where this is implemented.",), "cat {path}"),
    (
        0.5,
        ("Let me see what the existing tests cover, so that I know what must keep working.",),
        "cat tests/test_{module}",
    ),
    (
        1.0,
        (
            "Let me reproduce the issue with a script before I change anything.",
            "I'll write a small script with the example from the issue to reproduce the problem.",
        ),
        "cat <<'EOF' > reproduce.py\n{reproduce}\nEOF\npython reproduce.py 2>&1 | tail -n 1",
    ),
    (0.4, ("Let me also run the existing tests to see where we stand.",), "python -m tests"),
    (
        1.0,
        (
            f"I see the problem. In `{{function}}` the code reads:{_BROKEN}\n\nIt should be:{_FIXED}\n\nI'll change it.",
            f"That is not the expected `{{expected}}`. The cause is in `{{path}}`. I'll replace this part:{_BROKEN}",
        ),
        _EDIT,
    ),
    (0.5, ("Let me check that the file looks right now.",), "cat {path}"),
    (
        1.0,
        ("Now I'll run the script again. It should print `{expected}`.",),
        "python reproduce.py 2>&1 | tail -n 1",
    ),
    (1.0, ("That is what the issue asks for. Now all of the tests.",), "python -m tests"),
    (0.7, ("The tests pass. I'll remove my script.",), "rm reproduce.py && git status --short"),
    (1.0, ("Now I'll create the patch with the source file that I modified.",), "git diff -- {path} > patch.txt"),
    (1.0, ("Let me verify the patch.",), "cat patch.txt"),
    (
        1.0,
        ("The patch contains only the intended change. I'll submit it.",),
        "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT && cat patch.txt",
    ),
)


def _steps(drawn: random.Random, task: Task, fix: Fix) -> list[tuple[str, str]]:
    """The thought and the command of each step."""
    package, module = fix.path.split("/")
    words = {**asdict(fix), "title": task.issue.splitlines()[0], "package": package, "module": module}
    words |= {"old": _literal(fix.broken), "new": _literal(fix.fixed)}
    steps = []
    for share, thoughts, command in _STEPS:
        if share == 1.0 or drawn.random() < share:
            thought = drawn.choice(thoughts) if len(thoughts) > 1 else thoughts[0]
            steps.append((thought.format(**words), command.format(**words)))
    return steps


def _literal(text: str) -> str:
    """A Python literal of the text, in triple quotes if it has several lines."""
    if "\n" not in text and '"' not in text and "\\" not in text:
        return f'"{text}"'
    if '"""' not in text and "\\" not in text and not text.endswith('"'):
        return f'"""{text}"""'
    return repr(text)
