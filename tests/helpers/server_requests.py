"""Requests of tests to real servers: prompts like the shipped model's training texts, and functions that send them."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import cycle
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


def state_of(server: Server) -> dict[str, Any]:
    """What agentspec, which must be active in the server, tells of itself."""
    state = server.agentspec_state()
    assert state is not None, "agentspec is not active in the server"
    return state


def counters_of(server: Server) -> dict[str, Any]:
    counters: dict[str, Any] = state_of(server)["counters"]
    return counters


def from_outputs(server: Server) -> int:
    """Number of tokens so far in drafts whose first token came from finished outputs."""
    return int(counters_of(server)["by_source"].get("drafted_tokens", {}).get("global", 0))


def tokens_of(replies: list[Any]) -> list[list[int]]:
    return [reply["output_ids"] for reply in replies]


def greedy_requests(number: int, seed: int, *lengths: int, **sampling: Any) -> list[dict[str, Any]]:
    """Chats whose answers are not sampled, and have at most as many tokens as `lengths` say in turn."""
    return [
        {"text": text, "sampling_params": {"temperature": 0, "max_new_tokens": length, **sampling}}
        for text, length in zip(chat_prompts(number, seed=seed), cycle(lengths), strict=False)
    ]


def forced_request(prompt: list[int], answer: list[int]) -> dict[str, Any]:
    """A request that a server which replays answers with `answer`."""
    forced = {"max_new_tokens": len(answer), "custom_params": {"agentspec": {"replay": {"ids": answer}}}}
    return {"input_ids": prompt, "sampling_params": {"temperature": 0, "ignore_eos": True, **forced}}


def corpus_requests() -> list[dict[str, Any]]:
    """Requests whose answers are in the corpus that the server under test drafts from."""
    return greedy_requests(3, 200, 48)


def assert_same(got: list[list[int]], expected: list[list[int]]) -> None:
    """Checks that the answers have the same tokens; counts the compared ones."""
    assert got == expected
    compared["answers"] += len(got)
    compared["tokens"] += sum(len(tokens) for tokens in got)
