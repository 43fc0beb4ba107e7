"""Where the rows of a step stand, whatever of the device's results the scheduler has processed."""

from __future__ import annotations

import gc
from array import array

import pytest

torch = pytest.importorskip("torch", reason="needs torch: run `make setup`")
from agentspec.integrations.sglang.accepted_tokens import AcceptedTokens


class Request:
    """The part of SGLang's `Req` that is read."""

    def __init__(self, num_prompt: int = 5) -> None:
        self.origin_input_ids = array("q", range(100, 100 + num_prompt))
        self.output_ids: array[int] = array("q")


def verified(found: AcceptedTokens, requests: list[Request], accepted: list[list[int]], width: int = 4) -> None:
    tokens = torch.tensor([row + [0] * (width - len(row)) for row in accepted], dtype=torch.int32)
    lens = torch.tensor([len(row) for row in accepted], dtype=torch.int32)
    found.verified(requests, found.texts(requests).seq_lens, tokens.flatten(), lens)


def test_the_first_decode_after_a_prefill_starts_from_the_sampled_token() -> None:
    """With overlap it is launched before the prefill's result is processed, so that `output_ids` is empty."""
    found, request = AcceptedTokens(), Request()
    found.prefilled([request], [5], torch.tensor([91]))
    texts = found.texts([request])
    assert texts.seq_lens.tolist() == [5] and list(texts.unprocessed[0]) == [91] and texts.is_known.all()
    request.output_ids.append(91)
    texts = found.texts([request])
    assert texts.seq_lens.tolist() == [5] and not texts.unprocessed[0] and texts.is_known.all()


@pytest.mark.parametrize("lag", [0, 1])
def test_any_run_of_steps_is_known_without_gap_or_repeat(lag: int) -> None:
    """`lag` results are not processed when the next step is drafted for: 1 with overlap, 0 without or with a grammar."""
    found, request = AcceptedTokens(), Request()
    steps = [[1], [2, 3, 4], [5], [6, 7], [8, 9, 10, 11]]
    found.prefilled([request], [5], torch.tensor(steps[0]))
    for k in range(1, len(steps)):
        if k > lag:
            request.output_ids.extend(steps[k - 1 - lag])
        texts = found.texts([request])
        written = [token for step in steps[:k] for token in step]
        assert [*request.output_ids, *texts.unprocessed[0]] == written
        assert texts.seq_lens.tolist() == [5 + len(written) - 1]
        verified(found, [request], [steps[k]])


def test_chunks_and_a_retraction_begin_anew() -> None:
    found, request = AcceptedTokens(), Request(8)
    found.prefilled([request], [4], torch.tensor([77]))
    found.prefilled([request], [8], torch.tensor([1]))
    verified(found, [request], [[2, 3]])
    request.output_ids.extend([1])
    # What step [2, 3] accepted was dropped with the request's KV; its text is read again.
    found.prefilled([request], [9], torch.tensor([2]))
    texts = found.texts([request])
    assert texts.seq_lens.tolist() == [9] and list(texts.unprocessed[0]) == [2] and texts.is_known.all()


@pytest.mark.parametrize("output", [[1, 2], [1, 2, 3, 4, 5], []], ids=["part of a step", "too many", "too few"])
def test_rows_whose_counts_contradict_each_other_are_told(output: list[int]) -> None:
    found, request = AcceptedTokens(), Request()
    found.prefilled([request], [5], torch.tensor([1]))
    verified(found, [request], [[2, 3, 4]])
    request.output_ids.extend(output)
    texts = found.texts([request, stranger := Request(3)])
    assert texts.is_known.tolist() == [False, False]
    assert not texts.unprocessed[0] and not texts.unprocessed[1]
    assert stranger is not None and texts.seq_lens.tolist()[1] == 2


def test_what_is_read_back_is_what_was_accepted_then() -> None:
    """The next forward may write to the same memory, as graphs do."""
    found, request = AcceptedTokens(), Request()
    found.prefilled([request], [5], torch.tensor([1]))
    seq_lens = found.texts([request]).seq_lens
    tokens, lens = torch.tensor([2, 3, 0]), torch.tensor([2])
    read = found.verified([request], seq_lens, tokens, lens)
    tokens.zero_()
    lens.zero_()
    assert read.wait().tolist() == [[2, 2, 3, 0]]
    request.output_ids.append(1)
    assert list(found.texts([request]).unprocessed[0]) == [2, 3]


def test_a_request_is_forgotten_with_its_object() -> None:
    found, request = AcceptedTokens(), Request()
    found.prefilled([request], [5], torch.tensor([1]))
    found.texts([request])
    del request
    gc.collect()
    assert not found._known
