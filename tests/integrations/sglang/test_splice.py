"""Which tokens of a request the scheduler has not processed yet."""

from __future__ import annotations

import pytest

from agentspec.integrations.sglang.splice import SpliceError, unprocessed_tokens


@pytest.mark.parametrize(
    ("num_processed", "seq_len", "accepted", "expected"),
    [
        # First decode after a prefill of 5 tokens, overlap: the first output token is still relayed only.
        (5, 5, [91], [91]),
        # The same without overlap, or with a grammar: the scheduler has processed it.
        (6, 5, [], []),
        # A step that accepted two drafts and the bonus token.
        (6, 8, [1, 2, 3], [1, 2, 3]),
        # The relayed row was processed after all, because the scheduler had to wait: nothing may be doubled.
        (9, 8, [1, 2, 3], []),
        # A step that accepted nothing but the bonus token.
        (6, 6, [7], [7]),
    ],
)
def test_splice(num_processed: int, seq_len: int, accepted: list[int], expected: list[int]) -> None:
    assert list(unprocessed_tokens(num_processed=num_processed, seq_len=seq_len, accepted=accepted)) == expected


@pytest.mark.parametrize(
    ("num_processed", "seq_len", "accepted"),
    [
        (6, 9, [1, 2, 3]),  # four missing, three relayed
        (6, 7, []),  # two missing, nothing relayed
        (9, 6, [1]),  # the scheduler processed more than there is KV for
    ],
)
def test_counts_that_contradict_each_other_are_refused(num_processed: int, seq_len: int, accepted: list[int]) -> None:
    with pytest.raises(SpliceError, match=str(seq_len)):
        unprocessed_tokens(num_processed=num_processed, seq_len=seq_len, accepted=accepted)


def test_any_run_of_overlapped_steps_is_spliced_without_gap_or_repeat() -> None:
    """Replays the overlap schedule: the draft of step k sees the results up to k - 2 processed, and k - 1 relayed."""
    prompt = list(range(100, 107))
    steps = [[1], [2, 3, 4], [5], [6, 7], [8, 9, 10, 11]]
    processed: list[int] = []
    for k, accepted in enumerate(steps):
        seq_len = len(prompt) + sum(len(step) for step in steps[: k + 1]) - 1
        tail = unprocessed_tokens(num_processed=len(prompt) + len(processed), seq_len=seq_len, accepted=accepted)
        assert processed + list(tail) == [token for step in steps[: k + 1] for token in step]
        processed += accepted
