"""Runs a workload on both servers in turns and keeps a record of every turn.

The tasks are cut into slices. In a turn one server does one slice; then the other server does the same slice. Which of
them begins alternates. A server meets no task twice unless the whole is repeated, so nothing is answered from memory of
the same request. Before a repeat both servers drop what they have learnt.

Where only one server can run at a time, a server does all slices of a repeat, is stopped, and the other one is started.

A finished turn is one line of `turns.jsonl`, from which an interrupted run goes on.
"""

from __future__ import annotations

import json
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from agentspec.ab.arms import LABELS, Arm, Arms, flush
from agentspec.ab.calls import Call
from agentspec.ab.proxy import RecordingProxy
from agentspec.ab.workload import Target, TaskResult, Workload
from agentspec.errors import ConfigError
from agentspec.progress import Progress, say
from agentspec.record_file import RecordFile, check_settings

_TURNS_FILE, _ARMS_FILE, _RUN_FILE = "turns.jsonl", "servers.json", "run.json"
_DEFAULT_TURNS = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class ExperimentConfig:
    """How the work is divided. Raises ConfigError if a number is out of range.

    Args:
        turns: Number of slices; 0: ten, or fewer if a slice would then have fewer tasks than run at a time.
        repeats: Number of times that the whole is done.
        warm_up: Number of first tasks that are done but not counted.
    """

    turns: int = 0
    repeats: int = 1
    warm_up: int = 0

    def __post_init__(self) -> None:
        if self.turns < 0 or self.repeats < 1 or self.warm_up < 0:
            raise ConfigError(
                f"--turns and --warm-up must be at least 0 and --repeat at least 1, got {self.turns}, {self.warm_up} and "
                f"{self.repeats}"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """What one server did in one turn."""

    repeat: int
    slice: int
    """-1 for the warm-up."""
    label: str
    seconds: float
    results: tuple[TaskResult, ...]
    calls: tuple[Call, ...]

    @classmethod
    def of(cls, values: dict[str, Any]) -> Turn:
        """A turn from its record. Raises KeyError or TypeError if it is none."""
        results = tuple(TaskResult(**result) for result in values.pop("results"))
        calls = tuple(Call(**call) for call in values.pop("calls"))
        return cls(**values, results=results, calls=calls)


@dataclass(frozen=True, slots=True)
class Outcome:
    """A finished experiment."""

    arms: dict[str, Arm]
    turns: list[Turn]
    notes: list[str]
    resumed: int
    """Number of turns from an earlier run."""


def slices_of(number: int, config: ExperimentConfig, concurrency: int) -> list[tuple[int, int]]:
    """(start, count) of each slice of `number` tasks; the warm-up comes first if there is one."""
    warm_up = min(config.warm_up, max(number - 1, 0))
    rest = number - warm_up
    turns = config.turns or min(_DEFAULT_TURNS, rest // max(concurrency, 1))
    turns = max(1, min(turns, rest))
    edges = [warm_up + rest * place // turns for place in range(turns + 1)]
    slices = [(start, end - start) for start, end in pairwise(edges)]
    return [(0, warm_up), *slices] if warm_up else slices


def run_experiment(
    workload: Workload,
    arms: Arms,
    config: ExperimentConfig,
    *,
    folder: Path,
    concurrency: int,
    api_key: str = "",
    keeps_files: bool = False,
    proxy_host: str = "127.0.0.1",
) -> Outcome:
    """Does all turns that are not done yet. If `folder` has records of the same experiment, the run goes on from them;
    with `keeps_files`, the files of each turn stay there too. `api_key` is sent to both servers, and the workload
    reaches the proxy at `proxy_host`. Raises ConfigError if the folder holds another experiment, or the workload
    cannot be run, and ServerError if a server does not answer."""
    slices = slices_of(len(workload.tasks), config, concurrency)
    first = 1 if config.warm_up and len(slices) > 1 else 0
    numbers = [place - first for place in range(len(slices))]
    settings = {"workload": workload.describe(), "config": asdict(config), "slices": slices, "servers": arms.describe()}
    check_settings(folder / _RUN_FILE, settings, "--out")
    records = RecordFile(folder / _TURNS_FILE)
    done = _read_turns(records)
    resumed, notes = len(done), list(workload.notes)
    plan = list(_plan(numbers, config.repeats, arms.together))
    left = [step for step in plan if step not in done]
    found = _read_arms(folder / _ARMS_FILE)
    turns = dict(done)
    flushed: set[tuple[int, str]] = set()
    if resumed:
        say(f"{resumed} of {len(plan)} turns were done before")
    if resumed and left:
        notes.append(
            "The run was interrupted. Servers that were started again had forgotten what they had learnt; one that was not "
            "may know requests of the turn that was interrupted, which it did again."
        )
    with ExitStack() as stack, Progress("turns", len(plan)) as progress:
        proxies: dict[str, RecordingProxy] = {}

        def proxy_of(label: str) -> RecordingProxy:
            if label not in proxies:
                if not arms.together:
                    stack.close()
                    proxies.clear()
                arm = found[label] = stack.enter_context(arms.open(label))
                _write_arms(folder / _ARMS_FILE, found)
                say(f"  server {label} is {arm.name}, {arm.model}")
                proxies[label] = stack.enter_context(
                    RecordingProxy(arm.url, api_key=api_key, asks_for_steps=arm.is_sglang, host=proxy_host)
                )
            return proxies[label]

        # Both servers are asked what they serve before the first turn, so that a wrong URL is found at once.
        if left and arms.together:
            for label in LABELS:
                proxy_of(label)
        for step in left:
            repeat, number, label = step
            proxy = proxy_of(label)
            if repeat and (repeat, label) not in flushed:
                flushed.add((repeat, label))
                if not flush(found[label], api_key):
                    note = f"Server {label} could not be made to forget between repeats, so later repeats are of requests that it knows."
                    notes += [] if note in notes else [note]
            start, count = slices[number + first]
            where = f"server {label}, " + (f"slice {number + 1} of {len(slices) - first}" if number >= 0 else "warm-up")

            def tell(tasks: int, where: str = where, count: int = count) -> None:
                progress.update(len(turns), f"{where}, {tasks} of {count} tasks")

            tell(0)
            kept = folder / f"repeat-{repeat}" / f"slice-{number}-{label}" if keeps_files else None
            turns[step] = _turn(workload, proxy, found[label], (start, count), step, tell, kept)
            records.append(asdict(turns[step]))
    return Outcome(found, [turns[step] for step in plan if step in turns], notes, resumed)


def _plan(numbers: Sequence[int], repeats: int, together: bool) -> Iterator[tuple[int, int, str]]:
    """(repeat, slice, label) of all turns in their order."""
    a, b = LABELS
    for repeat in range(repeats):
        if not together:
            for label in (a, b) if repeat % 2 == 0 else (b, a):
                yield from ((repeat, number, label) for number in numbers)
            continue
        for number in numbers:
            order = (a, b) if (repeat + number) % 2 == 0 else (b, a)
            yield from ((repeat, number, label) for label in order)


def _turn(
    workload: Workload,
    proxy: RecordingProxy,
    arm: Arm,
    where: tuple[int, int],
    step: tuple[int, int, str],
    on_task: Callable[[int], object],
    kept: Path | None,
) -> Turn:
    proxy.take()
    with tempfile.TemporaryDirectory(prefix="agentspec-ab-") as scratch:
        folder = Path(scratch)
        if kept is not None:
            # What an interrupted turn has left there is done again.
            shutil.rmtree(kept, ignore_errors=True)
            kept.mkdir(parents=True)
            folder = kept.absolute()
        began = time.monotonic()
        target = Target(base_url=proxy.base_url, model=arm.model, folder=folder, say=on_task)
        results = workload.run(*where, target)
        seconds = time.monotonic() - began
    calls = proxy.take()
    last = {call.task: call for call in calls}
    return Turn(
        repeat=step[0],
        slice=step[1],
        label=step[2],
        seconds=seconds,
        results=tuple(_judged(result, last.get(result.task)) for result in results),
        calls=tuple(calls),
    )


def _judged(result: TaskResult, last_call: Call | None) -> TaskResult:
    """The result of a task. Of a task that did not succeed and whose last call failed, it is an error: whoever gives up
    early because a server does not answer must not pass for fast."""
    if result.success is not False or result.error or last_call is None or not last_call.error:
        return result
    return replace(result, success=None, error=f"its last call failed: {last_call.error}")


def _read_turns(file: RecordFile) -> dict[tuple[int, int, str], Turn]:
    """The finished turns by repeat, slice and label."""
    return {(turn.repeat, turn.slice, turn.label): turn for turn in file.read(Turn.of)}


def _read_arms(path: Path) -> dict[str, Arm]:
    """The servers of an earlier run, by label."""
    if not path.exists():
        return {}
    return {values["label"]: Arm(**values) for values in json.loads(path.read_text(encoding="utf-8"))}


def _write_arms(path: Path, arms: Mapping[str, Arm]) -> None:
    values = [asdict(arms[label]) for label in sorted(arms)]
    path.write_text(json.dumps(values, indent=1) + "\n", encoding="utf-8")
