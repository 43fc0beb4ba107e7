"""Runs the cells of tasks on the servers of systems, and keeps their records."""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from agentspec.environment import without_folders
from agentspec.errors import AgentspecError, ConfigError
from agentspec.evals.emulated.servers import Emulation, bind, release
from agentspec.evals.options import check_names
from agentspec.evals.run.calls import Asking, Turn, ask_cells
from agentspec.evals.run.cells import Cell, Key
from agentspec.evals.run.file import missing, write_records
from agentspec.evals.run.records import Record, compared, failed_record, key_of, record_of
from agentspec.evals.systems import (
    EAGLE3_FOLDER,
    HYBRIDS,
    RIVAL_CONTROLLERS,
    STANDALONE,
    STANDALONE_FOLDER,
    STOPPING,
    SWEEPS,
    SYSTEMS,
    WIDER_NGRAM,
    System,
    chains_alone,
)
from agentspec.evals.text_to_sql import MODEL_FOLDER
from agentspec.integrations.servers.server import REPLAYED, Server
from agentspec.progress import say, waiting

# Plain decoding comes first: the others' outputs are compared with its.
EVALUATED: dict[str, System] = {
    **{name: SYSTEMS[name] for name in ("none", "ngram", "standalone", "eagle3")},
    **WIDER_NGRAM,
    **chains_alone("STANDALONE", "STANDALONE", STANDALONE),
    "suffix": SYSTEMS["agentspec"],
    **{name: HYBRIDS[name] for name in ("hybrid", "hybrid-standalone")},
    **RIVAL_CONTROLLERS,
    **STOPPING,
    **SWEEPS,
}
DEFAULT_SYSTEMS = ("none", "ngram", "suffix", "hybrid")
_START_SECONDS = 1200.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Servers:
    """How the servers of a run are started."""

    model: Path
    max_running: int
    """Greatest number of requests in a batch."""
    request_tokens: int
    """Greatest number of tokens in a request, prompt and answer."""
    logs: Path
    on_cpu: bool
    arguments: tuple[str, ...] = ()
    """For every server, in addition to those of its system."""
    emulation: Emulation | None = None
    """The device that every server emulates, or None."""
    store: str | None = None
    """URL of the store of agentspec's servers; None: they keep nothing."""
    corpora: tuple[Path, ...] = ()
    """What agentspec's servers draft from besides outputs."""

    def start(self, stack: ExitStack, name: str, system: System, *, is_replay: bool, repeat: int) -> Server:
        """A server that the stack stops."""
        if system.is_ours:
            system = replace(system, variables={**system.variables, **self._shared()})
        kind = _kind(is_replay) if self.emulation is None else self.emulation.name
        log = self.logs / f"{kind}-{name}-{repeat}.log"
        patience: dict[str, Any] = {"start_seconds": _START_SECONDS, "on_wait": waiting}
        if self.emulation is not None:
            release()
            server = stack.enter_context(
                self.emulation.server(
                    system, max_running=self.max_running, log=log, arguments=self.arguments, **patience
                )
            )
            bind(server)
        else:
            arguments = [*system.arguments, "--max-running-requests", str(self.max_running)]
            if self.on_cpu:
                # On a GPU, SGLang finds out what fits. Here the requests of all clients should run at the same time.
                arguments += ["--max-total-tokens", str(max(32768, self.max_running * self.request_tokens))]
            variables = {**system.variables, **(REPLAYED if is_replay else {})}
            words = (*arguments, *self.arguments)
            server = stack.enter_context(
                Server(self.model, system.algorithm, log=log, arguments=words, environment=variables, **patience)
            )
        say(f"  {name} ready after {server.start_seconds:.0f} s")
        return server

    def _shared(self) -> dict[str, str]:
        """The variables of every server of ours."""
        variables = {}
        if self.store is not None:
            # A name that no other server has, so that none learns from another or from an earlier run.
            variables = {"AGENTSPEC_STORE": self.store, "AGENTSPEC_STORE_MODEL": f"eval-{uuid.uuid4()}"}
        if self.corpora:
            variables["AGENTSPEC_CORPORA"] = ":".join(str(path.resolve()) for path in self.corpora)
        return variables


def systems_of(names: Sequence[str], model: Path, eagle3: Path | None, standalone: Path | None) -> dict[str, System]:
    """The systems by name, plain decoding first, with the draft models of the served model.

    Raises:
        ConfigError: A name is unknown, or a system needs a draft model that was not given for this model.
    """
    check_names("--system", names, EVALUATED)
    drafters = {str(EAGLE3_FOLDER): eagle3, str(STANDALONE_FOLDER): standalone}
    found = {}
    for name, system in EVALUATED.items():
        if name not in names:
            continue
        shipped = [word for word in system.arguments if word in drafters]
        if model != MODEL_FOLDER and any(drafters[word] is None for word in shipped):
            raise ConfigError(
                f"--system {name} needs a drafter for {model.name}: pass "
                + ("--eagle3-model" if str(EAGLE3_FOLDER) in shipped else "--standalone-model")
            )
        words = [str(drafters.get(word) or word) for word in system.arguments]
        found[name] = replace(system, arguments=tuple(words))
    return found


