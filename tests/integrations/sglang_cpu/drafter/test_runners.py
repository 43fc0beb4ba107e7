"""Native draft models behind SGLang's interface, compared with the same models in plain torch. Weights, texts,
accepted tokens and trees are drawn at random."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="draft models need torch; `make setup` installs it")

from drawn_llama import drawn_llama
from reference_llama import ReferenceLlama, reference_trees

from agentspec.integrations.sglang.drafting.acceptance_head import AcceptanceConfig, AcceptanceHead
from agentspec.integrations.sglang.drafting.stop_rule import DraftStop
from agentspec.integrations.sglang_cpu import threads
from agentspec.integrations.sglang_cpu.drafter import model as native_models
from agentspec.integrations.sglang_cpu.drafter import native_drafter, plug_in
from agentspec.integrations.sglang_cpu.drafter.native_drafter import NativeDrafter
from agentspec.integrations.sglang_cpu.drafter.runners import DraftExtendRunner, DraftRunner

_POSITIONS, _ROWS, _VOCABULARY = 64, 5, 50
_SLOTS = _ROWS * _POSITIONS


class MHATokenToKVPool:
    """The parts of SGLang's class that the runners read."""

    dtype, start_layer = torch.float32, 0

    def __init__(self, layers: int, *shape: int) -> None:
        self.keys, self.values = ([torch.randn(shape) for _ in range(layers)] for _ in range(2))

    def get_key_buffer(self, layer: int) -> torch.Tensor:
        return self.keys[layer]

    def get_value_buffer(self, layer: int) -> torch.Tensor:
        return self.values[layer]


