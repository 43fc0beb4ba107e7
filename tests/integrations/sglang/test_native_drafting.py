"""Drafters in native code against the same in plain torch, on weights, texts and trees drawn at random."""

from __future__ import annotations

import random
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the drafters need torch; `make setup` installs it")


from agentspec.errors import ConfigError
from agentspec.evals.drawn_llama import drawn_llama
from agentspec.integrations.sglang.acceptance_head import AcceptanceConfig, AcceptanceHead
from agentspec.integrations.sglang.draft_stop import DraftStop
from agentspec.integrations.sglang.native_drafting import DraftForwards, NativeDrafting
from agentspec.integrations.sglang.plain_drafting import PlainDrafting
from agentspec.integrations.sglang_cpu import threads
from agentspec.integrations.sglang_cpu.drafter.model import native_llama
from agentspec.integrations.sglang_cpu.drafter.eligibility import is_head as is_head_of

_SLOTS = 90


def drawn_worker(draw: random.Random, **changes: Any) -> Any:
    """SGLang's draft worker with a model, a cache and a vocabulary of its own."""
    is_head = draw.random() < 0.6
    kv_heads = draw.choice([1, 2])
    shape = {
        "hidden": draw.choice([32, 64]),
        "mlp": draw.choice([8, 40]),
        "heads": 2,
        "kv_heads": kv_heads,
        "vocabulary": 50,
        "outputs": draw.choice([None, 21]),
        "layers": 1 if is_head else draw.choice([1, 3]),
        "is_head": is_head,
    } | changes
    model = drawn_llama(**shape)
    outputs = model.logits_processor.vocab_size
    layers = range(shape["layers"])
    head_dim = shape["hidden"] // 2
    caches = [[torch.randn(_SLOTS, kv_heads, head_dim) for _ in layers] for _ in range(2)]
    pool = SimpleNamespace(start_layer=0, get_key_buffer=caches[0].__getitem__, get_value_buffer=caches[1].__getitem__)
    worker = SimpleNamespace(
        draft_runner=SimpleNamespace(model=model, token_to_kv_pool=pool),
        speculative_num_steps=draw.randint(1, 6),
        hot_token_id=torch.tensor(draw.sample(range(50), outputs)) if outputs < 50 else None,
        acceptance=drawn_acceptance_head(shape["hidden"]) if draw.random() < 0.5 else None,
        stop=DraftStop(draw.choice([1.0, 0.9]), draw.choice([0.0, 0.05])),
        max_nodes=draw.randint(1, 20),
    )
    worker.accepted = lambda hidden, topk_p: worker.acceptance.accepted(hidden, topk_p)
    return worker


def drawn_acceptance_head(hidden: int) -> AcceptanceHead:
    head = AcceptanceHead(AcceptanceConfig(hidden, depth=2, scale=0.7, shift=0.2)).requires_grad_(False)
    for tensor in (*head.parameters(), head.mean, head.spread):
        tensor.copy_(0.3 + 0.2 * torch.randn(tensor.shape))
    return head


def both_of(worker: Any) -> tuple[PlainDrafting, NativeDrafting, list[Any]]:
    """With a cache each, that hold the same, and the native one's keys and values."""
    plain = PlainDrafting(worker)
    own = [[cache.clone() for cache in caches] for caches in (plain.keys, plain.values)]
    model = native_llama(worker.draft_runner.model, *own)
    assert model is not None
    return plain, NativeDrafting(worker, model), own[0] + own[1]


@pytest.fixture
def most_threads() -> Iterator[None]:
    """May be changed."""
    most = threads.most_threads()
    yield
    threads.limit_threads(most)


@pytest.mark.usefixtures("most_threads")
@pytest.mark.parametrize("seed", range(40))
def test_texts_are_read_and_trees_drafted_alike(seed: int) -> None:
    draw = random.Random(seed)
    threads.limit_threads(draw.randint(1, 3))
    torch.manual_seed(seed)
    worker = drawn_worker(draw)
    plain, native, cached = both_of(worker)
    is_head, hidden = is_head_of(worker.draft_runner.model), worker.draft_runner.model.model.norm.weight.shape[0]
    for _ in range(4):
        rows, topk = draw.randint(1, 5), draw.randint(1, 3)
        order = torch.randperm(_SLOTS, dtype=torch.int32)
        lens = [draw.randint(1, 16) for _ in range(rows)]
        slots = list(order[: sum(lens)].split(lens))
        tokens = [[draw.randrange(50) for _ in range(draw.randint(1, size))] for size in lens]
        starts = [size - len(row) for size, row in zip(lens, tokens, strict=True)]
        missing = torch.cat([row[start:] for row, start in zip(slots, starts, strict=True)]).long()
        states = torch.randn(len(missing), 3 * hidden)
        read = [way.read(slots, missing, starts, tokens, states if is_head else None) for way in (plain, native)]
        for one, other in zip(*read, strict=True):  # type: ignore[arg-type]
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
        for mine, theirs in zip(plain.keys + plain.values, cached, strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)

        likeliest = torch.softmax(read[0][0], -1).topk(topk, dim=-1)
        drafts, passes = [], []
        for way in (plain, native):
            # A small model's state is there as well, for acceptance heads.
            drafts.append(way.draft(slots, likeliest.values, likeliest.indices, read[0][1]))
            passes.append(worker.num_passes)
        mine, theirs = drafts
        assert passes[0] == passes[1]
        for name in ("parents", "chosen", "tokens"):
            np.testing.assert_array_equal(getattr(mine, name).numpy(), getattr(theirs, name), name)
        np.testing.assert_allclose(mine.estimates.numpy(), theirs.estimates, rtol=1e-4, atol=1e-6)


