"""Samples short answers at temperature > 0 from real servers, and compares the distributions of two servers."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
from server_requests import MODEL
from tokenizers import Tokenizer

from agentspec.evals.chi_square import homogeneity
from agentspec.integrations.servers.server import Server

# How often each answer was drawn; an answer starts with the number of its prompt.
Answers = Counter[tuple[int, ...]]
# After each prompt the shipped model has several likely tokens at each of the next positions. After the first
# one it refuses nearly all tokens of the small draft model, after the second one it accepts nearly all.
PROMPTS: list[list[int]] = [
    encoding.ids
    for encoding in Tokenizer.from_file(str(MODEL / "tokenizer.json")).encode_batch(["SELECT ", "SELECT COUNT"])
]
# Batches form by chance, so runs differ. One run in a million may fail although nothing is wrong.
SIGNIFICANCE = 1e-6


def request(prompt: list[int] = PROMPTS[0], **sampling: Any) -> dict[str, Any]:
    return {"input_ids": prompt, "sampling_params": {"max_new_tokens": 3, "ignore_eos": True, **sampling}}


def draw(server: Server, number: int, **sampling: Any) -> Answers:
    """`number` answers to each prompt. The requests of a prompt are sent at once."""
    answers: Answers = Counter()
    for index, prompt in enumerate(PROMPTS):
        replies = server.post("/generate", request(prompt, temperature=1.0, n=number, **sampling))
        answers.update((index, *reply["output_ids"]) for reply in replies)
    return answers


def greedy_behind_the_first_token(plain: Server, answers: Answers) -> Answers:
    """The answers of a server that samples in prefill but verifies greedily."""
    greedy: Answers = Counter()
    for prompt, first in {answer[:2] for answer in answers}:
        number = sum(count for answer, count in answers.items() if answer[:2] == (prompt, first))
        body = request([*PROMPTS[prompt], first], temperature=0)
        greedy[prompt, first, *plain.post("/generate", body)["output_ids"][:2]] += number
    return greedy


def p_value(first: Answers, second: Answers) -> float:
    """p value of the hypothesis that both samples have the same distribution."""
    answers = sorted(first.keys() | second.keys())
    counts = np.array([[drawn[answer] for answer in answers] for drawn in (first, second)])
    return homogeneity(*counts)
