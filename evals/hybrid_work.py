"""What `agentspec bench hybrid` asks of every server: the agents' questions and open chat, in phases.

    agents-cold   questions, nothing learned yet
    agents        other questions of the same databases, what the cold ones taught still there
    mix           further questions and open prompts at the same time, half of the requests in flight each
    change        questions, then suddenly open prompts, then questions again
    open          open prompts, nothing learned yet

A phase starts when the one before has ended. The index and the prefix cache are flushed where nothing is to be known.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Literal, TypeVar

from agentspec.errors import ConfigError
from agentspec.evals.tiny_sql.open_chat import draw_open_prompts
from agentspec.workflows.text_to_sql import Database, Message, Question, draw_questions

Kind = Literal["agents", "open"]
KINDS: tuple[Kind, ...] = ("agents", "open")
WORKLOADS = ("agents", "open", "mix", "change")
# The rows that each workload gives.
ROWS = {"agents": ("agents-cold", "agents"), "open": ("open",), "mix": ("mix",), "change": ("change",)}
CONCURRENCY = 4
# Calls that the chain of agents makes for a question, on average.
_CALLS_A_QUESTION = 3

Prompt = tuple[Message, ...]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Stream:
    """Work of one kind, `concurrency` questions or prompts at a time."""

    concurrency: int
    questions: tuple[Question, ...] = ()
    prompts: tuple[Prompt, ...] = ()

    @property
    def kind(self) -> Kind:
        return "agents" if self.questions else "open"

    @property
    def requests(self) -> int:
        """About so many model calls."""
        return len(self.questions) * _CALLS_A_QUESTION + len(self.prompts)

    def part(self, i: int, of: int) -> Stream:
        """The i-th of so many parts."""

        def cut(work: tuple[T, ...]) -> tuple[T, ...]:
            return work[len(work) * i // of : len(work) * (i + 1) // of]

        return Stream(self.concurrency, cut(self.questions), cut(self.prompts))


@dataclass(frozen=True, slots=True)
class Phase:
    """Streams that run at the same time; `row` names what they are reported as, "" for none."""

    row: str
    streams: tuple[Stream, ...]
    flush: bool = False

    def slices(self, size: int) -> list[tuple[Stream, ...]]:
        """The streams in turns of about `size` requests of each, so that servers can be asked turn by turn."""
        number = max(1, round(max(stream.requests for stream in self.streams) / size))
        return [tuple(stream.part(i, number) for stream in self.streams) for i in range(number)]


def plan_phases(
    workloads: Sequence[str], databases: Mapping[Database, Path], num_requests: int, seed: int
) -> list[Phase]:
    """The phases of the chosen workloads, the same whatever serves them; no question or prompt occurs twice.

    Args:
        workloads: names out of WORKLOADS.
        num_requests: model calls of each kind in a phase, about so many of the agents.
        seed: of questions and prompts.

    Raises:
        ConfigError: an unknown workload, or less than one request.
    """
    unknown = [name for name in workloads if name not in WORKLOADS]
    if unknown or not workloads:
        raise ConfigError(f"workloads must be out of {', '.join(WORKLOADS)}, got {', '.join(unknown) or 'none'}")
    if num_requests < 1:
        raise ConfigError(f"a phase must have at least 1 request, got {num_requests}")
    # The work of a workload does not depend on which others are chosen, so everything is drawn in one order.
    questions = draw_questions(dict(databases), split="heldout", seed=seed)
    prompts = draw_open_prompts(split="heldout", seed=seed)
    num_questions = max(1, round(num_requests / _CALLS_A_QUESTION))
    asked = {name: tuple(islice(questions, num_questions)) for name in ("cold", "warm", "mix", "change", "change back")}
    chatted = {name: tuple(islice(prompts, num_requests)) for name in ("open", "mix", "change")}

    def agents(name: str, concurrency: int = CONCURRENCY) -> Stream:
        return Stream(concurrency, questions=asked[name])

    def chat(name: str, concurrency: int = CONCURRENCY) -> Stream:
        return Stream(concurrency, prompts=chatted[name])

    phases: list[Phase] = []
    if set(workloads) & {"agents", "mix", "change"}:
        phases.append(Phase("agents-cold" if "agents" in workloads else "", (agents("cold"),), flush=True))
    if "agents" in workloads:
        phases.append(Phase("agents", (agents("warm"),)))
    if "mix" in workloads:
        half = CONCURRENCY // 2
        phases.append(Phase("mix", (agents("mix", half), chat("mix", half))))
    if "change" in workloads:
        phases += [Phase("change", (stream,)) for stream in (agents("change"), chat("change"), agents("change back"))]
    if "open" in workloads:
        phases.append(Phase("open", (chat("open"),), flush=True))
    return phases