def test_what_native_code_is_not_made_for_is_left_to_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    draw = random.Random(0)
    worker = drawn_worker(draw, is_head=True, layers=1)
    monkeypatch.setattr(PlainDrafting, "of", lambda worker: PlainDrafting(worker))
    assert type(DraftForwards(worker)()) is NativeDrafting
    worker.draft_runner.model.lm_head.weight = worker.draft_runner.model.lm_head.weight.bfloat16()
    assert type(DraftForwards(worker)()) is PlainDrafting
    # Heads of 4, less than a vector.
    assert type(DraftForwards(drawn_worker(draw, hidden=8, is_head=True, layers=1))()) is PlainDrafting
    monkeypatch.setattr("agentspec.integrations.sglang_cpu.drafter.model._MOST_WEIGHTS", 1000)
    assert type(DraftForwards(drawn_worker(draw, is_head=True, layers=1))()) is PlainDrafting


def test_nothing_is_converted_on_the_way_to_native_code() -> None:
    """What is written to a copy of the cache would be lost."""
    model = both_of(drawn_worker(random.Random(3), is_head=False, layers=1, outputs=None))[1]._native
    text, token = np.array([3, 4], np.int32), np.array([7], np.int64)
    every_second = np.arange(4, dtype=np.int32)[::2]
    for texts, tokens in (
        ([text.astype(np.int64)], [token]),
        ([text], [token.astype(np.int32)]),
        ([every_second], [token]),
    ):
        with pytest.raises(TypeError, match="incompatible function arguments"):
            model.read(texts, tokens, None)  # type: ignore[arg-type]


def test_weights_that_were_replaced_in_place_are_read_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    worker = drawn_worker(random.Random(5), is_head=False, layers=1, outputs=None)
    monkeypatch.setattr(PlainDrafting, "of", lambda worker: PlainDrafting(worker))
    forwards = DraftForwards(worker)
    one = forwards()
    assert one is not None and forwards() is one
    slots = [torch.arange(3, dtype=torch.int32)]

    def read(way: PlainDrafting | NativeDrafting) -> Any:
        found = way.read(slots, torch.arange(3), [0], [[7, 8, 9]], None)
        assert found is not None
        return found[0]

    before = read(one)
    core = worker.draft_runner.model.model
    for tensor in (core.layers[0].mlp.down_proj.weight, core.norm.weight):
        tensor.copy_(torch.rand(tensor.shape))
    forwards.weights_changed()
    other = forwards()
    assert other is not None
    after = read(other)
    assert (after - before).abs().max() > 0.1
    torch.testing.assert_close(after, read(PlainDrafting(worker)), rtol=1e-4, atol=1e-5)


def test_what_is_out_of_range_is_refused_before_memory_is_touched() -> None:
    worker = drawn_worker(random.Random(3), is_head=False, layers=1, outputs=None)
    worker.acceptance = None
    model = both_of(worker)[1]._native
    text, token = np.array([3, 4], np.int32), np.array([7], np.int64)
    model.read([text], [token], None)
    outside = [
        ([np.array([3, _SLOTS], np.int32)], [token], None, "slots"),
        ([np.array([-1, 4], np.int32)], [token], None, "slots"),
        ([text], [np.array([50], np.int64)], None, "vocabulary"),
        ([text], [np.array([1, 2, 3], np.int64)], None, "no more than the text"),
        ([text], [token], np.zeros(32, np.float32), "none for another model"),
        ([np.arange(65, dtype=np.int32)], [token], None, "positions"),
    ]
    for texts, tokens, hidden, what in outside:
        with pytest.raises(ConfigError, match=what):
            model.read(texts, tokens, hidden)
    rules = {"topk": 1, "num_steps": 3, "max_nodes": 4, "stop_threshold": 1.0, "least_gain": 0.0}
    p, index = np.array([0.5], np.float32), np.array([50], np.int64)
    with pytest.raises(ConfigError, match="vocabulary"):
        model.draft([text], p, index, None, None, None, **rules)
    with pytest.raises(ConfigError, match="trees need rows"):
        model.draft([text, text], p, index, None, None, None, **rules)
