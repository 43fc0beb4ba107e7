"""The hidden states that SGLang's draft models return are those that acceptance heads are trained on."""

from __future__ import annotations

import os
import textwrap
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the drafters need torch; `make setup` installs it")

from server_requests import ARGUMENTS, MODEL, chat_prompts, generate

from agentspec.evals.research.specdec_costs import load_drafters
from agentspec.evals.research.tiny_sql.chains import Text, draft_chains
from agentspec.evals.systems import EAGLE3_FOLDER, STANDALONE_FOLDER
from agentspec.integrations.servers.server import Server

pytestmark = [pytest.mark.sglang, pytest.mark.server]

STEPS = 4
CHAINS = (
    "--speculative-num-steps", str(STEPS), "--speculative-eagle-topk", "1",
    "--speculative-num-draft-tokens", str(STEPS + 1),
)  # fmt: skip
FOLDERS = {"standalone": STANDALONE_FOLDER, "eagle3": EAGLE3_FOLDER}


def recorder(site: Path, file: Path) -> Path:
    """Writes a plugin that records the inputs and hidden states of the draft model's forwards in each drafting loop."""
    info = site / "recorder-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: recorder\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[sglang.srt.plugins]\nrecorder = recorder_plugin:register\n")
    (site / "recorder_plugin.py").write_text(
        textwrap.dedent(
            f"""
            def register():
                import torch
                from sglang.srt.model_executor.forward_batch_info import CaptureHiddenMode
                from sglang.srt.speculative.eagle_worker_v2 import EagleDraftWorker

                draft_forward, loops = EagleDraftWorker.draft_forward, []

                def recorded(self, forward_batch):
                    forward, loop = self.draft_runner.forward, []

                    def captured(batch, *args, **kwargs):
                        batch.capture_hidden_mode = CaptureHiddenMode.LAST
                        out = forward(batch, *args, **kwargs)
                        loop.append((batch.input_ids.clone(), out.logits_output.hidden_states.clone()))
                        return out

                    self.draft_runner.forward = captured
                    try:
                        return draft_forward(self, forward_batch)
                    finally:
                        self.draft_runner.forward = forward
                        loops.append(loop)
                        torch.save(loops, {str(file)!r})

                EagleDraftWorker.draft_forward = recorded
            """
        )
    )
    return site


@pytest.mark.parametrize("name", ["standalone", "eagle3"])
def test_states_of_a_drafting_loop_are_those_of_our_chains(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = recorder(tmp_path / "site", tmp_path / "loops.pt")
    path = os.pathsep.join([str(site), os.environ.get("PYTHONPATH", "")]).strip(os.pathsep)
    monkeypatch.setenv("PYTHONPATH", path)
    # Use SGLang's own loop instead of the native one, which replaces a graph on a CPU.
    monkeypatch.setenv("SGLANG_CPU_DRAFTER", "off")
    arguments = (*ARGUMENTS, "--speculative-draft-model-path", str(FOLDERS[name]), *CHAINS)
    body: dict[str, Any] = {"text": chat_prompts(1, seed=330)[0]}
    body["sampling_params"] = {"temperature": 0, "max_new_tokens": 40}
    with Server(MODEL, name.upper(), log=tmp_path / "server.log", arguments=arguments) as server:
        output = generate(server, [body], 1)[0]["output_ids"]
    pair = load_drafters(MODEL, {name: FOLDERS[name]})
    prompt = pair.tokenizer.encode(body["text"]).ids
    tokens = torch.tensor(prompt + output)
    with torch.no_grad():
        _, captured = pair.target.states(tokens[None], pair.capture)
    text = Text(tokens, len(prompt), torch.cat([one[0] for one in captured], -1))
    starts = text.starts
    chains = draft_chains(pair.drafters[name], text, starts, torch.zeros(len(starts), STEPS, dtype=torch.bool))
    loops = [loop for loop in torch.load(tmp_path / "loops.pt") if loop]
    assert len(loops) > 5
    place = 0
    for loop in islice(loops, 0, len(loops) - 1):
        inputs, states = (torch.stack(parts, 1)[0] for parts in zip(*loop, strict=True))
        # The token that a state belongs to is drafted before it. The first state comes from the extend before the loop.
        found = (chains.tokens[place:, : STEPS - 1] == inputs).all(1).nonzero().flatten() + place
        near = [
            int(row) for row in found if torch.allclose(chains.states[row, 1:], states.float(), atol=2e-3, rtol=2e-3)
        ]
        assert near, f"no chain from place {place} on drafts {inputs.tolist()} with these states"
        place = near[0] + 1
