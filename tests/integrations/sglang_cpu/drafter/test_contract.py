"""What native draft models rely on in SGLang's sources, in every supported release. They are read, never imported."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from releases import releases

pytest.importorskip("torch", reason="draft models need torch; `make setup` installs it")

from agentspec.integrations.sglang_cpu.drafter.native_drafter import _WEIGHT_CHANGES

pytestmark = [pytest.mark.sglang, pytest.mark.parametrize("release", releases())]


def methods(release: Path, file: str, name: str) -> dict[str, ast.FunctionDef]:
    body = ast.parse((release / "sglang" / "srt" / file).read_text(encoding="utf-8")).body
    [found] = [node for node in body if isinstance(node, ast.ClassDef) and node.name == name]
    return {node.name: node for node in found.body if isinstance(node, ast.FunctionDef)}


def calls_of(function: ast.FunctionDef, name: str) -> list[ast.Call]:
    calls = [node for node in ast.walk(function) if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)]
    return [call for call in calls if ast.unparse(call.func).endswith(name)]


def test_all_that_writes_to_weights_is_followed(release: Path) -> None:
    found = methods(release, "model_executor/model_runner_components/weight_updater.py", "WeightUpdater")
    writing = {name for name in found if name.startswith(("update_weights_from", "load_weights_from"))}
    assert writing and writing <= set(_WEIGHT_CHANGES)


def test_a_draft_worker_calls_its_graphs_as_the_runners_can_be_called(release: Path) -> None:
    worker = methods(release, "speculative/eagle_worker_v2.py", "EagleDraftWorker")
    set_first = [ast.unparse(line) for line in worker["_capture_cuda_graphs"].body[1:3]]
    assert set_first == ["self.cuda_graph_runner = None", "self.cuda_graph_runner_for_draft_extend = None"]
    [draft] = calls_of(worker["draft"], "cuda_graph_runner.execute")
    [extend] = calls_of(worker["_draft_extend_for_decode"], "cuda_graph_runner_for_draft_extend.execute")
    assert [ast.unparse(argument) for argument in draft.args] == ["forward_batch"]
    assert [ast.unparse(argument) for argument in extend.args] in (["forward_batch"], ["forward_batch", "select_index"])
    # A worker that does not pass the rows that it wants selects them from the whole output.
    text = ast.unparse(worker["_draft_extend_for_decode"])
    after = text.index("if not can_run_decode_cuda_graph:") if len(extend.args) == 2 else text.index(".execute(")
    assert text.index("next_token_logits[select_index]") > after
