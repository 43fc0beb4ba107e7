"""Native draft models, compared with SGLang's own forwards of them, inside a server, step by step."""

from __future__ import annotations

import json
import os
import textwrap
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="draft models need torch; `make setup` installs it")

from server_requests import ARGUMENTS, MODEL, chat_prompts, generate

from agentspec.evals.systems import EAGLE3_FOLDER, STANDALONE_FOLDER
from agentspec.integrations.servers.server import Server

pytestmark = [pytest.mark.sglang, pytest.mark.server]

_PLUGIN = """
    import json

    def register():
        import torch
        from agentspec.integrations.sglang_cpu.drafter.runners import DraftExtendRunner, DraftRunner
        from sglang.srt.speculative.eagle_worker_v2 import EagleDraftWorker

        execute, read, extend = DraftRunner.execute, DraftExtendRunner.execute, EagleDraftWorker._draft_extend_for_decode

        def note(kind, *values):
            with open({file!r}, "a") as out:
                out.write(json.dumps([kind, *map(float, values)]) + "\\n")

        def both(self, batch):
            ours, worker = execute(self, batch), self._worker
            worker.draft_attn_backend.init_forward_metadata(batch)
            batch.mark_forward_metadata_ready()
            theirs = worker.draft_forward(batch)
            note("draft", *(torch.equal(mine, other) for mine, other in zip(ours[:3], theirs[:3])))
            return ours

        def both_reads(self, batch, select_index):
            ours, runner = read(self, batch, select_index), self._drafter._worker.draft_runner
            runner.attn_backend.init_forward_metadata(batch)
            batch.mark_forward_metadata_ready()
            theirs = runner.forward(batch).logits_output
            logits = theirs.next_token_logits[select_index]
            away = 0.0
            if ours.hidden_states is not None:
                away = (ours.hidden_states - theirs.hidden_states[select_index]).abs().max()
            note("read", (ours.next_token_logits - logits).abs().max(), away)
            return ours

        DraftRunner.execute, DraftExtendRunner.execute = both, both_reads
"""


def comparer(site: Path, file: Path) -> Path:
    """An SGLang plugin that runs each forward of the draft model both ways and notes how far the results differ."""
    info = site / "comparer-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: comparer\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[sglang.srt.plugins]\ncomparer = comparer_plugin:register\n")
    (site / "comparer_plugin.py").write_text(textwrap.dedent(_PLUGIN.format(file=str(file))))
    return site


@pytest.mark.parametrize(
    ("algorithm", "folder"),
    [("EAGLE3", EAGLE3_FOLDER), ("STANDALONE", STANDALONE_FOLDER)],
    ids=["eagle3", "standalone"],
)
def test_it_computes_what_sglang_does(
    algorithm: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "found.jsonl"
    site = comparer(tmp_path / "site", file)
    path = os.pathsep.join([str(site), os.environ.get("PYTHONPATH", "")]).strip(os.pathsep)
    monkeypatch.setenv("PYTHONPATH", path)
    # SGLang lets branches of a tree attend to tokens that are not their ancestors. For chains, both must agree.
    chains = ("--speculative-num-steps", "4", "--speculative-eagle-topk", "1", "--speculative-num-draft-tokens", "5")
    arguments = (*ARGUMENTS, "--speculative-draft-model-path", str(folder), *chains)
    bodies: list[dict[str, Any]] = [
        {"text": text, "sampling_params": {"temperature": 0, "max_new_tokens": 40}}
        for text in chat_prompts(6, seed=331)
    ]
    with Server(MODEL, algorithm, log=tmp_path / "server.log", arguments=arguments) as server:
        generate(server, bodies, 3)
    found = [json.loads(line) for line in file.read_text().splitlines()]
    reads, drafts = ([rest for kind, *rest in found if kind == name] for name in ("read", "draft"))
    assert len(reads) > 10 and len(drafts) > 10
    assert max(max(away) for away in reads) < 2e-3
    # Where tokens tie, the two may choose different ones.
    assert sum(all(row) for row in drafts) > 0.98 * len(drafts)
