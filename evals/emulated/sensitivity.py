"""How much the emulated device's figures depend on what it assumes: `python -m agentspec.evals.emulated.sensitivity`.

Dataset: two recorded tasks, a coding agent and the stages of a text-to-SQL agent, warm, 16 clients.
Metric: tokens a second of the hybrid over the best single system, and over plain decoding, where one thing differs from the
base: what the EAGLE-3 head accepts, the model, or one part of the step times, halved and doubled.
Pattern: each setting is a run of `agentspec eval --emulate` with a file of its own in the work folder, so that a run that
is stopped goes on where it was. Settings come in the order of their weight, and the result holds those that are done.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agentspec.cli.main import main as agentspec
from agentspec.errors import AgentspecError, ConfigError
from agentspec.evals.emulated.hollow_models import cache_folder
from agentspec.evals.files import commit, write_lines
from agentspec.evals.options import Options, check_names
from agentspec.integrations.emulated_device.models.step_times import SCALABLE, StepTimes
from agentspec.progress import say

BASE, BASE_HEAD = "h200-8b", "2.8"
HEADS = ("1.1", "1.5", "2.4", "2.8", "3.2", "4.2")
"""Accept lengths in chains of 5; docs/emulated-device.md says which heads have them."""
TASKS = ("swe_mini_agent", "sql_rsl_bird")
CLIENTS = 16
FACTORS = (0.5, 2.0)
RESULT = Path(__file__).resolve().parents[1] / "results" / "emulated" / "sensitivity.json"

_HEADLESS = ("none", "suffix")
"""Systems that a head does not change: measured once."""
_WITH_HEAD = ("eagle3-5", "hybrid")
_REQUESTS, _SESSION_CALLS = 96, 8
"""Calls of a cell, and of a session: enough for 6 calls a client."""


@dataclass(frozen=True, slots=True)
class Setting:
    """What one run differs in from the base."""

    name: str
    device: str = BASE
    head: str = BASE_HEAD
    factors: Mapping[str, float] = field(default_factory=dict)
    """Of the step times, see StepTimes.scaled()."""
    systems: tuple[str, ...] = (*_HEADLESS, *_WITH_HEAD)
    tasks: tuple[str, ...] = TASKS


def settings() -> list[Setting]:
    """The base, the other heads, the other model, then the parts of the step times, on one task."""
    found = [Setting("base")]
    found += [Setting(f"head-{head}", head=head, systems=_WITH_HEAD) for head in HEADS if head != BASE_HEAD]
    found += [Setting("h200-32b", device="h200-32b")]
    found += [
        Setting(f"{BASE}-{part}-x{factor:g}", factors={part: factor}, tasks=TASKS[:1])
        for part in SCALABLE
        for factor in FACTORS
    ]
    return found


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m agentspec.evals.emulated.sensitivity", description=(__doc__ or "").partition("\n\n")[2]
    )
    options = Options(parser)
    options.folder("--data", f"folder with the traces of {' and '.join(TASKS)}", required=True)
    names = tuple(setting.name for setting in settings())
    options.names("--settings", names, "settings to measure")
    options.number("--requests", _REQUESTS, "model calls in a cell")
    options.number("--learn", 48, "model calls to learn from before a cell")
    options.folder("--work", "folder of the parts", cache_folder() / "sensitivity")
    options.file("--json", "the file of all settings", RESULT)
    options.flag("--plan", "print the settings with their numbers of cells, and exit")
    given = parser.parse_args(words)
    try:
        check_names("--settings", given.settings, names)
        some = [setting for setting in settings() if setting.name in given.settings]
        if given.plan:
            for one in some:
                print(f"{len(one.systems) * len(one.tasks):>3} cells  {one.name}")
            return 0
        return _measured(some, given)
    except AgentspecError as error:
        say(str(error))
        return 2


def _measured(some: Sequence[Setting], given: argparse.Namespace) -> int:
    given.work.mkdir(parents=True, exist_ok=True)
    bad = 0
    for number, setting in enumerate(some):
        say(f"{setting.name}, {number + 1} of {len(some)}")
        bad |= agentspec(_words(setting, given))
        _name_commit(given.work / f"{setting.name}.json")
        collect(given.work, given.json)
    return bad


def _words(setting: Setting, given: argparse.Namespace) -> list[str]:
    """The command of a setting, whose step times are written to the work folder."""
    device = setting.device
    if setting.factors:
        path = given.work / f"{setting.name}.times.json"
        StepTimes.load(device).scaled(setting.name, setting.factors).save(path)
        device = str(path)
    words = ["eval", *setting.tasks, "--data", str(given.data), "--emulate", device, "--head", setting.head]
    words += ["--passes", "warm", "--repeat", "1", "--concurrency", str(CLIENTS), "--requests", str(given.requests)]
    words += ["--session-calls", str(_SESSION_CALLS), "--learn", str(given.learn)]
    words += [word for system in setting.systems for word in ("--system", system)]
    return [*words, "--resume", "--json", str(given.work / f"{setting.name}.json")]


def _name_commit(path: Path) -> None:
    """Adds the commit to the records of a part that have none: a later run may have another."""
    if path.exists():
        part = json.loads(path.read_text(encoding="utf-8"))
        now = commit()
        write_lines(path, {"settings": part["settings"]}, [{"commit": now, **record} for record in part["records"]])


def collect(work: Path, result: Path) -> None:
    """Writes the records of all parts of a work folder to one file.

    Raises:
        ConfigError: There is no part.
    """
    records: list[dict[str, Any]] = []
    for setting in settings():
        path = work / f"{setting.name}.json"
        if path.exists():
            kept = json.loads(path.read_text(encoding="utf-8"))["records"]
            varied = {"setting": setting.name, "factors": dict(setting.factors)}
            records += [{**record, **varied} for record in kept]
    if not records:
        raise ConfigError(f"{work} must hold files of settings, such as base.json, and holds none")
    write_lines(result, {"base": {"emulated": BASE, "head": BASE_HEAD}}, records)


if __name__ == "__main__":
    sys.exit(main())
