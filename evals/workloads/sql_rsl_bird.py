"""Multi-stage text-to-SQL over BIRD, replayed.

Data: sql_rsl_bird.jsonl.xz, 1534 questions through seven stages of a DeepSeek model; outputs only.
Metric: whether the recorded answers come back token for token, with speed; their content was judged where they were made.
Source: Laqcce-cao/RSL-SQL, Apache-2.0; quotes BIRD, CC BY-SA 4.0

The recorded answers are forced upon the served model: see agentspec.evals.workloads.replayed.
"""

from __future__ import annotations

from agentspec.evals.workloads.replayed import replay_task

TASK = replay_task(
    "sql_rsl_bird",
    data="multi-stage text-to-SQL over BIRD dev, a DeepSeek model",
    source="Laqcce-cao/RSL-SQL, Apache-2.0; quotes BIRD, CC BY-SA 4.0",
    is_staged=True,
)
