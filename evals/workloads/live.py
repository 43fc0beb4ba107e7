"""Tasks that the served model answers itself.

text_to_sql    A chain of agents links, writes, checks and repairs; each prompt contains the answers before it. The questions
               are held out: the small model was trained on others of the same six generated databases.
open_chat      A control: no two prompts are about the same thing. See evals/workloads/open_chat.py.

Decoding is greedy. Answers of the agents end where the model ends them, and `identical` in each record says whether they
agree between servers. Answers to open prompts have drawn lengths, the same for every server. With one length for all, the
clients of a server without drafts would be answered, and ask again, at the same moment; it would prefill their prompts in
one batch, which neither servers with drafts nor servers with real traffic can do.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import starmap

from agentspec.evals.workloads.open_chat import draw_open_prompts
from agentspec.evals.workloads.prompts import chat_encoder
from agentspec.evals.workloads.task import Conversation, EndlessPool, FixedCall, Pool, Task, TaskInputs
from agentspec.workflows.text_to_sql import Message, draw_questions

CALLS_A_QUESTION = 3
"""Number of calls that the chain of agents makes for a question, on average."""
ANSWER_TOKENS = (16, 48)
"""Least and greatest length of an answer to an open prompt."""


def _questions(inputs: TaskInputs) -> Pool:
    questions = draw_questions(dict(inputs.databases), split="heldout", seed=inputs.seed)
    return EndlessPool(questions, CALLS_A_QUESTION, inputs.learnt_calls)


def _prompts(inputs: TaskInputs) -> Pool:
    encode = chat_encoder(inputs.model)
    lengths = random.Random(f"open-chat/{inputs.seed}")

    def unit(number: int, messages: Sequence[Message]) -> Conversation:
        sampling = {"temperature": 0, "max_new_tokens": lengths.randint(*ANSWER_TOKENS), "ignore_eos": True}
        call = FixedCall({"input_ids": encode(messages), "sampling_params": sampling})
        return Conversation(f"open-{number}", (call,))

    prompts = enumerate(draw_open_prompts(seed=inputs.seed))
    return EndlessPool(starmap(unit, prompts), 1, inputs.learnt_calls)


LIVE = (
    Task(
        name="text_to_sql",
        data="held-out questions of six generated databases, through a chain of agents, live",
        metric="execution accuracy",
        source="workflows/text_to_sql",
        pool=_questions,
    ),
    Task(
        name="open_chat",
        data=f"held-out open prompts, live, answers of {ANSWER_TOKENS[0]} to {ANSWER_TOKENS[1]} tokens",
        metric="none",
        source="evals/workloads/open_chat.py",
        pool=_prompts,
    ),
)
