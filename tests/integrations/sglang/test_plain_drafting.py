"""Drafters in native code and in plain torch against SGLang's own forwards of them, inside a server, step by step."""

from __future__ import annotations

import json
import os
import textwrap
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the drafters need torch; `make setup` installs it")


from server_requests import ARGUMENTS, MODEL, chat_prompts, generate

from agentspec.evals.drawn_llama import drawn_llama
from agentspec.evals.server import Server
from agentspec.evals.systems import EAGLE3_FOLDER, STANDALONE_FOLDER
from agentspec.integrations.sglang_cpu.drafter.eligibility import is_plain_llama as is_plain
from agentspec.integrations.sglang_cpu.plain_llama import PlainLlama

pytestmark = pytest.mark.sglang


def comparer(site: Path, file: Path, way: str) -> Path:
    """A plugin that lets each forward of the drafter run `way` and SGLang's, and writes down how far they lie apart."""
    info = site / "comparer-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: comparer\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[sglang.srt.plugins]\ncomparer = comparer_plugin:register\n")
    (site / "comparer_plugin.py").write_text(
        textwrap.dedent(
            f"""
            import json

            def register():
                import numpy as np
                import torch
                from sglang.srt.speculative.eagle_worker_v2 import EagleDraftWorker
                from agentspec.integrations.sglang.model_drafter import ModelDrafter
                from agentspec.integrations.sglang import native_drafting
                from agentspec.integrations.sglang.plain_drafting import PlainDrafting

                drafting = native_drafting.NativeDrafting
                if {way!r} == "torch":
                    native_drafting.native_llama = lambda *model: None
                    drafting = PlainDrafting
                plain_read, read, draft = drafting.read, ModelDrafter._read, ModelDrafter.draft
                found = []

                def note(kind, *values):
                    with open({str(file)!r}, "a") as out:
                        out.write(json.dumps([kind, *map(float, values)]) + "\\n")

                def kept(self, *args):
                    found.append(plain_read(self, *args))
                    # So that SGLang's is asked too.

                def compared(self, *args):
                    logits, hidden = read(self, *args)
                    if found[-1] is not None:
                        ours = found[-1]
                        away = 0.0 if hidden is None else (ours[1] - hidden).abs().max()
                        note("read", (ours[0] - logits).abs().max(), away)
                    return logits, hidden

                def both(self, *args):
                    ours, forwards = draft(self, *args), self.forwards
                    assert type(forwards()) is drafting
                    self.forwards = lambda: None
                    theirs = draft(self, *args)
                    self.forwards = forwards
                    same = np.array_equal(ours.tokens, theirs.tokens) and np.array_equal(ours.parents, theirs.parents)
                    away = np.abs(ours.estimates - theirs.estimates).max() if same else 1.0
                    note("draft", same, away)
                    return theirs

                def prompts(self, *args, **kwargs):
                    theirs = prompts_read(self, *args, **kwargs)
                    if found[-1] is not None:
                        logits, hidden = found[-1]
                        likeliest = torch.softmax(logits, dim=-1).topk(self.topk, dim=-1).values
                        away = (hidden - theirs.hidden_states).abs().max()
                        note("prompts", (likeliest - theirs.topk_p).abs().max(), away)
                    return theirs

                drafting.read, ModelDrafter._read, ModelDrafter.draft = kept, compared, both
                prompts_read = EagleDraftWorker._draft_extend_for_prefill
                EagleDraftWorker._draft_extend_for_prefill = prompts
            """
        )
    )
    return site


@pytest.mark.parametrize("way", ["native", "torch"])
@pytest.mark.parametrize("folder", [EAGLE3_FOLDER, STANDALONE_FOLDER], ids=["eagle3", "standalone"])
def test_it_computes_what_sglang_does(folder: Path, way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "found.jsonl"
    site = comparer(tmp_path / "site", file, way)
    path = os.pathsep.join([str(site), os.environ.get("PYTHONPATH", "")]).strip(os.pathsep)
    monkeypatch.setenv("PYTHONPATH", path)
    # SGLang lets branches of a tree see tokens that are not their ancestors: of chains both must say the same.
    chains = ("--speculative-num-steps", "4", "--speculative-eagle-topk", "1", "--agentspec-tau", "2")
    arguments = (*ARGUMENTS, "--speculative-draft-model-path", str(folder), *chains)
    bodies: list[dict[str, Any]] = [
        {"text": text, "sampling_params": {"temperature": 0, "max_new_tokens": 40}}
        for text in chat_prompts(6, seed=331)
    ]
    with Server(MODEL, "AGENTSPEC", log=tmp_path / "server.log", arguments=arguments) as server:
        generate(server, bodies, 3)
        assert server.agentspec_state()["counters"]["draft_errors"] == 0  # type: ignore[index]
    found = [json.loads(line) for line in file.read_text().splitlines()]
    reads, drafts, prompts = ([rest for kind, *rest in found if kind == name] for name in ("read", "draft", "prompts"))
    assert len(reads) > 10 and len(drafts) > 10
    assert max(max(away) for away in reads + prompts) < 2e-3
    # A small model of its own reads prompts when it is to draft.
    assert bool(prompts) == (folder == EAGLE3_FOLDER)
    # The order of sums decides ties.
    assert sum(same for same, _ in drafts) >= 0.97 * len(drafts)
    assert sum(away < 1e-3 for _, away in drafts) >= 0.97 * len(drafts)


def test_what_is_computed_otherwise_is_left_to_sglang() -> None:
    class Other:
        model = None

    class LlamaForCausalLM:
        model = Other()

    assert not is_plain(Other())
    assert not is_plain(LlamaForCausalLM())


def test_a_head_reads_the_target_s_states_and_its_own() -> None:
    """The two inputs of a head differ in width: three layers of the target go through `fc`, its own state does not."""
    torch.manual_seed(1)
    model = drawn_llama(hidden=8, mlp=12, vocabulary=20, outputs=11, is_head=True)
    plain = PlainLlama(model)

    def attend(layer: int, q: Any, k: Any, v: Any) -> Any:
        assert (q.shape[1:], k.shape[1:], v.shape[1:]) == ((2, 4), (1, 4), (1, 4))
        return q.flatten(1)

    tokens, positions, wide = torch.tensor([3, 5]), torch.tensor([0, 7]), torch.randn(2, 24)
    narrow = torch.nn.functional.linear(wide, model.model.fc.weight)
    for one, other in zip(
        plain.forward(tokens, positions, wide, attend), plain.forward(tokens, positions, narrow, attend), strict=True
    ):
        torch.testing.assert_close(one, other)
    normed, state = plain.forward(tokens, positions, wide, attend)
    torch.testing.assert_close(normed, torch.nn.functional.rms_norm(state, (8,), model.model.norm.weight, 1e-5))
    assert plain.logits(normed).shape == (2, 11)
