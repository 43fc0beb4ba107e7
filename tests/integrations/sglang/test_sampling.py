"""At temperature > 0, agentspec's drafts do not change the distribution of answers."""

from __future__ import annotations

from typing import Any

import pytest
from sampled_answers import SIGNIFICANCE, draw, greedy_behind_the_first_token, p_value, request
from server_requests import assert_same, counters_of, generate, greedy_requests, tokens_of

from agentspec.integrations.servers.server import Server

pytestmark = [pytest.mark.sglang, pytest.mark.server]


@pytest.mark.parametrize(
    "sampling",
    [{}, {"top_p": 0.9}, {"top_k": 3}, {"top_k": 20, "top_p": 0.9, "min_p": 0.02}],
    ids=["temperature", "top_p", "top_k", "all three"],
)
def test_answers_are_distributed_as_those_of_plain_decoding(
    plain: Server, agentspec: Server, sampling: dict[str, Any]
) -> None:
    number = 150 if sampling else 300
    expected = draw(plain, number, **sampling)
    draw(agentspec, 40, **sampling)  # later drafts use what the server learns here
    before = counters_of(agentspec)
    got = draw(agentspec, number, **sampling)
    after = counters_of(agentspec)
    assert p_value(got, expected) > SIGNIFICANCE
    assert after["drafted_tokens"] - before["drafted_tokens"] > number
    refused = after["drafted_tokens"] - after["accepted_tokens"] > before["drafted_tokens"] - before["accepted_tokens"]
    assert after["accepted_tokens"] > before["accepted_tokens"] and refused
    # Samples of this size suffice to detect a server that ignores the temperature.
    assert p_value(greedy_behind_the_first_token(plain, got), expected) < SIGNIFICANCE


def test_greedy_requests_stay_greedy_beside_sampled_ones(plain: Server, agentspec: Server) -> None:
    greedy = greedy_requests(4, 400, 40)
    expected = tokens_of(generate(plain, greedy, 4))
    sampled = [request(temperature=1.0, max_new_tokens=60, ignore_eos=True) for _ in range(4)]
    for _ in range(2):
        mixed = [body for pair in zip(greedy, sampled, strict=True) for body in pair]
        assert_same(tokens_of(generate(agentspec, mixed, 8))[::2], expected)
