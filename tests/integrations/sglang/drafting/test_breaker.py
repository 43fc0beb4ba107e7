from __future__ import annotations

from agentspec.integrations.sglang.drafting.breaker import Breaker


def test_opens_after_failures_in_a_row_and_tries_again_after_the_pause() -> None:
    breaker = Breaker(max_failures=2, pause_steps=3)
    for outcome in (breaker.failed, breaker.succeeded, breaker.failed):
        assert breaker.allow()
        outcome()
    assert not breaker.is_open, "a success in between starts the count anew"

    breaker.failed()

    assert [breaker.allow() for _ in range(4)] == [False, False, False, True]
    breaker.failed()
    assert breaker.is_open, "one failure after the pause is enough"
    assert breaker.num_openings == 2
    for _ in range(3):
        breaker.allow()
    assert breaker.allow()
    breaker.succeeded()
    breaker.failed()
    assert not breaker.is_open, "after a success it takes the full number again"
