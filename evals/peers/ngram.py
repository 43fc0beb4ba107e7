"""SGLang's NGRAM drafter as a replayed system: its corpus, called as its worker calls it.

In each step the worker looks up the last `max_trie_depth` tokens of the context, and inserts the same tokens after the
verification. So what a step accepts is inserted one step late, and only the part of a prompt that is still in the
window. Under the overlap scheduler a finished request runs for one more step, so that its last tokens are inserted too.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from agentspec.analysis.replay import Call, Draft, Measurement
from agentspec.analysis.replay.teacher_forcing import replay_call
from agentspec.errors import ConfigError

INSTALL = "`make setup`, or `pip install sglang==0.5.23` and a C++ compiler"
MAX_TRIE_DEPTH = 18
# SGLang's defaults of --speculative-ngram-*.
_DEFAULTS = {"min_bfs_breadth": 1, "max_bfs_breadth": 10, "capacity": 10_000_000}
_ID = "replay"


@dataclass(frozen=True, slots=True, kw_only=True)
class NgramSetting:
    """SGLang's --speculative-ngram-match-type and --speculative-ngram-max-trie-depth, the longest match in tokens."""

    match_type: Literal["BFS", "PROB"] = "BFS"
    max_trie_depth: int = MAX_TRIE_DEPTH

    def __str__(self) -> str:
        return f"{self.match_type} d{self.max_trie_depth}"


CURVE = (NgramSetting(), NgramSetting(max_trie_depth=64), NgramSetting(match_type="PROB"))
"""Settings of a curve. Depths between the two accept a number of tokens between theirs, and PROB gains nothing from a
greater depth."""


def ngram_corpus(num_draft_tokens: int, setting: NgramSetting = NgramSetting()) -> Any:
    """A new NgramCorpus with SGLang's defaults, except for the setting; `num_draft_tokens` counts the root.

    Raises:
        ConfigError: SGLang is not installed or cannot build the corpus.
    """
    try:
        # Without CUDA, SGLang imports with the reference kernels only.
        importlib.import_module("agentspec.integrations.sglang_cpu").activate()
        module = importlib.import_module("sglang.srt.speculative.cpp_ngram.ngram_corpus")
        return module.NgramCorpus(
            draft_token_num=num_draft_tokens,
            max_trie_depth=setting.max_trie_depth,
            match_type=setting.match_type,
            **_DEFAULTS,
        )
    except (ImportError, OSError, RuntimeError) as error:
        raise ConfigError(f"the system ngram needs SGLang: {error}; {INSTALL}") from error


class Ngram:
    """One corpus, which all requests share."""

    def __init__(self, max_draft_tokens: int, setting: NgramSetting = NgramSetting()) -> None:
        self.setting = setting
        self._max_draft_tokens = max_draft_tokens
        self._corpus = ngram_corpus(max_draft_tokens + 1, setting)
        self._window: list[int] = []
        self._looked_up: list[int] = []
        self._length = 0

    def remember(self, call: Call) -> None:
        # The inserted windows depend on where the steps end.
        replay_call(call, self, self._max_draft_tokens, Measurement())

    def open(self, prompt: NDArray[np.int32]) -> None:
        self._window = prompt[-self.setting.max_trie_depth :].tolist()
        self._length = len(prompt)
        self._looked_up = []

    def extend(self, tokens: NDArray[np.int32]) -> None:
        if self._looked_up:
            self._corpus.batch_put([self._looked_up])
        self._window = (self._window + tokens.tolist())[-self.setting.max_trie_depth :]
        self._length += len(tokens)

    def draft(self, max_tokens: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        self._corpus.synchronize()
        self._looked_up = self._window
        tokens, mask = self._corpus.batch_get([_ID], [self._window], [self._length])
        return tokens, mask

    def tree(self, drafted: tuple[NDArray[np.int64], NDArray[np.int64]]) -> Draft:
        tokens, mask = drafted
        return Draft(tokens[1:].tolist(), parents_of(mask.reshape(len(tokens), -1)))

    def close(self) -> None:
        self._corpus.batch_put([self._window])
        self._corpus.erase_match_state([_ID])


def parents_of(mask: NDArray[np.int64]) -> Sequence[int]:
    """Parents of the nodes 1, 2, ... as a `Draft` numbers them, from mask[i, j]: whether node j is node i or an
    ancestor of i."""
    order = np.arange(len(mask))
    ancestors = (mask != 0) & (order < order[:, None])
    parents: list[int] = ((ancestors * order).argmax(axis=1)[1:] - 1).tolist()
    return parents
