"""A SQL agent over Spider databases, replayed.

Data: sql_intercode_spider.jsonl.xz, 493 sessions of GPT-4, up to ten turns each.
Metric: whether the recorded answers come back token for token, with speed; their content was judged where they were made.
Source: princeton-nlp/intercode, MIT; quotes Spider, CC BY-SA 4.0

The recorded answers are forced upon the served model: see agentspec.evals.workloads.replayed.
"""

from __future__ import annotations

from agentspec.evals.workloads.replayed import replay_task

TASK = replay_task(
    "sql_intercode_spider",
    data="SQL agent over ten Spider databases, GPT-4",
    source="princeton-nlp/intercode, MIT; quotes Spider, CC BY-SA 4.0",
)
