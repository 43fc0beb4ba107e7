"""Open prompts to the small model, live: a control, for no two are about the same.

Data: held-out open requests, drawn by seed; see evals/research/tiny_sql/open_chat.
Metric: none but speed; there is no right answer to them.
Source: evals/research/tiny_sql/open_chat of this repository.

Answers have numbers of tokens that are drawn, the same for every server, also where the model would have ended before. Were
all alike, clients of a server without drafts would be answered at the same time and ask at the same time, and it would read
their prompts in one batch, which servers with drafts, and servers of real traffic, have no chance to.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import starmap

from agentspec.evals.research.tiny_sql.open_chat import draw_open_prompts
from agentspec.evals.workloads.prompts import chat_encoder
from agentspec.evals.workloads.task import Conversation, EndlessPool, FixedCall, Pool, Task, TaskInputs
from agentspec.workflows.text_to_sql import Message

ANSWER_TOKENS = (16, 48)
"""From, to."""


def _pool(inputs: TaskInputs) -> Pool:
    encode = chat_encoder(inputs.model)
    lengths = random.Random(f"open-chat/{inputs.seed}")

    def unit(number: int, messages: Sequence[Message]) -> Conversation:
        sampling = {"temperature": 0, "max_new_tokens": lengths.randint(*ANSWER_TOKENS), "ignore_eos": True}
        call = FixedCall({"input_ids": encode(messages), "sampling_params": sampling})
        return Conversation(f"open-{number}", (call,))

    prompts = enumerate(draw_open_prompts(split="heldout", seed=inputs.seed))
    return EndlessPool(starmap(unit, prompts), 1, inputs.learnt_calls)


TASK = Task(
    name="open_chat",
    data=f"held-out open prompts, live, answers of {ANSWER_TOKENS[0]} to {ANSWER_TOKENS[1]} tokens",
    metric="none",
    source="evals/research/tiny_sql/open_chat.py",
    pool=_pool,
)
