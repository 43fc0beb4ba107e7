"""What `agentspec bench load` asks of every server, and the servers that it compares.

    agents   text-to-SQL questions, after others of the same databases were answered
    open     open prompts; what was learnt is dropped before each number of clients

Each number of clients is a row, asked in several turns. Clients wait for their answers before they ask again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path

from agentspec.errors import ConfigError
from agentspec.evals.options import check_names
from agentspec.evals.research.tiny_sql.open_chat import draw_open_prompts
from agentspec.evals.run.phases import CALLS_A_QUESTION, Phase, Stream
from agentspec.evals.systems import SYSTEMS, System, fixed_length
from agentspec.workflows.text_to_sql import Database, draw_questions

WORKLOADS = ("open", "agents")
FIXED_LENGTHS = (3, 7, 15)
# Plain decoding comes first, because the others' outputs are compared with its outputs.
LOADED = {
    "none": SYSTEMS["none"],
    "agentspec": SYSTEMS["agentspec"],
    **{f"fixed-{length}": fixed_length(length) for length in FIXED_LENGTHS},
    **{
        objective: System(
            f"agentspec, {objective}", "AGENTSPEC", variables={"AGENTSPEC_CONTROLLER_OBJECTIVE": objective}
        )
        for objective in ("run", "ahead")
    },
}
DEFAULT_SYSTEMS = ("none", "agentspec", *(f"fixed-{length}" for length in FIXED_LENGTHS))
_TAUGHT_QUESTIONS, _TAUGHT_AT_A_TIME = 16, 4


def row_name(workload: str, concurrency: int) -> str:
    return f"{workload}@{concurrency}"


def plan_load(
    workload: str,
    databases: Mapping[Database, Path],
    concurrencies: Sequence[int],
    num_requests: int,
    turns: int,
    seed: int,
) -> list[Phase]:
    """The phases of a workload, one for each turn. No question or prompt occurs twice.

    Args:
        workload: One of WORKLOADS.
        databases: Of the agents' questions.
        concurrencies: Numbers of clients.
        num_requests: Model calls for each number of clients, approximate for the agents. It is raised where every
            client would get less than two prompts, or one question, in a turn.
        turns: Number of parts in which they are asked.
        seed: Of questions and prompts.

    Raises:
        ConfigError: A value is out of range.
    """
    check_names("workloads", (workload,), WORKLOADS)
    if min(num_requests, turns, *concurrencies) < 1:
        raise ConfigError(
            f"requests, turns and clients must be at least 1, got {num_requests}, {turns} and {concurrencies}"
        )
    questions = draw_questions(dict(databases), split="heldout", seed=seed)
    prompts = draw_open_prompts(split="heldout", seed=seed)
    phases = []
    if workload == "agents":
        taught = tuple(islice(questions, _TAUGHT_QUESTIONS))
        phases.append(Phase("", (Stream(_TAUGHT_AT_A_TIME, questions=taught),), flush=True))
    for concurrency in concurrencies:
        for turn in range(turns):
            if workload == "agents":
                number = max(round(num_requests / turns / CALLS_A_QUESTION), concurrency)
                stream = Stream(concurrency, questions=tuple(islice(questions, number)))
            else:
                number = max(round(num_requests / turns), 2 * concurrency)
                stream = Stream(concurrency, prompts=tuple(islice(prompts, number)))
            flush = workload == "open" and turn == 0
            phases.append(Phase(row_name(workload, concurrency), (stream,), flush=flush))
    return phases
