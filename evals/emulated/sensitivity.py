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

from agentspec.errors import AgentspecError
from agentspec.evals.emulated.clocked_systems import system_named
from agentspec.evals.emulated.draft_hits import FOLDER as HITS
from agentspec.evals.emulated.event_clock import serve
from agentspec.evals.emulated.hollow_models import hollow_model
from agentspec.evals.emulated.servers import HEAD_STEPS, MAX_ANSWER_TOKENS, RECORDED, head_acceptance
from agentspec.evals.files import commit, write_lines
from agentspec.evals.options import Options, check_names
from agentspec.evals.run.cells import Cell, plan_cells
from agentspec.evals.workloads.replayed import RECORDED as TASKS
from agentspec.evals.workloads.task import TaskInputs
from agentspec.integrations.emulated_device.models.step_times import SCALABLE, StepTimes
from agentspec.progress import Progress, say

BASE, BASE_HEAD = "h200-8b", "2.8"
HEADS = ("1.1", "1.5", "2.4", "2.8", "3.2", "4.2")
"""Accept lengths in chains of 5; docs/emulated-device.md says which heads have them."""
AGENTS = ("swe_mini_agent", "sql_rsl_bird", "sql_intercode_spider", "tools_tau_airline")
CONTROLS = ("math_gsm8k", "chat_mt_bench")
CLIENTS = (1, 4, 16, 64)
FACTORS = (0.5, 2.0)
RESULT = Path(__file__).resolve().parents[1] / "results" / "emulated" / "sensitivity.json"

_NGRAM_WIDTHS = (4, 8, 12, 32, 64)
_HEADLESS = ("none", *(f"ngram-{width}" for width in _NGRAM_WIDTHS), "suffix")
"""Systems that a head does not change: run once for each device."""
_WITH_HEAD = tuple(f"{system}-{passes}" for system in ("eagle3", "hybrid") for passes in HEAD_STEPS)
_CALLS, _CALLS_A_CLIENT = 300, 80
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

    def times(self) -> StepTimes:
        return StepTimes.load(self.device).scaled(self.name, self.factors)


def settings() -> list[Setting]:
    """The base, the other heads, the recorded draft model, the other model, then the parts of the step times."""
    heads = [head for head in HEADS if head != BASE_HEAD]
    found = [Setting("base"), *(Setting(f"head-{head}", head=head) for head in heads)]
    # Too few sessions were recorded with a draft model for more clients.
    found.append(Setting(f"head-{RECORDED}", head=RECORDED, clients=CLIENTS[:1]))
    found.append(Setting("h200-32b", device="h200-32b", tasks=AGENTS[:2]))
    # An event clock has no host, so its launches take no time.
    parts = [part for part in SCALABLE if part not in ("launches", "small")]
    return found + [
        Setting(f"{part}-x{factor:g}", factors={part: factor}, tasks=AGENTS[:2]) for part in parts for factor in FACTORS
    ]


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m agentspec.evals.emulated.sensitivity", description=(__doc__ or "").partition("\n\n")[2]
    )
    options = Options(parser)
    options.folder("--data", f"folder with the traces of {', '.join((*AGENTS, *CONTROLS))}", required=True)
    names = tuple(setting.name for setting in settings())
    options.names("--settings", names, "settings to run")
    options.names("--tasks", (*AGENTS, *CONTROLS), "recorded tasks")
    options.number("--processes", os.cpu_count() or 1, "cells that run at once")
    options.file("--json", "the file of all settings", RESULT)
    given = parser.parse_args(words)
    try:
        check_names("--settings", given.settings, names)
        check_names("--tasks", given.tasks, (*AGENTS, *CONTROLS))
        some = [setting for setting in settings() if setting.name in given.settings]
        begun_at = commit()
        records = _run(some, given.tasks, given.data, given.processes)
    except AgentspecError as error:
        say(str(error))
        return 2
    head = {"base": {"emulated": BASE, "head": BASE_HEAD}}
    write_lines(given.json, head, ({"commit": begun_at, **record} for record in records))
    return 0


@dataclass(frozen=True, slots=True)
class _Job:
    """A system in a cell."""

    setting: Setting
    task: str
    clients: int
    system: str
    data: Path
    model: Path
    """Its tokenizer makes the tokens."""


def _run(some: Sequence[Setting], tasks: Sequence[str], data: Path, processes: int) -> list[dict[str, Any]]:
    # They are written anew at each call, so not by several processes.
    models = {device: hollow_model(device)[0] for device in {setting.device for setting in some}}
    jobs = [
        _Job(setting, task, clients, system, data, models[setting.device])
        for task in tasks
        for clients in CLIENTS
        for setting in some
        if clients in setting.clients and task in setting.tasks
        for system in (*(_HEADLESS if _has_headless(setting) else ()), *_WITH_HEAD)
    ]
    found: list[dict[str, Any]] = []
    with ProcessPoolExecutor(processes) as pool, Progress("cells", len(jobs)) as progress:
        for record in pool.map(_record, jobs):
            found.append(record)
            progress.update(len(found))
    return found


def _has_headless(setting: Setting) -> bool:
    return setting.head == BASE_HEAD or setting.head == RECORDED


def _record(job: _Job) -> dict[str, Any]:
    setting, recorded = job.setting, job.setting.head == RECORDED
    cell = _cell(job.task, job.clients, job.data, job.model, recorded=recorded)
    figures = serve(system_named(job.system, setting.times(), job.clients), cell, head_acceptance(setting.head))
    told = {"emulated": setting.device, "head": setting.head, "factors": dict(setting.factors)}
    return {
        "setting": setting.name,
        **told,
        "task": job.task,
        "clients": job.clients,
        "system": job.system,
        "calls": sum(len(getattr(unit, "calls", ())) for unit in cell.units),
        **figures,
    }


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
