"""Text-to-SQL by a chain of agents, live: link, write, check, repair, each stage's prompt made of the answers before it.

Data: held-out questions of the six generated databases, drawn by seed; the shipped small model was trained on others.
Metric: execution accuracy, the share of questions whose SQL gives the rows of the gold SQL.
Source: workflows/text_to_sql of this repository, as in `agentspec demo`.

Answers end where the model ends them. Decoding is greedy, so that they have the same length whatever drafts; `identical`
of each record tells.
"""

from __future__ import annotations

from agentspec.evals.run.phases import CALLS_A_QUESTION
from agentspec.evals.workloads.task import EndlessPool, Pool, Task, TaskInputs
from agentspec.workflows.text_to_sql import draw_questions


def _pool(inputs: TaskInputs) -> Pool:
    questions = draw_questions(dict(inputs.databases), split="heldout", seed=inputs.seed)
    return EndlessPool(questions, CALLS_A_QUESTION, inputs.learnt_calls)


TASK = Task(
    name="text_to_sql",
    data="held-out questions of six generated databases, through a chain of agents, live",
    metric="execution accuracy",
    source="workflows/text_to_sql",
    pool=_pool,
)
