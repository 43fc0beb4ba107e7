"""Smoke tests of real servers for `make test`: plain SGLang, suffix drafts, and suffix drafts with an EAGLE-3 head.

The other server tests cover much more; `make test-all` runs them.
"""

from __future__ import annotations

from typing import Any

import pytest
from server_requests import assert_same, chat_prompts, generate, state_of, tokens_of

from agentspec.evals import text_to_sql
from agentspec.integrations.servers.server import Server

pytestmark = [
    pytest.mark.sglang,
    pytest.mark.server,
    pytest.mark.smoke,
    pytest.mark.parametrize("agentspec", ["suffix", "eagle3"], indirect=True),
]


def test_answers_are_those_of_plain_decoding(plain: Server, agentspec: Server) -> None:
    requests = [
        {"text": text, "sampling_params": {"temperature": 0, "max_new_tokens": length, "ignore_eos": length < 20}}
        for text, length in zip(chat_prompts(12, seed=400), [90, 7, 48, 19] * 3, strict=True)
    ]
    expected, got = generate(plain, requests, 4), generate(agentspec, requests, 4)
    assert_same(tokens_of(got), tokens_of(expected))
    assert [reply["text"] for reply in got] == [reply["text"] for reply in expected]
    state = state_of(agentspec)
    assert state["active"]
    counters = state["counters"]
    assert 0 < counters["accepted_tokens"] <= counters["drafted_tokens"]


def test_a_streamed_chat_is_that_of_plain_decoding(plain: Server, agentspec: Server) -> None:
    question: dict[str, Any] = {
        "model": "tiny-sql",
        "messages": [{"role": "user", "content": "question: how many orders are there?"}],
        "temperature": 0,
        "max_tokens": 40,
    }
    expected = plain.post("/v1/chat/completions", question)["choices"][0]["message"]["content"]
    events = list(agentspec.stream("/v1/chat/completions", {**question, "stream": True}))
    assert (
        "".join(event["choices"][0]["delta"].get("content") or "" for event in events if event["choices"]) == expected
    )


def test_a_chain_of_agents_answers_heldout_questions(agentspec: Server, capsys: pytest.CaptureFixture[str]) -> None:
    assert text_to_sql.main(["--base-url", f"{agentspec.url}/v1", "--questions", "12", "--seed", "3"]) == 0
    total = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("all"))
    correct, wrong, truncated, error = (int(cell) for cell in total.split()[1:5])
    assert correct + wrong + truncated + error == 12
    assert correct >= 8 and error == 0
