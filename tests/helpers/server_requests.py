"""Requests of tests to real servers: prompts like the shipped model's training texts, and functions that send them."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

from parity import compared

from agentspec.evals.parity import requests as parity_requests
from agentspec.evals.parity.servers import PARITY_ARGUMENTS
from agentspec.evals.sql_databases import link_prompts
from agentspec.evals.text_to_sql import MODEL_FOLDER
from agentspec.integrations.servers.server import Server

MODEL = MODEL_FOLDER
CONTEXT_LENGTH = parity_requests.CONTEXT_LENGTH
ARGUMENTS = PARITY_ARGUMENTS

chat_prompts = cache(link_prompts)


def generate(server: Server, requests: list[dict[str, Any]], at_once: int) -> list[Any]:
    """Sends `requests` to the native endpoint, at most `at_once` at a time; returns the replies in order."""
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
    """Checks that the answers have the same tokens; counts the compared ones."""
    assert got == expected
    compared["answers"] += len(got)
    compared["tokens"] += sum(len(tokens) for tokens in got)
