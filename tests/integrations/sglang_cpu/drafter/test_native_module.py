"""What native draft models refuse, what is left to SGLang, and what they rely on in every release of it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="draft models need torch; `make setup` installs it")

import ast
from pathlib import Path

from drawn_llama import drawn_llama
from releases import releases

from agentspec.errors import ConfigError
from agentspec.integrations.sglang_cpu.drafter.eligibility import is_plain_llama
from agentspec.integrations.sglang_cpu.drafter.model import native_llama
from agentspec.integrations.sglang_cpu.drafter.native_drafter import _WEIGHT_CHANGES

pytest.importorskip("torch", reason="draft models need torch; `make setup` installs it")


_SLOTS = 90
_TEXT, _TOKEN = np.array([3, 4], np.int32), np.array([7], np.int64)


@pytest.fixture(scope="module")
def model() -> Any:
    torch.manual_seed(3)
    drawn = drawn_llama(hidden=32, mlp=8, vocabulary=50, is_head=False)
    made = native_llama(drawn, [torch.randn(_SLOTS, 1, 16)], [torch.randn(_SLOTS, 1, 16)])
    assert made is not None
    return made


@pytest.mark.parametrize(
    ("texts", "tokens"),
    [
        ([_TEXT.astype(np.int64)], [_TOKEN]),
        ([_TEXT], [_TOKEN.astype(np.int32)]),
        ([np.arange(4, dtype=np.int32)[::2]], [_TOKEN]),
    ],
)
def test_nothing_is_converted_on_the_way_to_native_code(model: Any, texts: Any, tokens: Any) -> None:
    """A conversion makes a copy, and what is written to a copy of the cache would be lost."""
    with pytest.raises(TypeError, match="incompatible function arguments"):
        model.read(texts, tokens, None)


@pytest.mark.parametrize(
    ("text", "token", "hidden", "what"),
    [
        (np.array([3, _SLOTS], np.int32), _TOKEN, None, "slots"),
        (np.array([-1, 4], np.int32), _TOKEN, None, "slots"),
        (_TEXT, np.array([50], np.int64), None, "vocabulary"),
        (_TEXT, np.array([1, 2, 3], np.int64), None, "no more than the text"),
        (_TEXT, _TOKEN, np.zeros(32, np.float32), "none for another model"),
        (np.arange(65, dtype=np.int32), _TOKEN, None, "positions"),
    ],
)
def test_texts_out_of_range_are_refused_before_memory_is_touched(
    model: Any, text: Any, token: Any, hidden: Any, what: str
) -> None:
    with pytest.raises(ConfigError, match=what):
        model.read([text], [token], hidden)


def test_trees_out_of_range_are_refused(model: Any) -> None:
    rules = {"topk": 1, "num_steps": 3, "max_nodes": 4, "least_gain": 0.0}
    p, index = np.array([0.5], np.float32), np.array([50], np.int64)
    with pytest.raises(ConfigError, match="vocabulary"):
        model.draft([_TEXT], p, index, None, None, None, **rules)
    with pytest.raises(ConfigError, match="trees need rows"):
        model.draft([_TEXT, _TEXT], p, index, None, None, None, **rules)


def test_models_that_are_not_known_are_left_to_sglang() -> None:
    class Other:
        model = None

    class LlamaForCausalLM:
        model = Other()

    assert not is_plain_llama(Other())
    assert not is_plain_llama(LlamaForCausalLM())


def methods(release: Path, file: str, name: str) -> dict[str, ast.FunctionDef]:
    body = ast.parse((release / "sglang" / "srt" / file).read_text(encoding="utf-8")).body
    [found] = [node for node in body if isinstance(node, ast.ClassDef) and node.name == name]
    return {node.name: node for node in found.body if isinstance(node, ast.FunctionDef)}


def calls_of(function: ast.FunctionDef, name: str) -> list[ast.Call]:
    calls = [node for node in ast.walk(function) if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)]
    return [call for call in calls if ast.unparse(call.func).endswith(name)]


@pytest.mark.sglang
@pytest.mark.parametrize("release", releases())
def test_all_that_writes_to_weights_is_followed(release: Path) -> None:
    found = methods(release, "model_executor/model_runner_components/weight_updater.py", "WeightUpdater")
    writing = {name for name in found if name.startswith(("update_weights_from", "load_weights_from"))}
    assert writing and writing <= set(_WEIGHT_CHANGES)


@pytest.mark.sglang
@pytest.mark.parametrize("release", releases())
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