class Run:
    """The records so far, which are written to a file after every turn.

    Args:
        records: Those of an interrupted run.
        settings: What the cells depend on.
        context: What every record contains besides its figures.
        path: The file; None to write none.
    """

    def __init__(
        self,
        records: Sequence[Mapping[str, Any]],
        settings: Mapping[str, Any],
        context: Mapping[str, Any],
        path: Path | None,
    ) -> None:
        self._records: dict[tuple[Key, str], Mapping[str, Any]] = {
            (key_of(record), record["system"]): record for record in records
        }
        self._settings, self._context, self._path = settings, context, path

    def records(self) -> list[Record]:
        return compared(self._records.values())

    def measure(
        self, cells: Sequence[Cell], systems: Mapping[str, System], asking: Asking, servers: Servers, *, together: bool
    ) -> None:
        """Measures the cells of one repeat that have no figures yet. A failure is recorded, and the other systems go
        on.

        The cells are all live or all replays, as `asking` says, because a server does only one of both.
        """
        kind, repeat = _kind(asking.is_replay), cells[0].repeat
        todo = missing(cells, list(systems), list(self._records.values()), together=together)
        names = [name for name in systems if todo[name]]
        if not names:
            say(f"{kind}, repeat {repeat + 1}: the file has all figures, so nothing is measured")
            return
        say(f"{kind}, repeat {repeat + 1}: {', '.join(names)}")
        # New figures are not mixed with old ones.
        for name in names:
            for cell in todo[name]:
                self._records.pop((cell.key, name), None)

        def slices(stack: ExitStack, name: str) -> Iterator[Turn]:
            server = servers.start(stack, name, systems[name], is_replay=asking.is_replay, repeat=repeat)
            yield from ask_cells(server, systems[name], todo[name], asking)

        def context_of(name: str) -> dict[str, Any]:
            words = (*systems[name].words, *servers.arguments)
            return {**self._context, "server_arguments": [without_folders(word) for word in words]}

        def on_turn(done: Mapping[str, Sequence[Turn]]) -> None:
            for name, turns in done.items():
                for result in filter(None, (turn.result for turn in turns)):
                    key = result.cell.key, name
                    if key not in self._records:
                        self._records[key] = record_of(name, systems[name], result, context_of(name))
            self._write()
            say(f"  {_progress(done)}")

        for some in (names,) if together else [[name] for name in names]:
            done, errors = _ask_in_turns(some, slices, on_turn)
            for name, error in errors.items():
                measured = sum(turn.result is not None for turn in done[name])
                for cell in todo[name][measured:]:
                    self._records[cell.key, name] = failed_record(name, cell, error, context_of(name))
        self._write()

    def _write(self) -> None:
        if self._path is not None:
            write_records(self._path, self._records.values(), self._settings)


def _ask_in_turns(
    names: Sequence[str],
    slices: Callable[[ExitStack, str], Iterator[Turn]],
    on_turn: Callable[[Mapping[str, Sequence[Turn]]], object],
) -> tuple[dict[str, list[Turn]], dict[str, str]]:
    """The slices of each server in order, and the error of each server that failed; the others go on.

    All servers are alive meanwhile, so that every server meets the same disturbances of the machine.

    Args:
        names: Of the servers.
        slices: Starts a server, which the stack stops, when its first slice is asked for.
        on_turn: Called after each turn with what is done so far.
    """
    with ExitStack() as stack:
        asked = {name: slices(stack, name) for name in names}
        done: dict[str, list[Turn]] = {name: [] for name in names}
        errors: dict[str, str] = {}
        # The first turn starts the servers.
        turn = 0
        while asked:
            for name in _rotated(tuple(asked), turn):
                try:
                    result = next(asked[name], None)
                except (AgentspecError, OSError) as failure:
                    errors[name] = without_folders(_first_lines(str(failure)))
                    say(f"  {name} failed: {errors[name]}")
                    result = None
                if result is None:
                    del asked[name]
                else:
                    done[name].append(result)
            turn += 1
            if asked:
                on_turn(done)
        return done, errors


def _rotated(names: Sequence[str], turn: int) -> list[str]:
    """The order of a turn: no server always follows the same one."""
    first = turn % len(names) if names else 0
    return [*names[first:], *names[:first]]


def _first_lines(text: str) -> str:
    """The error itself and, if a log follows it, the log line that most likely gives the reason."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if len(lines) < 2:
        return text.strip()
    told = [line for line in lines[1:] if re.match(r"[\w.]*(Error|Exception)\b", line)]
    return f"{lines[0]} {(told or lines)[-1]}"


def _progress(done: Mapping[str, Sequence[Turn]]) -> str:
    """Tokens a second in the latest turn."""
    last = {name: turns[-1] for name, turns in done.items() if turns}
    if not last:
        return "nothing measured yet"
    cell = done[max(last, key=lambda name: len(done[name]))][-1].cell
    speeds = [f"{name} {turn.tokens / turn.seconds:.0f}" for name, turn in last.items()]
    return f"{cell.task}, {cell.pass_name}, {cell.concurrency} at a time: tokens/s {', '.join(speeds)}"


def _kind(is_replay: bool) -> str:
    return "replay" if is_replay else "live"