@pytest.fixture(autouse=True)
def sglang_parts(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Replaces what the runners import from SGLang, and lets random models pass for SGLang's."""
    output = SimpleNamespace(LogitsProcessorOutput=SimpleNamespace)
    monkeypatch.setitem(sys.modules, "sglang.srt.layers.logits_processor", output)
    monkeypatch.setattr(native_drafter, "is_plain_llama", lambda model: True)
    most = threads.most_threads()
    yield
    threads.limit_threads(most)


def drawn_worker(draw: random.Random, *, ours: bool = True, **changes: Any) -> Any:
    """A draft worker with a model, a cache and a vocabulary of its own."""
    is_head = draw.random() < 0.6
    kv_heads = draw.choice([1, 2])
    shape = {
        "hidden": draw.choice([32, 64]),
        "mlp": draw.choice([8, 40]),
        "heads": 2,
        "kv_heads": kv_heads,
        "vocabulary": _VOCABULARY,
        "outputs": draw.choice([None, 21]),
        "layers": 1 if is_head else draw.choice([1, 3]),
        "is_head": is_head,
        "positions": _POSITIONS,
    } | changes
    model = drawn_llama(**shape)
    outputs = model.logits_processor.vocab_size
    pool = MHATokenToKVPool(shape["layers"], _SLOTS, kv_heads, shape["hidden"] // 2)
    topk, steps = draw.randint(1, 3), draw.randint(1, 5)
    worker = SimpleNamespace(
        draft_runner=SimpleNamespace(
            model=model,
            token_to_kv_pool=pool,
            req_to_token_pool=SimpleNamespace(
                req_to_token=torch.randperm(_SLOTS, dtype=torch.int32).view(_ROWS, _POSITIONS)
            ),
            server_args=SimpleNamespace(tp_size=1),
        ),
        topk=topk,
        speculative_num_steps=steps,
        speculative_num_draft_tokens=1 + draw.randint(1, topk + topk * topk * (steps - 1)),
        hot_token_id=torch.tensor(draw.sample(range(_VOCABULARY), outputs)) if outputs < _VOCABULARY else None,
    )
    if ours:
        worker.acceptance = drawn_acceptance_head(shape["hidden"]) if draw.random() < 0.5 else None
        worker.stop = DraftStop(None, draw.choice([0.0, 0.05]))
        worker.max_nodes = draw.randint(1, 20)
    return worker


def drawn_acceptance_head(hidden: int) -> AcceptanceHead:
    head = AcceptanceHead(AcceptanceConfig(hidden, depth=2, scale=0.7, shift=0.2)).requires_grad_(False)
    for tensor in (*head.parameters(), head.mean, head.spread):
        tensor.copy_(0.3 + 0.2 * torch.randn(tensor.shape))
    return head


def mode(name: str) -> Any:
    return SimpleNamespace(is_idle=lambda: name == "idle", is_draft_extend_v2=lambda: name == "extend")


def draft_batch(rows: list[int], lens: list[int], likeliest: Any, hidden: torch.Tensor | None) -> Any:
    return SimpleNamespace(
        forward_mode=mode("decode"),
        req_pool_indices=torch.tensor(rows),
        seq_lens=torch.tensor(lens),
        spec_info=SimpleNamespace(topk_p=likeliest.values, topk_index=likeliest.indices, hidden_states=hidden),
    )


def extend_batch(rows: list[int], starts: list[int], tokens: torch.Tensor, sizes: list[int], hidden: Any) -> Any:
    """An extend batch. `tokens`: int64 [b, w]; the accepted tokens of each row come first."""
    width = tokens.shape[1]
    return SimpleNamespace(
        forward_mode=mode("extend"),
        capture_hidden_mode=SimpleNamespace(need_capture=lambda: True),
        req_pool_indices=torch.tensor(rows),
        seq_lens=torch.tensor(starts) + width,
        input_ids=tokens.flatten(),
        spec_info=SimpleNamespace(num_accept_tokens=torch.tensor(sizes, dtype=torch.int32), hidden_states=hidden),
    )


def reference_of(worker: Any) -> ReferenceLlama:
    runner = worker.draft_runner
    return ReferenceLlama(runner.model, runner.token_to_kv_pool.keys, runner.token_to_kv_pool.values)


@pytest.mark.parametrize("seed", range(30))
def test_accepted_tokens_are_read_and_trees_drafted_as_in_torch(seed: int) -> None:
    draw = random.Random(seed)
    threads.limit_threads(draw.randint(1, 3))
    torch.manual_seed(seed)
    worker = drawn_worker(draw)
    reference, drafter = reference_of(worker), NativeDrafter(worker)
    pool, table = worker.draft_runner.token_to_kv_pool, worker.draft_runner.req_to_token_pool.req_to_token
    size = worker.draft_runner.model.model.norm.weight.shape[0]
    lens = [draw.randint(0, 12) for _ in range(_ROWS)]
    for _ in range(4):
        rows, width = draw.sample(range(_ROWS), draw.randint(1, _ROWS)), draw.randint(1, 6)
        sizes = [draw.randint(1, width) for _ in rows]
        starts = [lens[row] for row in rows]
        tokens = torch.randint(_VOCABULARY, (len(rows), width))
        states = torch.randn(len(rows) * width, 3 * size) if reference.is_head else None
        batch = extend_batch(rows, starts, tokens, sizes, states)
        runner = DraftExtendRunner(drafter)
        assert runner.can_run_graph(batch)
        places = torch.arange(len(rows)) * width + torch.tensor(sizes) - 1
        if draw.random() < 0.5:
            output = runner.execute(batch, places)
            logits, state = output.next_token_logits, output.hidden_states
        else:
            # The older release of SGLang selects the places from the whole output.
            output = runner.execute(batch)
            assert len(output.next_token_logits) == len(output.hidden_states) == len(rows) * width
            logits, state = output.next_token_logits[places], output.hidden_states[places]
        for row, number in zip(rows, sizes, strict=True):
            lens[row] += number
        texts = [table[row, : lens[row]] for row in rows]
        accepted = torch.arange(width) < torch.tensor(sizes)[:, None]
        wanted = reference.read(
            texts,
            [row[:number].tolist() for row, number in zip(tokens, sizes, strict=True)],
            None if states is None else states[accepted.flatten()],
        )
        torch.testing.assert_close(logits, wanted[0], rtol=1e-3, atol=1e-4)
        torch.testing.assert_close(state, wanted[1], rtol=1e-3, atol=1e-4)
        # Only the keys and values of accepted tokens are written.
        for mine, theirs in zip([*pool.keys, *pool.values], [*reference.keys, *reference.values], strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-3, atol=1e-4)

        likeliest = torch.softmax(wanted[0], -1).topk(worker.topk, dim=-1)
        kept = wanted[1] if reference.is_head or draw.random() < 0.5 else None
        drafting = DraftRunner(worker, drafter)
        ends = [lens[row] for row in rows]
        batch = draft_batch(rows, ends, likeliest, kept)
        assert drafting.can_run_graph(batch)
        mine = drafting.execute(batch)
        theirs = reference_trees(reference, worker, texts, likeliest.values, likeliest.indices, kept)
        assert worker.num_passes == theirs[4]
        for one, other in zip(mine[:3], theirs[:3], strict=True):
            assert torch.equal(one, other)
        torch.testing.assert_close(mine[3], theirs[3], rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("seed", range(6))
def test_sglangs_own_workers_get_trees_of_their_size_and_no_distribution(seed: int) -> None:
    draw = random.Random(seed)
    torch.manual_seed(seed)
    worker = drawn_worker(draw, ours=False)
    nodes = worker.speculative_num_draft_tokens - 1
    size = worker.draft_runner.model.model.norm.weight.shape[0]
    likeliest = torch.rand(2, worker.draft_runner.model.logits_processor.vocab_size).topk(worker.topk)
    batch = draft_batch([0, 3], [7, 9], likeliest, torch.randn(2, size))
    runner = DraftRunner(worker, NativeDrafter(worker))
    assert runner.can_run_graph(batch)
    parents, chosen, tokens, distribution = runner.execute(batch)
    assert distribution is None and chosen.shape == tokens.shape == (2, nodes)
    own = SimpleNamespace(**vars(worker), max_nodes=nodes, acceptance=None, stop=DraftStop())
    table = worker.draft_runner.req_to_token_pool.req_to_token
    texts = [table[0, :7], table[3, :9]]
    hidden = batch.spec_info.hidden_states
    wanted = reference_trees(reference_of(worker), own, texts, likeliest.values, likeliest.indices, hidden)
    assert torch.equal(parents, wanted[0]) and torch.equal(chosen, wanted[1]) and torch.equal(tokens, wanted[2])


def test_hidden_states_are_handed_out_where_they_are_captured() -> None:
    worker = drawn_worker(random.Random(2), is_head=False, layers=1)
    batch = extend_batch([1], [3], torch.tensor([[4, 5]]), [2], None)
    runner = DraftExtendRunner(NativeDrafter(worker))
    assert runner.execute(batch, torch.tensor([1])).hidden_states is not None
    batch.capture_hidden_mode = SimpleNamespace(need_capture=lambda: False)
    assert runner.execute(batch, torch.tensor([1])).hidden_states is None


def test_what_cannot_be_computed_is_left_to_sglang(monkeypatch: pytest.MonkeyPatch) -> None:
    draw = random.Random(4)
    worker = drawn_worker(draw, ours=False)
    worker.speculative_num_steps, worker.topk, worker.speculative_num_draft_tokens = 3, 2, 11
    drafter = NativeDrafter(worker)
    drafting, extending = DraftRunner(worker, drafter), DraftExtendRunner(drafter)
    likeliest = torch.rand(1, 20).topk(2)
    batch = draft_batch([0], [_POSITIONS - 3], likeliest, None)
    assert drafting.can_run_graph(batch)
    batch.seq_lens += 1
    assert not drafting.can_run_graph(batch), "positions that the model does not know"
    batch.seq_lens -= 1
    batch.forward_mode = mode("idle")
    assert not drafting.can_run_graph(batch)
    batch.forward_mode = mode("decode")
    worker.speculative_num_draft_tokens = 12
    assert not drafting.can_run_graph(batch), "more nodes than there are candidates"

    read = extend_batch([0], [_POSITIONS - 2], torch.tensor([[4, 5]]), [2], None)
    assert extending.can_run_graph(read)
    read.seq_lens += 1
    assert not extending.can_run_graph(read)
    read.seq_lens -= 1
    read.spec_info.num_front_tokens = 1
    assert not extending.can_run_graph(read), "rows that begin before the accepted tokens"
    read.spec_info.num_front_tokens = 0
    read.forward_mode = mode("decode")
    assert not extending.can_run_graph(read)

    def native(**changes: Any) -> Any:
        return NativeDrafter(drawn_worker(draw, is_head=True, layers=1, **changes)).model

    assert native() is not None
    # A head of 4 values is smaller than a vector.
    assert native(hidden=8) is None
    ranks = drawn_worker(draw)
    ranks.draft_runner.server_args.tp_size = 2
    assert NativeDrafter(ranks).model is None
    half = drawn_worker(draw)
    half.draft_runner.token_to_kv_pool.dtype = torch.bfloat16
    assert NativeDrafter(half).model is None
    monkeypatch.setattr(native_models, "_MOST_WEIGHTS", 1000)
    assert native() is None


@pytest.fixture
def sglang(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Stand-ins for SGLang's draft worker and its weight updater, patched."""

    class EagleDraftWorker(SimpleNamespace):
        def _capture_cuda_graphs(self) -> None:
            self.cuda_graph_runner = self.cuda_graph_runner_for_draft_extend = None

    class WeightUpdater:
        def update_weights_from_tensor(self, change: Any) -> str:
            change()
            return "updated"

    for module, name, kind in (
        ("sglang.srt.speculative.eagle_worker_v2", "EagleDraftWorker", EagleDraftWorker),
        ("sglang.srt.model_executor.model_runner_components.weight_updater", "WeightUpdater", WeightUpdater),
    ):
        monkeypatch.setitem(sys.modules, module, SimpleNamespace(**{name: kind}))
    monkeypatch.delenv(plug_in.VARIABLE, raising=False)
    plug_in.patch_draft_workers()
    plug_in.patch_draft_workers()
    return SimpleNamespace(worker=EagleDraftWorker, updater=WeightUpdater)


def plugged(sglang: Any, *, ours: bool = True, device: str = "cpu", rejection: bool = False) -> bool:
    worker = sglang.worker(**vars(drawn_worker(random.Random(7), ours=ours)), device=device)
    worker.server_args = SimpleNamespace(speculative_use_rejection_sampling=rejection)
    worker._capture_cuda_graphs()
    both = worker.cuda_graph_runner, worker.cuda_graph_runner_for_draft_extend
    assert (both[0] is None) == (both[1] is None)
    return both[0] is not None


def test_native_code_is_where_graphs_would_be(sglang: Any) -> None:
    assert plugged(sglang) and plugged(sglang, ours=False)
    assert not plugged(sglang, device="cuda")
    assert not plugged(sglang, rejection=True), "the draft's distributions are needed"


def test_one_variable_says_whose_draft_models_are_native(sglang: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for whose, wanted in {"all": (True, True), "ours": (True, False), "off": (False, False)}.items():
        monkeypatch.setenv(plug_in.VARIABLE, whose)
        assert (plugged(sglang), plugged(sglang, ours=False)) == wanted
    monkeypatch.setenv(plug_in.VARIABLE, "some")
    with pytest.raises(plug_in.ConfigError, match="SGLANG_CPU_DRAFTER must be one of all, ours, off, got 'some'"):
        plugged(sglang)


def test_weights_that_were_replaced_are_read_anew(sglang: Any) -> None:
    worker = drawn_worker(random.Random(5), is_head=False, layers=1)
    drafter = NativeDrafter(worker)
    before = drafter.model
    assert before is not None and drafter.model is before

    def change() -> None:
        for tensor in (
            worker.draft_runner.model.model.layers[0].mlp.down_proj.weight,
            worker.draft_runner.model.lm_head.weight,
        ):
            tensor.copy_(torch.rand(tensor.shape))

    reference = reference_of(worker)
    assert sglang.updater().update_weights_from_tensor(change) == "updated"
    batch = extend_batch([2], [0], torch.tensor([[7, 8, 9]]), [3], None)
    logits = DraftExtendRunner(drafter).execute(batch, torch.tensor([2])).next_token_logits
    assert drafter.model is not before
    table = worker.draft_runner.req_to_token_pool.req_to_token
    torch.testing.assert_close(logits, reference.read([table[2, :3]], [[7, 8, 9]], None)[0], rtol=1e-3, atol=1e-4)
