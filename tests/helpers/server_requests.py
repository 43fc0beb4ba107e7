"""What the tests ask real servers: prompts in the shipped model's own language, and how to send them."""

from __future__ import annotations

import tempfile
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any

from parity import compared

from agentspec.evals.server import Server
from agentspec.evals.text_to_sql import MODEL_FOLDER
from agentspec.evals.tiny_sql.tokenizer import render
from agentspec.workflows.text_to_sql import DATABASES, create_all, draw_questions
from agentspec.workflows.text_to_sql.prompts import link_messages

MODEL = MODEL_FOLDER
CONTEXT_LENGTH = 640
# Small chunks and a small cache: prompts are prefilled in pieces, and prefixes are evicted and hit.
ARGUMENTS = (
    "--context-length", str(CONTEXT_LENGTH), "--chunked-prefill-size", "96", "--max-total-tokens", "8192",
    "--max-running-requests", "8", "--grammar-backend", "xgrammar", "--random-seed", "1", "--skip-server-warmup",
)  # fmt: skip


@cache
def chat_prompts(number: int, seed: int) -> list[str]:
    """What the schema linker is asked for `number` held-out questions, rendered with the chat template."""
    with tempfile.TemporaryDirectory() as folder:
        paths = create_all(DATABASES, Path(folder))
        databases = {database: paths[database.name] for database in DATABASES}
        by_name = {database.name: database for database in DATABASES}
        questions = islice(draw_questions(databases, split="heldout", seed=seed), number)
        return [render(link_messages(by_name[q.database], q.text)) for q in questions]


def generate(server: Server, requests: list[dict[str, Any]], at_once: int) -> list[Any]:
    """Sends `requests` to the native endpoint, at most `at_once` at a time; replies in order."""
    with ThreadPoolExecutor(at_once) as pool:
        return list(pool.map(lambda body: server.post("/generate", body), requests))


def tokens_of(replies: list[Any]) -> list[list[int]]:
    return [reply["output_ids"] for reply in replies]


def corpus_requests() -> list[dict[str, Any]]:
    """Requests whose answers are in the corpus that the server under test drafts from."""
    return [
        {"text": text, "sampling_params": {"temperature": 0, "max_new_tokens": 48}}
        for text in chat_prompts(3, seed=200)
    ]


def assert_same(got: list[list[int]], expected: list[list[int]]) -> None:
    """The same tokens, answer by answer; counts what was compared."""
    assert got == expected
    compared["answers"] += len(got)
    compared["tokens"] += sum(len(tokens) for tokens in got)
