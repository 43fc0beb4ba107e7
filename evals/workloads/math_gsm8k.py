"""Step-by-step solutions, replayed: a control.

Data: math_gsm8k.jsonl.xz, 1319 solutions of grade-school mathematics.
Metric: whether the recorded answers come back token for token, with speed; their content was judged where they were made.
Source: openai/grade-school-math, MIT

The recorded answers are forced upon the served model: see agentspec.evals.workloads.replayed.
"""

from __future__ import annotations

from agentspec.evals.workloads.replayed import replay_task

TASK = replay_task(
    "math_gsm8k",
    data="step-by-step solutions of GSM8K; a control",
    source="openai/grade-school-math, MIT",
)
