"""Open chat, replayed: a control, for little of it repeats.

Data: chat_mt_bench.jsonl.xz, 80 sessions of Vicuna-13B, near-greedy, two turns each.
Metric: whether the recorded answers come back token for token, with speed; their content was judged where they were made.
Source: FasterDecoding/Medusa, Apache-2.0

The recorded answers are forced upon the served model: see agentspec.evals.workloads.replayed.
"""

from __future__ import annotations

from agentspec.evals.workloads.replayed import replay_task

TASK = replay_task(
    "chat_mt_bench",
    data="open chat of MT-Bench, Vicuna-13B; a control",
    source="FasterDecoding/Medusa, Apache-2.0",
)
