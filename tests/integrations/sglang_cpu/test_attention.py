"""The two attention ops, compared with attention written as loops over queries, heads and positions."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

torch = pytest.importorskip("torch", reason="pip install torch")

from agentspec.errors import UnsupportedError
from agentspec.integrations.sglang_cpu import attention
from agentspec.integrations.sglang_cpu.attention import decode_attention_cpu, extend_attention_cpu
from agentspec.integrations.sglang_cpu.ops import register_ops

SLOTS, POSITIONS = 256, 48
SETTINGS = {
    "k_scale": 1.0, "v_scale": 1.0, "sm_scale": 0.3, "logit_cap": 0.0, "is_cross_attn": False,
    "sliding_window_size": 0, "encoder_lens": None, "sinks": None,
}  # fmt: skip


@dataclass(frozen=True)
class Batch:
    """Requests of `lens` tokens whose slots are scattered over the cache, and H query heads over G cached heads."""

    lens: tuple[int, ...]
    heads: int
    groups: int
    key_dim: int
    value_dim: int

    def draw(self, seed: int) -> dict[str, torch.Tensor]:
        generator = torch.Generator().manual_seed(seed)
        table = torch.randperm(SLOTS, generator=generator)[: (len(self.lens) + 2) * POSITIONS // 2]
        rows = torch.zeros(len(self.lens) + 2, POSITIONS, dtype=torch.int32)
        rows[:, : POSITIONS // 2] = table.view(len(self.lens) + 2, -1)
        cached = {
            "k_cache": torch.randn(SLOTS, self.groups, self.key_dim, generator=generator),
            "v_cache": torch.randn(SLOTS, self.groups, self.value_dim, generator=generator),
        }
        # Slots that no request owns must not matter, whatever they hold.
        owned = torch.zeros(SLOTS, dtype=torch.bool)
        indices = torch.randperm(len(self.lens) + 2, generator=generator)[: len(self.lens)]
        for index, length in zip(indices.tolist(), self.lens, strict=True):
            owned[rows[index, :length].long()] = True
        cached["k_cache"][~owned] = float("nan")
        cached["v_cache"][~owned] = float("inf")
        return {**cached, "req_to_token": rows, "req_pool_indices": indices, "seq_lens": torch.tensor(self.lens)}


BATCHES = [
    Batch((1,), heads=1, groups=1, key_dim=4, value_dim=4),
    Batch((13,), heads=4, groups=2, key_dim=8, value_dim=8),
    Batch((7, 20, 9, 12), heads=6, groups=2, key_dim=8, value_dim=8),
    Batch((17, 11), heads=8, groups=1, key_dim=8, value_dim=6),
]


def attend(query, keys, values, scale):
    """Softmax attention of one head of one query over the keys that it attends to."""
    scores = [scale * sum(float(a) * float(b) for a, b in zip(query, key, strict=True)) for key in keys]
    weights = torch.softmax(torch.tensor(scores, dtype=torch.float64), 0)
    return sum(weight * value.double() for weight, value in zip(weights, values, strict=True))


def by_definition(query, sees, drawn, scale):
    """Attention of `query` [T, H, K], where query t attends to the positions `sees[t][1]` of request `sees[t][0]`."""
    heads, groups = query.shape[1], drawn["k_cache"].shape[1]
    out = torch.empty(query.shape[0], heads, drawn["v_cache"].shape[2], dtype=torch.float64)
    for token, (request, positions) in enumerate(sees):
        slots = drawn["req_to_token"][drawn["req_pool_indices"][request]][positions].long()
        for head in range(heads):
            group = head * groups // heads
            keys, values = drawn["k_cache"][slots, group], drawn["v_cache"][slots, group]
            out[token, head] = attend(query[token, head], keys, values, scale)
    return out.float()


def extend(query, drawn, lens, *, mask=None, causal=True, max_len=None, **options):
    output = torch.empty(query.shape[0], query.shape[1], drawn["v_cache"].shape[2])
    starts = torch.tensor([0, *lens[:-1]]).cumsum(0)
    extend_attention_cpu(
        query, None, None, output, **drawn, **SETTINGS | options, extend_seq_lens=torch.tensor(lens, dtype=torch.int32),
        extend_start_loc=starts.int(), max_len_extend=max(lens), tree_mask=mask, is_causal=causal,
    )  # fmt: skip
    return output


def side_by_side(masks):
    """The masks, padded to the largest size. Padding attends to everything, and no token attends to padding."""
    width = max(len(mask) for mask in masks)
    blocks = torch.ones(len(masks), width, width, dtype=torch.bool)
    for block, mask in zip(blocks, masks, strict=True):
        block[: len(mask)] = False
        block[: len(mask), : len(mask)] = mask
    return blocks.flatten()


def decode(query, drawn, key=None, value=None, loc=None, **options):
    output = torch.empty(query.shape[0], query.shape[1], drawn["v_cache"].shape[2])
    decode_attention_cpu(
        query, output=output, key=key, value=value, loc=torch.empty(0, dtype=torch.long) if loc is None else loc,
        attn_logits=torch.empty(0), **drawn, **SETTINGS | options,
    )  # fmt: skip
    return output


@pytest.mark.parametrize("batch", BATCHES)
def test_decoding_attends_to_the_whole_sequence(batch):
    drawn = batch.draw(seed=1)
    query = torch.randn(len(batch.lens), batch.heads, batch.key_dim)
    sees = [(request, range(length)) for request, length in enumerate(batch.lens)]
    torch.testing.assert_close(decode(query, drawn), by_definition(query, sees, drawn, 0.3))


def test_decoding_stores_the_new_token_first():
    batch = BATCHES[2]
    drawn = batch.draw(seed=2)
    tokens = len(batch.lens)
    query = torch.randn(tokens, batch.heads, batch.key_dim)
    last = [
        int(drawn["req_to_token"][row, n - 1])
        for row, n in zip(drawn["req_pool_indices"], batch.lens, strict=True)
    ]  # fmt: skip
    drawn["k_cache"][last], drawn["v_cache"][last] = float("nan"), float("nan")
    key, value = torch.randn(tokens, batch.groups * 8), torch.randn(tokens, batch.groups, 8)
    got = decode(query, drawn, key, value, torch.tensor(last))
    assert torch.equal(drawn["k_cache"][last].flatten(), key.flatten())
    assert torch.equal(drawn["v_cache"][last], value)
    sees = [(request, range(length)) for request, length in enumerate(batch.lens)]
    torch.testing.assert_close(got, by_definition(query, sees, drawn, 0.3))


@pytest.mark.parametrize("batch", BATCHES[1:])
@pytest.mark.parametrize("nodes", [1, 2, 7, None])
@pytest.mark.parametrize("seed", range(3))
def test_trees_see_their_prefix_and_their_marked_nodes(batch, nodes, seed):
    """All trees have this number of nodes, or each another number."""
    drawn = batch.draw(seed=seed)
    generator = torch.Generator().manual_seed(seed)
    lens = [nodes] * len(batch.lens)
    if nodes is None:
        lens = [1, *(int(torch.randint(2, n, (), generator=generator)) for n in batch.lens[1:])]
    masks = [(torch.rand(n, n, generator=generator) < 0.4) | torch.eye(n, dtype=torch.bool) for n in lens]
    query = torch.randn(sum(lens), batch.heads, batch.key_dim, generator=generator)
    sees = []
    for request, (n, total, mask) in enumerate(zip(lens, batch.lens, masks, strict=True)):
        for node in range(n):
            sees.append((request, [*range(total - n), *(total - n + other for other in range(n) if mask[node, other])]))
    got = extend(query, drawn, lens, mask=side_by_side(masks))
    torch.testing.assert_close(got, by_definition(query, sees, drawn, 0.3))


@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("uniform", [True, False], ids=["one extension", "drawn extensions"])
@pytest.mark.parametrize("causal", [True, False])
def test_an_extension_sees_its_sequence(batch, uniform, causal):
    drawn = batch.draw(seed=4)
    generator = torch.Generator().manual_seed(5)
    lens = [min(batch.lens)] * len(batch.lens)
    if not uniform:
        lens = [int(torch.randint(1, n + 1, (), generator=generator)) for n in batch.lens]
    query = torch.randn(sum(lens), batch.heads, batch.key_dim)
    sees = []
    for request, (n, total) in enumerate(zip(lens, batch.lens, strict=True)):
        sees += [(request, range(total - n + i + 1 if causal else total)) for i in range(n)]
    got = extend(query, drawn, lens, causal=causal)
    torch.testing.assert_close(got, by_definition(query, sees, drawn, 0.3))


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("missing", [(), ("k_scale", "v_scale"), ("k_scale", "v_scale", "is_causal")])
def test_releases_that_pass_fewer_arguments_get_the_same(causal, missing):
    register_ops()
    batch = BATCHES[2]
    drawn, n, rows = batch.draw(seed=8), min(batch.lens), len(batch.lens)
    query = torch.randn(n * rows, batch.heads, batch.key_dim)
    output = torch.empty(query.shape[0], query.shape[1], drawn["v_cache"].shape[2])
    arguments = {
        **drawn, **SETTINGS, "extend_seq_lens": torch.full((rows,), n, dtype=torch.int32), "max_len_extend": n,
        "extend_start_loc": (torch.arange(rows) * n).int(), "tree_mask": None, "is_causal": causal,
    }  # fmt: skip
    given = {name: value for name, value in arguments.items() if name not in missing}
    torch.ops.sgl_kernel.extend_attention_cpu(query, None, None, output, **given)
    torch.testing.assert_close(output, extend(query, drawn, [n] * rows, causal=causal or "is_causal" in missing))


def test_a_chain_of_one_token_equals_decoding():
    """If decoding and verification of the same token differed, greedy outputs could differ too."""
    batch = BATCHES[2]
    drawn = batch.draw(seed=6)
    query = torch.randn(len(batch.lens), batch.heads, batch.key_dim)
    chain = torch.ones(len(batch.lens), dtype=torch.bool)
    assert torch.equal(decode(query, drawn), extend(query, drawn, [1] * len(batch.lens), mask=chain))


def test_what_a_call_keeps_for_the_next_changes_no_result(monkeypatch):
    """SGLang overwrites tensors between calls, so what a call keeps must not be recognised by the tensor's identity."""
    batch = BATCHES[2]
    drawn = batch.draw(seed=9)
    generator = torch.Generator().manual_seed(10)
    lens = drawn["seq_lens"]
    sizes = [[1] * 4, [2] * 4, [3] * 4, [3, 1, 2, 1], [2, 3, 1, 1]]
    masks = [[torch.ones(n, n, dtype=torch.bool) for n in ns] for ns in sizes]
    kept = attention._kept
    for _ in range(250):
        which, change = (int(torch.randint(0, most, (), generator=generator)) for most in (5, 3))
        if change == 1:
            lens -= torch.randint(0, 2, (4,), generator=generator) * (lens > 4)
        elif change == 2:
            for mask in masks[which]:
                n = len(mask)
                mask.copy_((torch.rand(n, n, generator=generator) < 0.5) | torch.eye(n, dtype=torch.bool))
        ns = sizes[which]
        query = torch.randn(sum(ns), batch.heads, batch.key_dim, generator=generator)
        causal = bool(torch.rand((), generator=generator) < 0.3)
        mask = None if causal else side_by_side(masks[which])
        with torch.inference_mode(bool(torch.rand((), generator=generator) < 0.5)):
            results = []
            for memory in (kept, attention._Kept()):
                monkeypatch.setattr(attention, "_kept", memory)
                results.append(extend(query, drawn, ns, mask=mask))
            assert torch.equal(*results)


