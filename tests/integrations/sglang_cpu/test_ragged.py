"""Verification without padding, by a model runner and an attention backend that record what they are given."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest
import torch

from agentspec.integrations.sglang_cpu import ragged

WIDTH = 4
NUM_NODES = [2, 4, 1]
KEPT = [0, 1, 4, 5, 6, 7, 8]


class Runner:
    device, is_multimodal = "cpu", False

    def forward(self, forward_batch):
        self.metadata = Backend()._build_extend_metadata(forward_batch)
        self.seen = [getattr(forward_batch, name).tolist() for name in ("input_ids", "positions", "out_cache_loc")]
        if forward_batch.fails:
            raise RuntimeError("this forward fails")
        ids = forward_batch.input_ids.float()
        # Like a model's output, with logits and maybe a hidden state for each token.
        output = SimpleNamespace(next_token_logits=ids[:, None] + torch.arange(3) / 4, hidden_states=None)
        if forward_batch.reads_hidden:
            output.hidden_states = ids[:, None] * 2
        return SimpleNamespace(logits_output=output)


class Backend:
    def _build_extend_metadata(self, forward_batch):
        lens = torch.full((3,), WIDTH)
        mask = forward_batch.spec_info.custom_mask
        return forward_batch.seq_lens + WIDTH, lens, lens.cumsum(0) - lens, mask


@pytest.fixture
def runner(monkeypatch):
    patched, backend = type("ModelRunner", (Runner,), {}), type("IntelAMXAttnBackend", (Backend,), {})
    patched.forward, backend._build_extend_metadata = Runner.forward, Backend._build_extend_metadata
    monkeypatch.setattr(sys.modules[__name__], "Backend", backend)
    for module, name, kind in (
        ("sglang.srt.model_executor.model_runner", "ModelRunner", patched),
        ("sglang.srt.layers.attention.intel_amx_backend", "IntelAMXAttnBackend", backend),
    ):
        monkeypatch.setitem(sys.modules, module, SimpleNamespace(**{name: kind}))
    ragged.patch_ragged()
    ragged.patch_ragged()
    return patched()


def links_of(num_nodes):
    """The links of rows in which every node but the root is a child of the root, in their order."""
    next_token, next_sibling = torch.full((2, len(num_nodes), WIDTH), -1)
    for row, size in enumerate(num_nodes):
        if size > 1:
            next_token[row, 0] = 1
        for node in range(1, size - 1):
            next_sibling[row, node] = node + 1
    return {"retrieve_next_token": next_token, "retrieve_next_sibling": next_sibling}


def forward_batch(*, num_nodes=NUM_NODES, mask=True, verifies=True, reads_hidden=True, fails=False, ready=False):
    trees = torch.zeros(3, WIDTH, WIDTH, dtype=torch.bool)
    trees[1, 3, 2] = trees[0, 1, 0] = True
    links = {} if num_nodes is None else links_of(num_nodes)
    verify_input = SimpleNamespace(draft_token_num=WIDTH, custom_mask=trees.flatten() if mask else None, **links)
    return SimpleNamespace(
        forward_metadata_ready=ready,
        forward_mode=SimpleNamespace(is_target_verify=lambda: verifies),
        spec_info=verify_input,
        input_ids=torch.arange(12) + 100,
        positions=torch.arange(12) + 200,
        out_cache_loc=torch.arange(12) + 300,
        seq_lens=torch.tensor([10, 20, 30]),
        reads_hidden=reads_hidden,
        fails=fails,
    )


@pytest.mark.parametrize("reads_hidden", [True, False])
def test_the_model_sees_the_rows_own_tokens_and_results_are_laid_out_as_for_all(runner, reads_hidden):
    batch = forward_batch(reads_hidden=reads_hidden)
    output = runner.forward(batch).logits_output
    assert runner.seen == [[start + place for place in KEPT] for start in (100, 200, 300)]
    whole = Runner().forward(forward_batch(num_nodes=None)).logits_output
    for name in ("next_token_logits", "hidden_states") if reads_hidden else ("next_token_logits",):
        got, wanted = getattr(output, name), getattr(whole, name)
        assert got.shape == wanted.shape and torch.equal(got[KEPT], wanted[KEPT])
        assert got.sum() == wanted[KEPT].sum()
    assert reads_hidden or output.hidden_states is None
    assert batch.input_ids.tolist() == list(range(100, 112))
    assert runner.padding_skipped == 12 - len(KEPT)


@pytest.mark.parametrize("mask", [True, False])
def test_attention_is_told_of_rows_of_their_own_lengths(runner, mask):
    runner.forward(forward_batch(mask=mask))
    seq_lens, lens, starts, trees = runner.metadata
    assert (seq_lens.tolist(), lens.tolist(), starts.tolist()) == ([12, 24, 31], [2, 4, 1], [0, 2, 6])
    if not mask:
        assert trees is None
    else:
        assert len(trees) == 3 * WIDTH**2 and trees.nonzero().flatten().tolist() == [4, 16 + 14]


@pytest.mark.parametrize(
    "whole", [{"num_nodes": [WIDTH] * 3}, {"num_nodes": None}, {"verifies": False}, {"ready": True}], ids=str
)
def test_other_forwards_are_left_alone(runner, whole):
    batch = forward_batch(**whole)
    runner.forward(batch)
    assert [len(tokens) for tokens in runner.seen] == [12] * 3
    assert runner.metadata[0].tolist() == [14, 24, 34]
    assert runner.padding_skipped == 0


def test_a_forward_that_fails_leaves_its_batch_as_it_was(runner):
    batch = forward_batch(fails=True)
    with pytest.raises(RuntimeError, match="fails"):
        runner.forward(batch)
    assert [len(batch.input_ids), len(batch.positions), len(batch.out_cache_loc)] == [12] * 3


def test_who_drafts_can_ask_for_padding(runner):
    assert runner.verifies_unpadded
    runner.verifies_unpadded = False
    runner.forward(forward_batch())
    assert len(runner.seen[0]) == 12 and runner.metadata[0].tolist() == [14, 24, 34]
    assert runner.padding_skipped == 0
    assert type(runner)().verifies_unpadded


def test_a_backend_that_is_not_known_is_left_alone(monkeypatch):
    unknown = type("ModelRunner", (Runner,), {})
    for module, name, kind in (
        ("sglang.srt.model_executor.model_runner", "ModelRunner", unknown),
        ("sglang.srt.layers.attention.intel_amx_backend", "IntelAMXAttnBackend", type("IntelAMXAttnBackend", (), {})),
    ):
        monkeypatch.setitem(sys.modules, module, SimpleNamespace(**{name: kind}))
    ragged.patch_ragged()
    assert unknown.forward is Runner.forward and not hasattr(unknown, "verifies_unpadded")


@pytest.mark.parametrize(
    ("name", "value"),
    [("device", "cuda"), ("is_multimodal", True), ("lora_manager", object()), ("decode_cuda_graph_runner", object())],
)
def test_where_more_is_kept_token_by_token_or_graphs_are_replayed_padding_is_computed(runner, name, value):
    assert runner.verifies_unpadded
    setattr(runner, name, value)
    assert not runner.verifies_unpadded
    runner.forward(forward_batch())
    assert len(runner.seen[0]) == 12
