"""The two passes of text-to-SQL questions in the demo, and the figures of their answers."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from agentspec.errors import ServerError
from agentspec.evals.systems import HYBRIDS, SYSTEMS
from agentspec.integrations.servers.server import Server
from agentspec.workflows.text_to_sql import (
    Answer,
    ChainConfig,
    Completion,
    Database,
    OpenAIChat,
    Question,
    answer_questions,
    draw_questions,
)

DEMONSTRATED = {**SYSTEMS, "hybrid": HYBRIDS["hybrid"]}
"""The systems that can be shown."""
PASSES = ("cold", "warm")


@dataclass(frozen=True)
class PassResult:
    """One pass of one system. Tokens are answer tokens; the first of each request comes from its prefill."""

    name: str
    requests: int
    tokens: int
    seconds: float
    tokens_per_second: float
    accept_length: float
    verify_steps: int
    accuracy: float

    def record(self, pass_name: str) -> dict[str, Any]:
        return {"name": self.name, "pass": pass_name, **{k: v for k, v in asdict(self).items() if k != "name"}}


def draw_passes(databases: dict[Database, Path], number: int, seed: int) -> dict[str, list[Question]]:
    """Held-out questions for each pass; no question is in both."""
    drawn = list(islice(draw_questions(databases, split="heldout", seed=seed), number * len(PASSES)))
    return {name: drawn[i * number : (i + 1) * number] for i, name in enumerate(PASSES)}


def ask(
    server: Server,
    questions: Sequence[Question],
    databases: dict[Database, Path],
    concurrency: int,
    *,
    learn: bool = True,
) -> list[Answer]:
    """The server's answers. Without `learn`, agentspec does not store them."""
    custom = None if learn else {"agentspec": {"no_store": True}}
    return asyncio.run(_ask(server, questions, ChainConfig(concurrency=concurrency), databases, custom))


async def _ask(
    server: Server,
    questions: Sequence[Question],
    config: ChainConfig,
    databases: dict[Database, Path],
    custom_params: dict[str, Any] | None,
) -> list[Answer]:
    from openai import AsyncOpenAI

    extra: dict[str, Any] = {"return_spec_tokens_details": True}
    if custom_params is not None:
        extra["custom_params"] = custom_params
    async with AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        model = OpenAIChat(client, "tiny-sql", extra_body=extra)
        return await answer_questions(model, list(questions), databases, config)


def check_active(state: dict[str, Any] | None) -> None:
    """Refuses figures that agentspec did not contribute to: SGLang goes on without a plugin that failed to load."""
    if state is None or not state.get("active"):
        raise ServerError(
            "agentspec is not active in the server, so its figures would be NGRAM's; see the server's log"
        )
    if not state["counters"]["drafted_tokens"]:
        raise ServerError(f"agentspec drafted nothing, so there is nothing to show: {state['counters']}")


def measure(name: str, answers: Sequence[Answer], seconds: float) -> PassResult:
    """The figures of one pass.

    accept_length is (tokens - requests) / verify_steps: the first token of each request comes from its prefill. A
    decode step of a plain server counts as a verify step of width one.

    Raises:
        ServerError: A call failed, or a speculative server did not report its verify steps.
    """
    completions = [call.completion for answer in answers for call in answer.calls]
    failed = [completion.error for completion in completions if completion.error]
    if failed:
        raise ServerError(
            f"{len(failed)} of {len(completions)} calls to {DEMONSTRATED[name].label} failed; the first: {failed[0]}"
        )
    tokens = sum(completion.completion_tokens for completion in completions)
    decoded = tokens - len(completions)
    steps = decoded if name == "none" else sum(verify_steps(completion) for completion in completions)
    if decoded and not steps:
        raise ServerError(f"{DEMONSTRATED[name].label} reported no verify steps; is speculative decoding on?")
    return PassResult(
        name=name,
        requests=len(completions),
        tokens=tokens,
        seconds=round(seconds, 3),
        tokens_per_second=round(tokens / seconds, 1),
        accept_length=round(decoded / steps, 3) if steps else 0.0,
        verify_steps=steps,
        accuracy=round(sum(answer.outcome == "correct" for answer in answers) / len(answers), 3),
    )


def verify_steps(completion: Completion) -> int:
    """The number of verify steps that SGLang reports with an answer."""
    return _find_number(completion.extra, "spec_verify_ct")


def _find_number(value: Any, key: str) -> int:
    if isinstance(value, dict):
        found = value.get(key)
        return found if isinstance(found, int) else sum(_find_number(part, key) for part in value.values())
    if isinstance(value, list):
        return sum(_find_number(part, key) for part in value)
    return 0


def output_of(answer: Answer) -> list[tuple[str, str, int, str]]:
    """What must not depend on the drafter: text, length and finish reason of each call."""
    return [
        (call.stage, call.completion.text, call.completion.completion_tokens, call.completion.finish_reason)
        for call in answer.calls
    ]
