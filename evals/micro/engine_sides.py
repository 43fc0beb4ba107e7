"""The sides of an engine bench: agentspec, ArcticInference and SGLang's NGRAM get the same requests; and the memory
that they use."""

from __future__ import annotations

import ctypes
import ctypes.util
import importlib
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol
from xml.etree import ElementTree

import numpy as np
from numpy.typing import NDArray

from agentspec.config import EngineConfig
from agentspec.engine import Engine
from agentspec.errors import UnsupportedError
from agentspec.evals.micro.texts import Tokens
from agentspec.evals.peers.arctic import suffix_decoding_cache
from agentspec.evals.peers.ngram import MAX_TRIE_DEPTH, ngram_corpus

_KEPT = "kept"
# Tokens that a decode step adds, for a side that inserts step by step.
_STEP = 4


class Side(Protocol):
    """One drafter. All calls come from one thread; requests are numbered."""

    def open(self, request: int, prompt: Tokens) -> None:
        """Starts a request."""

    def extend(self, requests: Sequence[int], tokens: Sequence[Tokens]) -> None:
        """Appends output tokens to each request."""

    def draft(self, requests: Sequence[int], max_tokens: int) -> Any:
        """Drafts for a batch."""

    def num_drafted(self, drafted: Any) -> int:
        """Number of tokens in a batch's drafts."""

    def close(self, request: int) -> None:
        """Ends a request and forgets its output, if the side can."""

    def prepare(self, output: Tokens) -> Callable[[], None]:
        """Prepares a finished output. Calling the result inserts it, as far as the calling thread does that."""

    def settle(self) -> None:
        """Waits until everything given so far is indexed."""


def engine(max_draft_tokens: int) -> Engine:
    """agentspec's engine as in servers, but on one thread, without the indexes of conversations, which no case has, and
    without evictions."""
    bounds = EngineConfig(
        max_draft_tokens=max_draft_tokens, budget_bytes=1 << 40, conversation_bytes=0, background=True
    )
    return Engine(bounds)


