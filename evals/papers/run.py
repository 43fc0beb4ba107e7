"""`agentspec eval papers`: lists the papers' experiments, runs them, and writes their page."""

from __future__ import annotations

import argparse
import shlex
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from agentspec.errors import ConfigError
from agentspec.evals.files import work_folder, write_json, write_text
from agentspec.evals.options import check_names
from agentspec.evals.papers.experiments import EXPERIMENTS, PAPERS, Experiment
from agentspec.evals.text_to_sql import MODEL_FOLDER
from agentspec.progress import say

Main = Callable[[Sequence[str]], int]
_BY_NAME = {experiment.name: experiment for experiment in EXPERIMENTS}
_TITLE = "The papers' experiments"
_INTRODUCTION = """\
agentspec builds on five papers. This page has each of their figures and tables with what is had of it here. *Theirs* are
facts of the papers' texts; their pictures were not available. *Ours* was measured here, by the command below the table.
**Nothing here ran on a GPU**: figures come from replays of recorded outputs, from an event clock, from a server on a CPU,
or from an emulated H200 ([how to read them](benchmarks.md#how-to-read-this-page)).

`agentspec eval papers --list` prints this list, and `agentspec eval papers NAME --data FOLDER` runs an experiment. The page
is written by `agentspec eval papers --markdown docs/papers.md`; a test compares both.
"""


def run(args: argparse.Namespace, main: Main) -> int:
    """Runs the experiments that the arguments name; without names, lists all of them.

    Args:
        args: Those of `agentspec eval`; `tasks` begins with "papers".
        main: Runs an `agentspec` command and returns its exit status.

    Returns:
        0, or 1 if a command failed.

    Raises:
        ConfigError: A name is unknown, nothing of an experiment can be run here, or a command needs --data.
    """
    names = args.tasks[1:]
    if args.markdown:
        write_text(args.markdown, page())
    if args.list or not names:
        print(listing())
        write_json(args.json, {"experiments": [record(experiment) for experiment in EXPERIMENTS]})
        return 0
    check_names("papers", names, _BY_NAME)
    chosen = [_BY_NAME[name] for name in names]
    for experiment in chosen:
        if not experiment.commands:
            raise ConfigError(f"{experiment.name} cannot be run here: {experiment.differs}")
        if args.data is None and any("DATA" in command for command in experiment.commands):
            raise ConfigError(f"{experiment.name} needs --data FOLDER with the recorded traces")
    done = []
    with work_folder(args.logs) as (folder, _):
        for experiment in chosen:
            say(f"{experiment.name}: {experiment.shows}\n  theirs: {experiment.theirs}\n  ours:   {experiment.ours}")
            for command in experiment.commands:
                started = time.monotonic()
                words = words_of(command, args.data, folder)
                say(f"agentspec {shlex.join(words)}")
                status = main(words)
                done.append(
                    {
                        "name": experiment.name,
                        "command": command,
                        "status": status,
                        "seconds": round(time.monotonic() - started, 1),
                    }
                )
    write_json(args.json, {"runs": done})
    return 1 if any(one["status"] for one in done) else 0


def words_of(command: str, data: Path | None, out: Path) -> list[str]:
    """A command as words, with the folders in place of DATA, OUT, MODEL and TOKENIZER."""
    places = {
        "DATA": str(data),
        "OUT": str(out),
        "MODEL": str(MODEL_FOLDER),
        "TOKENIZER": str(MODEL_FOLDER / "tokenizer.json"),
    }
    words = shlex.split(command)
    for name, place in places.items():
        words = [
            place + word.removeprefix(name) if word == name or word.startswith(f"{name}/") else word for word in words
        ]
    return words


def record(experiment: Experiment) -> dict[str, Any]:
    return {"name": experiment.name, **asdict(experiment)}


def listing() -> str:
    """A line for each experiment: its name, what is had of it, and what it shows."""
    width = max(map(len, _BY_NAME))
    return "\n".join(
        f"{experiment.name:<{width}}  {experiment.state:<10}  {experiment.shows}" for experiment in EXPERIMENTS
    )


def page() -> str:
    """docs/papers.md."""
    parts = [f"# {_TITLE}\n", _INTRODUCTION]
    for key, title in PAPERS.items():
        some = [experiment for experiment in EXPERIMENTS if experiment.paper == key]
        parts.append(f"## {title}\n\n| name | shows | theirs | ours | what differs |\n|---|---|---|---|---|")
        parts.append(
            "\n".join(
                f"| `{experiment.name}` ({experiment.state}) | {experiment.shows} | {experiment.theirs} | "
                f"{experiment.ours or '-'} | {experiment.differs} |"
                for experiment in some
            )
        )
        commands = [(experiment.name, command) for experiment in some for command in experiment.commands]
        parts.append("\nCommands:\n")
        parts.append("\n".join(f"- `{name}`: `agentspec {command}`" for name, command in commands) + "\n")
    return "\n".join(parts).rstrip("\n")
