"""A tool-calling customer-service agent, replayed.

Data: tools_tau_airline.jsonl.xz, 200 sessions of GPT-4o, 50 tasks with four trials each.
Metric: whether the recorded answers come back token for token, with speed; their content was judged where they were made.
Source: sierra-research/tau-bench, MIT

The recorded answers are forced upon the served model: see agentspec.evals.workloads.replayed.
"""

from __future__ import annotations

from agentspec.evals.workloads.replayed import replay_task

TASK = replay_task(
    "tools_tau_airline",
    data="tool-calling agent of tau-bench's airline, GPT-4o",
    source="sierra-research/tau-bench, MIT",
)
