"""Steps of every width keep the states of Mamba layers where SGLang reads them."""

from __future__ import annotations

import warnings
from typing import Any

import pytest

from agentspec.integrations import sglang_cpu

pytestmark = pytest.mark.sglang

torch = pytest.importorskip("torch", reason="needs torch: run `make setup`")


def test_a_narrow_step_leaves_each_row_the_room_of_the_widest(monkeypatch: pytest.MonkeyPatch) -> None:
    sglang_cpu.activate()
    # Packages that SGLang imports emit deprecation warnings.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from sglang.kernels.ops.mamba.triton_ops import ssu_dispatch
        from sglang.srt.layers.attention.mamba import mamba

        from agentspec.integrations.sglang.kernels.token_states import keep_states_of_each_row

    called: list[dict[str, Any]] = []
    monkeypatch.setattr(ssu_dispatch, "_mamba_ssu_backend", lambda *tensors, **rest: called.append(rest))
    keep_states_of_each_row()
    rows, width, widest = 3, 2, 16
    tensors = [torch.zeros(1)] * 6
    # As a layer calls it in a verify step, and in a decode step.
    states = torch.zeros(rows, widest, 4, 8)
    mamba.selective_state_update(*tensors, intermediate_states_buffer=states, cache_steps=width)
    mamba.selective_state_update(*tensors)
    assert [call["cache_steps"] for call in called] == [widest, None]


def test_a_target_without_such_layers_has_no_states_to_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    sglang_cpu.activate()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from sglang.srt.speculative import eagle_worker_common, ngram_worker

        from agentspec.integrations.sglang.kernels.token_states import commit_no_states

    name = "commit_mamba_states_after_verify"
    for module in (eagle_worker_common, ngram_worker):
        monkeypatch.setattr(module, name, getattr(module, name))
    commit_no_states()
    for module in (eagle_worker_common, ngram_worker):
        # SGLang's function would fail, because there is no target.
        getattr(module, name)(None, None, accept_lens=None, accept_index=None, draft_token_num=4)
