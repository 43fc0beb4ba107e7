"""How much the gains depend on the draft model, the served model and the GPU: `python -m agentspec.evals.emulated.sensitivity`.

Dataset: recorded tasks of agents, and two controls that repeat little; warm.
Metric: tokens a second of the hybrid over the best single system, and over plain decoding, where one thing differs from the
base: what the EAGLE-3 head accepts, the model, or one part of the step times, halved and doubled.
Pattern: an event clock (event_clock.py), so no server runs, no host is timed, and every run gives the same figures.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from agentspec.evals.emulated.clocked_systems import system_named
from agentspec.evals.emulated.draft_hits import FOLDER as HITS
from agentspec.evals.emulated.event_clock import serve
from agentspec.evals.emulated.hollow_models import hollow_model
from agentspec.evals.emulated.servers import MAX_ANSWER_TOKENS, PUBLISHED, RECORDED, head_acceptance
from agentspec.evals.files import commit, write_lines
from agentspec.evals.options import Program, check_names
from agentspec.evals.run.cells import Cell, plan_cells
from agentspec.evals.systems import HEAD_STEPS
from agentspec.evals.workloads.replayed import RECORDED as TASKS
from agentspec.evals.workloads.task import TaskInputs
from agentspec.integrations.emulated_device.models.step_times import SCALABLE, StepTimes
from agentspec.progress import Progress

BASE, BASE_HEAD = "h200-8b", "2.8"
HEADS = ("1.1", "1.5", "2.4", "2.8", "3.2", "4.2")
"""Accept lengths in chains of 5; docs/emulated-device.md says which heads have them."""
AGENTS = ("swe_mini_agent", "sql_rsl_bird", "sql_intercode_spider", "tools_tau_airline")
CONTROLS = ("math_gsm8k", "chat_mt_bench")
CLIENTS = (1, 16, 64)
_BASE_CLIENTS = (1, 4, 16, 64)
FACTORS = (0.5, 2.0)
RESULT = Path(__file__).resolve().parents[1] / "results" / "emulated" / "sensitivity.json"

_NGRAM = tuple(f"ngram-{width}" for width in (4, 12, 32, 64))
_HEADLESS = ("none", "suffix")
"""Systems that a head does not change: run once for each device."""
_CALLS, _CALLS_A_CLIENT = 300, 40
"""Model calls of a cell, at least, if the trace has as many."""
_LEARNT_CALLS, _LEARNT_A_CLIENT = 100, 4
_SESSION_CALLS, _MAX_PROMPT_TOKENS = 16, 16_000


@dataclass(frozen=True, slots=True)
class Setting:
    """What differs from the base."""

    name: str
    device: str = BASE
    head: str = BASE_HEAD
    factors: Mapping[str, float] = field(default_factory=dict)
    """Of the step times, see StepTimes.scaled()."""
    clients: tuple[int, ...] = CLIENTS
    tasks: tuple[str, ...] = (*AGENTS, *CONTROLS)
    rivals: tuple[str, ...] = ()
    """Systems besides those of every setting."""

    def times(self) -> StepTimes:
        return StepTimes.load(self.device).scaled(self.name, self.factors)


def settings() -> list[Setting]:
    """The base, the other heads, the published curve, the recorded draft model, the other model, then the parts of the step times."""
    heads = [head for head in HEADS if head != BASE_HEAD]
    base = Setting("base", clients=_BASE_CLIENTS, rivals=_NGRAM)
    found = [base, *(Setting(f"head-{head}", head=head) for head in (*heads, PUBLISHED))]
    # Too few sessions were recorded with a draft model for more clients.
    found.append(Setting(f"head-{RECORDED}", head=RECORDED, clients=CLIENTS[:1]))
    found.append(Setting("h200-32b", device="h200-32b", tasks=AGENTS[:2]))
    # An event clock has no host, so its launches take no time.
    parts = [part for part in SCALABLE if part not in ("launches", "small")]
    return found + [
        Setting(f"{part}-x{factor:g}", factors={part: factor}, tasks=AGENTS[:2]) for part in parts for factor in FACTORS
    ]


def main(words: Sequence[str] | None = None) -> int:
    options = Program("emulated.sensitivity", (__doc__ or "").partition("\n\n")[2])
    options.folder("--data", f"folder with the traces of {', '.join((*AGENTS, *CONTROLS))}", required=True)
    names = tuple(setting.name for setting in settings())
    options.names("--settings", names, "settings to run")
    options.names("--tasks", (*AGENTS, *CONTROLS), "recorded tasks")
    options.number("--processes", os.cpu_count() or 1, "cells that run at once")
    options.file("--json", "the file of all settings", RESULT)
    return options.run(_run, words)


def _run(given: argparse.Namespace) -> int:
    check_names("--settings", given.settings, [setting.name for setting in settings()])
    check_names("--tasks", given.tasks, (*AGENTS, *CONTROLS))
    some = [setting for setting in settings() if setting.name in given.settings]
    begun_at = commit()
    records = _measured(some, given.tasks, given.data, given.processes)
    head = {"base": {"emulated": BASE, "head": BASE_HEAD}}
    write_lines(given.json, head, ({"commit": begun_at, **record} for record in records))
    return 0


@dataclass(frozen=True, slots=True)
class _Job:
    """A cell of a setting."""

    setting: Setting
    task: str
    clients: int
    data: Path
    model: Path
    """Its tokenizer makes the tokens."""


def _measured(some: Sequence[Setting], tasks: Sequence[str], data: Path, processes: int) -> list[dict[str, Any]]:
    # They are written anew at each call, so not by several processes.
    models = {device: hollow_model(device)[0] for device in {setting.device for setting in some}}
    jobs = [
        _Job(setting, task, clients, data, models[setting.device])
        for task in tasks
        for clients in _BASE_CLIENTS
        for setting in some
        if clients in setting.clients and task in setting.tasks
    ]
    found: list[dict[str, Any]] = []
    with ProcessPoolExecutor(processes) as pool, Progress("cells", len(jobs)) as progress:
        for done, records in enumerate(pool.map(_records, jobs), start=1):
            found += records
            progress.update(done)
    return found


def _records(job: _Job) -> list[dict[str, Any]]:
    """Of each system. The hybrid makes as many passes as are best for EAGLE-3 alone, as a user would have chosen them."""
    setting = job.setting
    times, head = setting.times(), head_acceptance(setting.head)
    cell = _cell(job.task, job.clients, job.data, job.model, recorded=setting.head == RECORDED)
    told = {
        "setting": setting.name,
        "emulated": setting.device,
        "head": setting.head,
        "factors": dict(setting.factors),
        "task": job.task,
        "clients": job.clients,
        "calls": sum(len(getattr(unit, "calls", ())) for unit in cell.units),
    }

    def record(system: str) -> dict[str, Any]:
        return {**told, "system": system, **serve(system_named(system, times, job.clients), cell, head)}

    has_headless = setting.head in (BASE_HEAD, RECORDED)
    found = [record(system) for system in (*(_HEADLESS if has_headless else ()), *setting.rivals)]
    chains = {passes: record(f"eagle3-{passes}") for passes in HEAD_STEPS}
    best = max(chains, key=lambda passes: float(chains[passes]["tokens_per_second"]))
    return [*found, *chains.values(), record(f"hybrid-{best}")]


@lru_cache(maxsize=3)
def _cell(name: str, clients: int, data: Path, model: Path, *, recorded: bool) -> Cell:
    """The same for all systems."""
    [task] = [task for task in TASKS if task.name == name]
    calls = max(_CALLS, _CALLS_A_CLIENT * clients)
    learnt = max(_LEARNT_CALLS, _LEARNT_A_CLIENT * clients)
    inputs = TaskInputs(
        model=model,
        data=data,
        learnt_calls=learnt,
        max_prompt_tokens=_MAX_PROMPT_TOKENS,
        max_answer_tokens=MAX_ANSWER_TOKENS,
        session_calls=_SESSION_CALLS,
        draft_hits=HITS if recorded else None,
    )
    [cell] = plan_cells(name, task.pool(inputs), ("warm",), [clients], 1, calls)
    return cell


if __name__ == "__main__":
    sys.exit(main())