class Ours:
    """agentspec's engine; a batch is one call."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    def open(self, request: int, prompt: Tokens) -> None:
        self.engine.open(str(request), prompt)

    def extend(self, requests: Sequence[int], tokens: Sequence[Tokens]) -> None:
        for request, new in zip(requests, tokens, strict=True):
            self.engine.extend(str(request), new)

    def draft(self, requests: Sequence[int], max_tokens: int) -> Any:
        return self.engine.draft([str(request) for request in requests], max_tokens=max_tokens)

    def num_drafted(self, drafted: Any) -> int:
        return len(drafted.tokens) - len(drafted)

    def close(self, request: int) -> None:
        self.engine.close(str(request), keep=False)

    def prepare(self, output: Tokens) -> Callable[[], None]:
        self.engine.open(_KEPT, output[:1])
        self.engine.extend(_KEPT, output)

        def close() -> None:
            self.engine.close(_KEPT)

        return close

    def settle(self) -> None:
        self.engine.flush()


class ArcticSide:
    """SuffixDecodingCache with the settings that its hosts ship: linear, factor 1; one call a request."""

    def __init__(self, depth: int) -> None:
        self.cache = suffix_decoding_cache(depth)
        self._depth = depth
        # The global tree alone, to time inserts without the local tree, which `add_active_response` also extends.
        self._tree = importlib.import_module("arctic_inference.suffix_decoding._C").SuffixTree(depth)
        self.cache._global_tree = self._tree
        self._outputs = 0
        self._contexts: dict[int, Tokens] = {}

    def open(self, request: int, prompt: Tokens) -> None:
        self._contexts[request] = prompt[-self._depth :]
        self.cache.start_request(request, prompt)

    def extend(self, requests: Sequence[int], tokens: Sequence[Tokens]) -> None:
        for request, new in zip(requests, tokens, strict=True):
            self._contexts[request] = np.concatenate([self._contexts[request], new])[-self._depth :]
            self.cache.add_active_response(request, new)

    def draft(self, requests: Sequence[int], max_tokens: int) -> Any:
        speculate, contexts = self.cache.speculate, self._contexts
        return [speculate(request, contexts[request], max_spec_tokens=max_tokens) for request in requests]

    def num_drafted(self, drafted: Any) -> int:
        return sum(len(draft.token_ids) for draft in drafted)

    def close(self, request: int) -> None:
        del self._contexts[request]
        self.cache.stop_request(request)
        self.cache.evict_cached_response(request)

    def prepare(self, output: Tokens) -> Callable[[], None]:
        # The cache's own sequences count up from 0.
        self._outputs += 1
        return partial(self._tree.extend_ndarray, (1 << 30) + self._outputs, output)

    def settle(self) -> None:
        pass


class NgramSide:
    """NgramCorpus with SGLang's defaults. A batch is one call; inserts run on its own thread."""

    def __init__(self, max_draft_tokens: int) -> None:
        self._corpus = ngram_corpus(max_draft_tokens + 1)
        self._windows: dict[int, list[int]] = {}
        self._lengths: dict[int, int] = {}

    def open(self, request: int, prompt: Tokens) -> None:
        self._windows[request] = prompt[-MAX_TRIE_DEPTH:].tolist()
        self._lengths[request] = len(prompt)

    def extend(self, requests: Sequence[int], tokens: Sequence[Tokens]) -> None:
        self._corpus.batch_put([self._windows[request] for request in requests])
        for request, new in zip(requests, tokens, strict=True):
            self._windows[request] = (self._windows[request] + new.tolist())[-MAX_TRIE_DEPTH:]
            self._lengths[request] += len(new)

    def draft(self, requests: Sequence[int], max_tokens: int) -> tuple[NDArray[np.int64], int]:
        self._corpus.synchronize()
        windows = [self._windows[request] for request in requests]
        lengths = [self._lengths[request] for request in requests]
        tokens, _ = self._corpus.batch_get([str(request) for request in requests], windows, lengths)
        return tokens, len(requests)

    def num_drafted(self, drafted: tuple[NDArray[np.int64], int]) -> int:
        tokens, rows = drafted
        return len(tokens) - rows

    def close(self, request: int) -> None:
        del self._windows[request], self._lengths[request]
        self._corpus.erase_match_state([str(request)])

    def prepare(self, output: Tokens) -> Callable[[], None]:
        windows = [output[max(0, end - MAX_TRIE_DEPTH) : end].tolist() for end in range(_STEP, len(output), _STEP)]
        windows.append(output[-MAX_TRIE_DEPTH:].tolist())

        def insert() -> None:
            for window in windows:
                self._corpus.batch_put([window])

        return insert

    def settle(self) -> None:
        self._corpus.synchronize()


PEERS: dict[str, dict[str, Callable[[int], Side]]] = {
    "arctic": {"arctic-d64": lambda _: ArcticSide(64), "arctic-d24": lambda _: ArcticSide(24)},
    "ngram": {"ngram": NgramSide},
}
"""For each peer its sides by name, made with the greatest number of tokens to draft."""


def heap_bytes() -> int:
    """Bytes that this process has allocated and not freed, over all arenas and mapped blocks, as glibc counts them.

    Resident memory would also include freed memory.

    Raises:
        UnsupportedError: The C library is not glibc.
    """
    libc = ctypes.CDLL(ctypes.util.find_library("c"))
    if not hasattr(libc, "malloc_info"):
        raise UnsupportedError("memory is counted with glibc's malloc_info, which this C library lacks; run on glibc")
    text, size = ctypes.c_char_p(), ctypes.c_size_t()
    libc.open_memstream.restype = ctypes.c_void_p
    stream = ctypes.c_void_p(libc.open_memstream(ctypes.byref(text), ctypes.byref(size)))
    libc.malloc_info(0, stream)
    libc.fclose(stream)
    report = ElementTree.fromstring(text.value or b"<malloc/>")
    libc.free(text)
    # Children of the root that are not arenas hold the sums.
    sums = {(entry.tag, entry.get("type")): int(entry.get("size", 0)) for entry in report if entry.tag != "heap"}
    free = sums.get(("total", "fast"), 0) + sums.get(("total", "rest"), 0)
    return sums.get(("system", "current"), 0) - free + sums.get(("total", "mmap"), 0)