def test_narrow_types_are_computed_in_float32():
    batch = BATCHES[2]
    drawn = batch.draw(seed=7)
    narrow = {name: x.bfloat16() if name.endswith("cache") else x for name, x in drawn.items()}
    wide = {name: x.float() if name.endswith("cache") else x for name, x in narrow.items()}
    query = torch.randn(len(batch.lens), batch.heads, batch.key_dim).bfloat16()
    assert torch.equal(decode(query, narrow), decode(query.float(), wide))


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("logit_cap", 30.0), ("is_cross_attn", True), ("sliding_window_size", 8), ("sinks", torch.zeros(4)),
        ("encoder_lens", torch.ones(1)), ("k_scale", 0.5), ("v_scale", 2.0),
    ],
)  # fmt: skip
@pytest.mark.parametrize("op", [decode, lambda query, drawn, **options: extend(query, drawn, [1], **options)])
def test_what_is_not_computed_is_refused(op, option, value):
    drawn = BATCHES[1].draw(seed=8)
    with pytest.raises(UnsupportedError, match="asks for"):
        op(torch.randn(1, 4, 8), drawn, **{option: value})


@pytest.mark.parametrize(("lens", "cells"), [([2, 2], 7), ([2, 3], 12), ([2, 3], 13)])
def test_a_mask_of_another_size_is_refused(lens, cells):
    drawn = BATCHES[3].draw(seed=9)
    with pytest.raises(ValueError, match="D x D"):
        extend(torch.randn(sum(lens), 8, 8), drawn, lens, mask=torch.ones(cells, dtype=torch.bool))


def test_an_idle_batch_does_nothing():
    drawn = BATCHES[1].draw(seed=10)
    empty = {**drawn, "req_pool_indices": torch.empty(0, dtype=torch.long), "seq_lens": torch.empty(0).long()}
    assert decode(torch.empty(0, 4, 8), empty).shape == (0, 4, 8)
