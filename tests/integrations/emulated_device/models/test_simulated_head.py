"""The simulated head: a hash decides which drafts are right, at a given rate and at the same places in all systems."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from every import every

torch = pytest.importorskip("torch", reason="the plugin needs torch; `make setup` installs it")

from agentspec.integrations.emulated_device.models.simulated_head import (
    ACCEPTANCE_KEY,
    MISSES_KEY,
    PUBLISHED_BY_CONTEXT,
    Acceptance,
    SimulatedHead,
    acceptance_for,
    answer_key,
    comes_true,
)
from agentspec.integrations.sglang.replay.wire import WIRE_KEY, packed


@every("accept_length", [1.0, 3.2, 4.0, 4.7, 6.0])
def test_chains_of_that_acceptance_have_that_length(accept_length: float) -> None:
    p = acceptance_for(accept_length, 5)
    assert 1 + sum(p**i for i in range(1, 6)) == pytest.approx(accept_length, abs=1e-6)
    # Chains also have this mean length where the hash decides whether each position is right.
    keys = np.array([answer_key([i]) for i in range(4000)], np.int64)
    right = comes_true(keys[:, None], np.arange(5)[None, :] + 7, p)
    lengths = 1 + right.astype(int).cumprod(1).sum(1)
    assert lengths.mean() == pytest.approx(accept_length, abs=0.1)


def test_lengths_that_no_chain_has_are_refused() -> None:
    for accept_length in (0.5, 6.5):
        with pytest.raises(ValueError, match="between 1 and 6"):
            acceptance_for(accept_length, 5)


def test_the_hash_is_the_same_on_every_device() -> None:
    keys = np.random.default_rng(0).integers(0, 1 << 31, 300)
    positions = np.arange(300) * 37
    expected = comes_true(keys, positions, 0.4)
    assert comes_true(torch.from_numpy(keys), torch.from_numpy(positions), 0.4).tolist() == expected.tolist()
    assert 0.3 < expected.mean() < 0.5


def request(rid: str, prompt: int, answer: list[int], slot: int) -> Any:
    params = SimpleNamespace(custom_params={WIRE_KEY: packed(answer, 2)})
    return SimpleNamespace(
        rid=rid,
        origin_input_ids=[5] * prompt,
        sampling_params=params,
        req_pool_idx=slot,
        kv=SimpleNamespace(req_pool_idx=slot),
    )


def batch(requests: list[Any], done: list[int]) -> Any:
    """Requests that have written `done` tokens of their answers each; the last of these is the root."""
    lens = [len(r.origin_input_ids) + n - 1 for r, n in zip(requests, done, strict=True)]
    slots = torch.tensor([r.req_pool_idx for r in requests])
    return SimpleNamespace(reqs=requests, req_pool_indices=slots, seq_lens=torch.tensor(lens))


def test_drafts_are_the_recorded_tokens_where_the_hash_says_so() -> None:
    rng = random.Random(0)
    head = SimulatedHead(Acceptance.everywhere(0.6))
    for number in range(40):
        # Slots are reused, and answers outgrow the head's table.
        rows = rng.randint(1, 5)
        slots = rng.sample(range(90), rows)
        requests = [
            request(
                f"{number}/{i}", rng.randint(1, 9), [rng.randrange(9) for _ in range(rng.randint(2, 400))], slots[i]
            )
            for i in range(rows)
        ]
        answers = [r.sampling_params.custom_params[WIRE_KEY][1:] for r in requests]
        done = [rng.randint(1, len(answer)) for answer in answers]
        flat = torch.full((rows * 6,), 7, dtype=torch.int64)
        theirs = SimpleNamespace(draft_token=flat)
        assert head.rewritten(theirs, batch(requests, done)) is theirs
        ours = SimpleNamespace(tokens=torch.full((rows, 5), 7, dtype=torch.int64), estimates=None)
        ours = head.rewritten(ours, batch(requests, done))
        # The roots are unchanged.
        assert flat.view(rows, 6)[:, 0].tolist() == [7] * rows
        assert flat.view(rows, 6)[:, 1:].tolist() == ours.tokens.tolist()
        assert ours.estimates[0].tolist() == pytest.approx([0.6**i for i in range(1, 6)])
        for answer, n, row in zip(answers, done, ours.tokens.tolist(), strict=True):
            for i, token in enumerate(row):
                at = n + i
                right = at < len(answer) and bool(comes_true(np.int64(answer_key(answer)), np.int64(at), 0.6))
                assert (token == answer[at]) == right if at < len(answer) else token in (0, 1)


def test_requests_without_an_answer_get_drafts_that_fail() -> None:
    free = request("free", 3, [4, 5], 1)
    free.sampling_params.custom_params = None
    drafts = SimpleNamespace(draft_token=torch.full((6,), 7, dtype=torch.int64))
    SimulatedHead(Acceptance.everywhere(1.0)).rewritten(drafts, batch([free], [1]))
    assert set(drafts.draft_token.tolist()[1:]) <= {0, 1}


def drafted(head: SimulatedHead, requests: list[Any], done: list[int]) -> tuple[list[list[int]], Any]:
    """The chains of five tokens after each request's last token, and the head's estimates of them."""
    drafts = SimpleNamespace(tokens=torch.full((len(requests), 5), 7, dtype=torch.int64), estimates=None)
    drafts = head.rewritten(drafts, batch(requests, done))
    return drafts.tokens.tolist(), drafts.estimates


def length_of(chain: list[int], truth: list[int]) -> int:
    """Accepted tokens of a chain."""
    return next((i for i, (token, true) in enumerate(zip(chain, truth, strict=False)) if token != true), len(truth))


def test_recorded_hits_are_played_back_as_accepted_lengths() -> None:
    rng = random.Random(1)
    # The probability in the head's own setting must not matter.
    head = SimulatedHead(Acceptance.everywhere(0.0))
    requests, hits = [], []
    for i in range(6):
        answer = [rng.randrange(2, 9) for _ in range(rng.randint(10, 60))]
        hits.append([rng.random() < 0.8 for _ in answer])
        one = request(f"r{i}", rng.randint(1, 9), answer, i)
        misses = [at for at, hit in enumerate(hits[-1]) if not hit]
        one.sampling_params.custom_params |= {MISSES_KEY: misses, ACCEPTANCE_KEY: 0.7}
        requests.append(one)
    for at in range(1, 10):
        chains, estimates = drafted(head, requests, [at] * 6)
        for one, right, chain in zip(requests, hits, chains, strict=True):
            truth = one.sampling_params.custom_params[WIRE_KEY][1:][at : at + 5]
            run = length_of([int(hit) for hit in right[at : at + 5]], [1] * len(truth))
            assert length_of(chain, truth) == run
        assert estimates.flatten().tolist() == pytest.approx([0.7**i for i in range(1, 6)] * 6, rel=1e-5)


def test_a_curve_gives_each_row_the_acceptance_of_its_context() -> None:
    curve = Acceptance((10, 1000), (0.9, 0.1))
    assert Acceptance.parse(str(curve)) == curve
    head = SimulatedHead(curve)
    rng = random.Random(2)
    contexts = [5, 505, 5000]
    requests = [request(f"r{i}", n, [rng.randrange(2, 9) for _ in range(2000)], i) for i, n in enumerate(contexts)]
    _, estimates = drafted(head, requests, [1] * 3)
    for row, rate in zip(estimates.tolist(), curve.at([6, 506, 5001]), strict=True):
        assert row == pytest.approx([rate**i for i in range(1, 6)], rel=1e-4)
    assert estimates[:, 0].tolist() == pytest.approx([0.9, 0.4990, 0.1], abs=1e-3)
    # Within an answer too: from the first position on, the context has 5 tokens, and at the last one 2,004.
    rights = [[], []]
    for done in range(1, 1995, 5):
        (chain, *_), _ = drafted(head, requests, [done] * 3)
        truth = requests[0].sampling_params.custom_params[WIRE_KEY][1:][done : done + 5]
        rights[done > 1000] += [token == true for token, true in zip(chain, truth, strict=True)]
    assert np.mean(rights[0]) == pytest.approx(0.5, abs=0.06) and np.mean(rights[1]) == pytest.approx(0.1, abs=0.04)


def test_the_published_curve_has_its_accept_lengths() -> None:
    found = Acceptance.published(5)
    for context, length in PUBLISHED_BY_CONTEXT.items():
        (rate,) = found.at([context])
        assert sum(rate**i for i in range(6)) == pytest.approx(length, abs=1e-6)
    assert found.at([0, 40_000]).tolist() == [found.rates[0], found.rates[-1]]
