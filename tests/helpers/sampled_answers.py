"""Samples short answers at temperature > 0 from real servers, and compares the distributions of two servers."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
from server_requests import MODEL
from tokenizers import Tokenizer

from agentspec.evals.chi_square import homogeneity
from agentspec.integrations.servers.server import Server

Answers = Counter[tuple[int, ...]]
# After this prompt the shipped model has several likely tokens at each of the next positions.
PROMPT: list[int] = Tokenizer.from_file(str(MODEL / "tokenizer.json")).encode("SELECT ").ids
# Batches form by chance, so runs differ. One run in a million may fail although nothing is wrong.
SIGNIFICANCE = 1e-6


def request(**sampling: Any) -> dict[str, Any]:
    return {"input_ids": PROMPT, "sampling_params": {"max_new_tokens": 3, "ignore_eos": True, **sampling}}


def draw(server: Server, number: int, **sampling: Any) -> Answers:
    """The answers to `number` equal requests, sent with as much concurrency as the server allows."""
    replies = server.post("/generate", request(temperature=1.0, n=number, **sampling))
    return Counter(tuple(reply["output_ids"]) for reply in replies)


def greedy_behind_the_first_token(plain: Server, answers: Answers) -> Answers:
    """The answers of a server that samples in prefill but verifies greedily."""
    greedy: Answers = Counter()
    for first, number in Counter({answer[0]: 0 for answer in answers}).items():
        number = sum(count for answer, count in answers.items() if answer[0] == first)
        body = {**request(temperature=0), "input_ids": [*PROMPT, first]}
        greedy[first, *plain.post("/generate", body)["output_ids"][:2]] += number
    return greedy


def p_value(first: Answers, second: Answers) -> float:
    """p value of the hypothesis that both samples have the same distribution."""
    answers = sorted(first.keys() | second.keys())
    counts = np.array([[drawn[answer] for answer in answers] for drawn in (first, second)])
    return homogeneity(*counts)
