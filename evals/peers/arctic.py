"""ArcticInference's SuffixDecodingCache as a replayed system."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from agentspec.analysis.replay import Call, Draft
from agentspec.errors import ConfigError

INSTALL = (
    "run `make arctic`, or `pip install torch nanobind cmake ninja grpcio-tools protobuf setuptools wheel`, then, with "
    "the environment's bin folder on PATH, `pip install --no-build-isolation --no-deps arctic-inference==0.3.0`"
)


DEFAULT_MIN_TOKEN_PROB = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class ArcticSetting:
    """Arguments of SuffixDecodingCache and its `speculate`."""

    depth: int = 64
    mode: Literal["linear", "tree"] = "linear"
    factor: float = 1.0
    min_token_prob: float = DEFAULT_MIN_TOKEN_PROB

    def __str__(self) -> str:
        least = "" if self.min_token_prob == DEFAULT_MIN_TOKEN_PROB else f" p{self.min_token_prob:g}"
        return f"d{self.depth} {self.mode} f{self.factor:g}{least}"


SETTINGS = tuple(ArcticSetting(mode=mode, factor=factor) for mode in ("linear", "tree") for factor in (1.0, 2.0, 4.0))


CURVE = tuple(
    ArcticSetting(mode=mode, factor=factor, min_token_prob=least)
    for mode in ("linear", "tree")
    for factor in (1.0, 2.0, 4.0, 8.0)
    for least in (0.02, 0.045, 0.1, 0.2)
)
"""Settings of a curve. Its ends lie beyond what ArcticInference ships with."""


def suffix_decoding_cache(depth: int) -> Any:
    """A new SuffixDecodingCache without a limit on cached requests.

    Raises:
        ConfigError: The package is not installed.
    """
    try:
        module = importlib.import_module("arctic_inference.suffix_decoding")
    except ImportError as error:
        raise ConfigError(f"the system arctic needs ArcticInference: {error}; {INSTALL}") from error
    return module.SuffixDecodingCache(max_tree_depth=depth)


class Arctic:
    """One cache. The trees of prompts are local to a request; the tree of outputs is global and grows with each
    step."""

    def __init__(self, setting: ArcticSetting) -> None:
        self.setting = setting
        self._cache = suffix_decoding_cache(setting.depth)
        self._requests = 0
        # The context that `speculate` may match: the end of the prompt, and the output.
        self._context = np.zeros(0, dtype=np.int32)
        self._length = 0

    def remember(self, call: Call) -> None:
        # Prompts never enter the global tree, so one token of the prompt suffices.
        self.open(call.prompt_parts[-1][-1:])
        self.extend(call.output)
        self.close()

    def open(self, prompt: NDArray[np.int32]) -> None:
        tail = prompt[-self.setting.depth :]
        self._context = np.resize(tail, len(tail) + 1024)
        self._length = len(tail)
        self._cache.start_request(self._requests, prompt)

    def extend(self, tokens: NDArray[np.int32]) -> None:
        end = self._length + len(tokens)
        if end > len(self._context):
            self._context = np.resize(self._context, 2 * end)
        self._context[self._length : end] = tokens
        self._length = end
        self._cache.add_active_response(self._requests, tokens)

    def draft(self, max_tokens: int, setting: ArcticSetting | None = None) -> Any:
        """Drafts with another setting of the same depth, if one is given."""
        setting = setting or self.setting
        begin = max(0, self._length - self.setting.depth)
        return self._cache.speculate(
            self._requests,
            self._context[begin : self._length],
            max_spec_tokens=max_tokens,
            max_spec_factor=setting.factor,
            min_token_prob=setting.min_token_prob,
            use_tree_spec=setting.mode == "tree",
        )

    def tree(self, drafted: Any) -> Draft:
        return Draft(drafted.token_ids, drafted.parents)

    def close(self) -> None:
        self._cache.stop_request(self._requests)
        self._requests += 1
