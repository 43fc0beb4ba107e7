"""A coding agent on SWE-bench Lite, replayed.

Data: swe_mini_agent.jsonl.xz, 92 sessions of DeepSeek-chat, four runs over the same 23 tasks.
Metric: whether the recorded answers come back token for token, with speed; their content was judged where they were made.
Source: SWE-agent/mini-swe-agent, pull request 816, MIT

The recorded answers are forced upon the served model: see agentspec.evals.workloads.replayed.
"""

from __future__ import annotations

from agentspec.evals.workloads.replayed import replay_task

TASK = replay_task(
    "swe_mini_agent",
    data="coding agent on SWE-bench Lite dev, DeepSeek-chat",
    source="SWE-agent/mini-swe-agent, pull request 816, MIT",
)
