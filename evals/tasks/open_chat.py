"""Open prompts to the small model, live: a control, for no two are about the same.

Data: held-out open requests, drawn by seed; see evals/tiny_sql/open_chat.
Metric: none but speed; there is no right answer to them.
Source: evals/tiny_sql/open_chat of this repository.

Every answer has the same number of tokens, also where the model would have ended before.
"""

from __future__ import annotations

from agentspec.evals.tasks.prompts import chat_encoder
from agentspec.evals.tasks.task import Conversation, EndlessPool, FixedCall, Pool, Task, TaskInputs
from agentspec.evals.tiny_sql.open_chat import draw_open_prompts

ANSWER_TOKENS = 32


def _pool(inputs: TaskInputs) -> Pool:
    encode = chat_encoder(inputs.model)
    sampling = {"temperature": 0, "max_new_tokens": ANSWER_TOKENS, "ignore_eos": True}
    units = (
        Conversation(f"open-{number}", (FixedCall({"input_ids": encode(messages), "sampling_params": dict(sampling)}),))
        for number, messages in enumerate(draw_open_prompts(split="heldout", seed=inputs.seed))
    )
    return EndlessPool(units, 1, inputs.learnt_calls)


TASK = Task(
    name="open_chat",
    data=f"held-out open prompts, live, answers of {ANSWER_TOKENS} tokens",
    metric="none",
    source="evals/tiny_sql/open_chat.py",
    pool=_pool,
)
