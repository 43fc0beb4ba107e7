"""What `agentspec bench hybrid` asks of every server: the agents' questions and open chat, in phases.

    agents-cold   questions, with nothing learned yet
    agents        other questions of the same databases, after the cold ones
    mix           further questions and open prompts at the same time, with half of the clients each
    change        questions, then suddenly open prompts, then questions again
    open          open prompts, with nothing learned yet

A phase starts when the previous one has ended. The index and the prefix cache are flushed before phases with nothing
learned.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path

from agentspec.errors import ConfigError
from agentspec.evals.options import check_names
from agentspec.evals.research.tiny_sql.open_chat import draw_open_prompts
from agentspec.evals.run.phases import CALLS_A_QUESTION, Phase, Stream
from agentspec.workflows.text_to_sql import Database, draw_questions

WORKLOADS = ("agents", "open", "mix", "change")
# The rows that each workload gives.
ROWS = {"agents": ("agents-cold", "agents"), "open": ("open",), "mix": ("mix",), "change": ("change",)}
CONCURRENCY = 4


def plan_phases(
    workloads: Sequence[str], databases: Mapping[Database, Path], num_requests: int, seed: int
) -> list[Phase]:
    """The phases of the chosen workloads, which do not depend on what serves them. No question or prompt occurs twice.

    Args:
        workloads: Names out of WORKLOADS.
        num_requests: Model calls of each kind in a phase; approximate for the agents.
        seed: Of questions and prompts.

    Raises:
        ConfigError: A workload is unknown, or there is less than one request.
    """
    check_names("workloads", workloads, WORKLOADS)
    if num_requests < 1:
        raise ConfigError(f"a phase must have at least 1 request, got {num_requests}")
    # Everything is drawn in one order, so that a workload does not depend on which others are chosen.
    questions = draw_questions(dict(databases), split="heldout", seed=seed)
    prompts = draw_open_prompts(split="heldout", seed=seed)
    num_questions = max(1, round(num_requests / CALLS_A_QUESTION))
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
