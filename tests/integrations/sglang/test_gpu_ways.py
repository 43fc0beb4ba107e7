"""The plugin of helpers/gpu_ways: all switches have their documented effects, and SGLang's own workers tolerate
them."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from server_parity import ALL_GPU_WAYS, GPU_WAYS, Reference, assert_parity

from agentspec.evals.parity.servers import Variant, check_variant, parity_server

pytestmark = [pytest.mark.sglang, pytest.mark.server]


@pytest.fixture(scope="module")
def gpu_ways() -> ModuleType:
    spec = importlib.util.spec_from_file_location("gpu_ways", GPU_WAYS / "gpu_ways.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def forward(value: float) -> Any:
    """Makes a forward that returns `value` as outputs and records the hidden states that it gets."""

    def run(runner: Any, batch: Any) -> Any:
        runner.given = getattr(batch.spec_info, "hidden_states", None)
        output = SimpleNamespace(next_token_logits=torch.full((2, 3), value), hidden_states=torch.full((2, 4), value))
        return SimpleNamespace(logits_output=output)

    return run


def test_outputs_are_overwritten_by_the_next_forward_which_still_reads_its_inputs(gpu_ways: ModuleType) -> None:
    outputs = gpu_ways.ReusedOutputs()
    target, draft = SimpleNamespace(is_draft_worker=False), SimpleNamespace(is_draft_worker=True)
    nothing = SimpleNamespace(spec_info=None)
    kept = outputs.forward(forward(1.0), target, nothing).logits_output
    assert (kept.next_token_logits == 1).all() and (kept.hidden_states == 1).all()
    batch = SimpleNamespace(spec_info=SimpleNamespace(hidden_states=kept.hidden_states))
    drafted = outputs.forward(forward(2.0), draft, batch).logits_output
    assert (draft.given == 1).all()
    assert kept.next_token_logits.isnan().all() and kept.hidden_states.isnan().all()
    outputs.forward(forward(3.0), target, nothing)
    assert (drafted.hidden_states == 2).all(), "only the target's outputs are kept in buffers"
    assert (kept.hidden_states == 3).all(), "the same memory again"


@dataclass
class Payload:
    topk_p: Any = None
    topk_index: Any = None
    hidden_states: Any = None


def test_the_first_payload_decides_what_the_relay_carries(gpu_ways: ModuleType) -> None:
    algorithm = SimpleNamespace(is_none=lambda: False, is_ngram=lambda: False)
    one = torch.zeros(1)
    stashed: list[Any] = []

    def stash(relay: Any, indices: Any, payload: Any) -> None:
        stashed.append(payload)

    relay = SimpleNamespace(spec_algo=algorithm)
    both = Payload(topk_p=one, topk_index=one, hidden_states=one)
    without = Payload(topk_p=one, topk_index=one)
    gpu_ways._stash_as_fixed(stash, relay, one, both)
    with pytest.raises(AttributeError, match="hidden_states"):
        gpu_ways._stash_as_fixed(stash, relay, one, without)
    relay = SimpleNamespace(spec_algo=algorithm)
    gpu_ways._stash_as_fixed(stash, relay, one, without)
    gpu_ways._stash_as_fixed(stash, relay, one, both)
    assert [payload.hidden_states is None for payload in stashed] == [False, True, True]


def test_sglang_s_own_draft_model_bears_a_gpu_s_ways(short_reference: Reference, tmp_path: Path) -> None:
    """If agentspec's answers differ under the switches, agentspec is then the cause."""
    variant = Variant(
        system="sglang-eagle3",
        plugins=(GPU_WAYS,),
        variables={"GPU_WAYS": ALL_GPU_WAYS, "GPU_WAYS_STEPS": str(tmp_path)},
    )
    with parity_server(variant, tmp_path / "server.log") as server:
        check_variant(server, variant)
        assert_parity(server, short_reference, may_refuse=True)
    steps = (tmp_path / "rank-0.txt").read_text().splitlines()
    lengths = {step.endswith("host lengths") for step in steps if "TARGET_VERIFY" in step}
    assert lengths == {False}, "no verification was given lengths in host memory"
