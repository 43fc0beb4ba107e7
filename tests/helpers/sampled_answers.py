"""Short answers drawn at temperature > 0 from real servers, and whether two servers draw them alike."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
from server_requests import MODEL
from tokenizers import Tokenizer

from agentspec.evals.chi_square import homogeneity
from agentspec.integrations.servers.server import Server

Answers = Counter[tuple[int, ...]]
# Behind it the shipped model has several likely tokens, one after the other.
PROMPT: list[int] = Tokenizer.from_file(str(MODEL / "tokenizer.json")).encode("SELECT ").ids
# Batches form by chance, so runs differ; of a million of them one may fail for nothing.
SIGNIFICANCE = 1e-6


def request(**sampling: Any) -> dict[str, Any]:
    return {"input_ids": PROMPT, "sampling_params": {"max_new_tokens": 3, "ignore_eos": True, **sampling}}


def draw(server: Server, number: int, **sampling: Any) -> Answers:
    """The answers to `number` requests for the same, as many at once as the server takes."""
    replies = server.post("/generate", request(temperature=1.0, n=number, **sampling))
    return Counter(tuple(reply["output_ids"]) for reply in replies)


def greedy_behind_the_first_token(plain: Server, answers: Answers) -> Answers:
    """What a server would have answered that samples in prefill and verifies greedily."""
    greedy: Answers = Counter()
    for first, number in Counter({answer[0]: 0 for answer in answers}).items():
        number = sum(count for answer, count in answers.items() if answer[0] == first)
        body = {**request(temperature=0), "input_ids": [*PROMPT, first]}
        greedy[first, *plain.post("/generate", body)["output_ids"][:2]] += number
    return greedy


def p_value(first: Answers, second: Answers) -> float:
    """Of both being drawn from one distribution."""
    answers = sorted(first.keys() | second.keys())
    counts = np.array([[drawn[answer] for answer in answers] for drawn in (first, second)])
    return homogeneity(*counts)
