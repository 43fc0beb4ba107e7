"""The draft model's passes over a batch, with a model that answers at random. SGLang's workers are imported in a process of
their own, because on a CPU they need stand-ins that would stay in this one."""

from __future__ import annotations

import json
import os
import sys
from contextlib import nullcontext
from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest

from agentspec.integrations import sglang_cpu

VOCABULARY, STEPS, PASSES = 50, 5, {1: 5, 24: 5, 25: 4, 32: 4, 33: 3, 200: 3}


def drafted(rows: int) -> dict[str, Any]:
    import torch

    from agentspec.integrations.sglang import compat
    from agentspec.integrations.sglang.drafting.draft_model import TreeDrafting
    from agentspec.integrations.sglang.drafting.stop_rule import DraftStop

    seen: list[list[int]] = []

    def forward(forward_batch: SimpleNamespace) -> SimpleNamespace:
        seen.append(forward_batch.positions.tolist())
        logits = torch.randn(rows, VOCABULARY)
        return SimpleNamespace(
            logits_output=SimpleNamespace(next_token_logits=logits, hidden_states=torch.zeros(rows, 4))
        )

    worker: Any = SimpleNamespace(
        speculative_num_steps=STEPS,
        topk=1,
        hot_token_id=None,
        acceptance=None,
        accepted=lambda hidden, topk_p: (topk_p, topk_p),
        stop=DraftStop(),
        max_nodes=15,
        draft_attn_backend=SimpleNamespace(attn_backends=[None] * (STEPS - 1)),
        draft_runner=SimpleNamespace(forward=forward, model_config=SimpleNamespace(model_is_mrope=False)),
    )
    first = torch.rand(rows, VOCABULARY).softmax(dim=-1).topk(1, dim=-1)
    batch = SimpleNamespace(
        spec_info=SimpleNamespace(topk_p=first.values, topk_index=first.indices, hidden_states=torch.zeros(rows, 4)),
        out_cache_loc=torch.arange(rows * STEPS),
        positions=torch.arange(rows),
    )
    with patch.object(compat, "draft_step_context", lambda backend, forward_batch: nullcontext()):
        _, chosen, tokens, estimates = TreeDrafting.draft_forward(worker, batch)
    return {
        "seen": seen,
        "positions": batch.positions.tolist(),
        "chosen": chosen.tolist(),
        "shape": list(tokens.shape),
        "descending": bool((estimates[:, 1:] <= estimates[:, :-1]).all()),
        "passes": worker.num_passes,
    }


def launched(drafts_here: bool, is_timed: bool = True) -> dict[str, Any]:
    """Launches the passes of a step whose time is reported after those of another step."""
    from agentspec.integrations.sglang.workers.hybrid import _Hybrid, _Step

    reports: list[Any] = []
    copies: list[int] = []
    told: list[tuple[Any, ...]] = []
    drafter = SimpleNamespace(
        stop=SimpleNamespace(),
        num_passes=5,
        is_timed=is_timed,
        passes=lambda batch: SimpleNamespace(start_copy=lambda: copies.append(1)),
    )
    # A rank that drafts knows the context of a step that waits; others know that of the step before.
    nothing: Any = None
    step = _Step([], SimpleNamespace(context=500), nothing, nothing) if drafts_here else None  # type: ignore[arg-type]
    worker: Any = SimpleNamespace(
        _step=step,
        _draft_worker=drafter,
        _clock=SimpleNamespace(start=lambda: 0.0, stop=lambda start, report: reports.append(report)),
        _passes_took=lambda *of: told.append(of),
        _context=700,
        _order=None,
        suffix=SimpleNamespace(drafts_here=drafts_here, failed=lambda message: told.append((message,))),
        counters=SimpleNamespace(add=lambda *of: None),
    )
    _Hybrid._launched_passes(worker, SimpleNamespace(reqs=[1, 2]), 0.0)  # type: ignore[arg-type]
    drafter.num_passes, worker._context = 3, 900
    for report in reports:
        report(0.25)
    return {"copies": len(copies), "told": told}


@pytest.mark.skipif(find_spec("sglang") is None, reason="needs SGLang: run `make setup`")
def test_many_rows_have_shorter_chains_and_the_positions_that_sglang_expects() -> None:
    from programs import output_of

    told = output_of(sys.executable, "-P", __file__, env={**os.environ, **sglang_cpu.environment()})
    of_passes, of_launches, has_threads = map(json.loads, told.splitlines()[-3:])
    assert has_threads is True, "the number of threads follows the work of SGLang's own forwards"
    # Only the rank that drafts reads the trees. The time is that of these passes, if they are timed.
    assert of_launches == [
        {"copies": 1, "told": [[2, 5, 500, 0.25]]},
        {"copies": 0, "told": [[2, 5, 700, 0.25]]},
        {"copies": 1, "told": []},
    ]
    for rows, found in of_passes.items():
        b, passes = int(rows), PASSES[int(rows)]
        assert found["chosen"] == [list(range(passes))] * b and found["shape"] == [b, passes], rows
        assert found["descending"], "an estimate is the product along its path"
        assert found["passes"] == passes
        # The first token of a chain needs no pass.
        assert found["seen"] == [[row + ran for row in range(b)] for ran in range(passes - 1)]
        # A captured graph takes STEPS - 1 back at its end, or the positions of unused rows would fall below 0.
        assert found["positions"] == [row + STEPS - 1 for row in range(b)]


if __name__ == "__main__":
    print(json.dumps({rows: drafted(rows) for rows in PASSES}))
    print(json.dumps([launched(True), launched(False), launched(True, is_timed=False)]))
    from sglang.srt.model_executor.model_runner import ModelRunner

    print(json.dumps(ModelRunner.forward._agentspec_cpu))
