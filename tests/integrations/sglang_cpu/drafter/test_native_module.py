"""The arguments that native draft models refuse, and the models that are left to SGLang."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="draft models need torch; `make setup` installs it")

from drawn_llama import drawn_llama

from agentspec.errors import ConfigError
from agentspec.integrations.sglang_cpu.drafter.eligibility import is_plain_llama
from agentspec.integrations.sglang_cpu.drafter.model import native_llama

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
