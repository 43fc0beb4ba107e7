"""The engine: suffix indexes of what was written, and drafts of what may come next."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from agentspec import _core
from agentspec.config import MAX_TOKEN_IDS, EngineConfig
from agentspec.draft_tree import DraftBatch
from agentspec.errors import ConfigError, TokenError

TokenArray: TypeAlias = "NDArray[np.int32] | array[int] | Sequence[int]"
"""Token ids: best a 1-D contiguous int32 array, which is passed on as it is; other sequences of ints are copied."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStats:
    """How much an engine holds."""

    open_requests: int
    request_bytes: int
    """Memory of the open requests' texts and indexes."""
    global_bytes: int
    """Memory of the global index, over all namespaces; at most EngineConfig.budget_bytes after every close."""
    namespaces: int
    outputs: int
    """Outputs in the global index: the latest ones of each namespace."""
    output_tokens: int
    evicted_outputs: int
    """Outputs dropped to stay within the budget, since the engine was made."""


class Engine:
    """Indexes open requests and the outputs of finished ones, and drafts what they may say next.

        open(id, prompt) ─> draft([id, ...]) ─> extend(id, accepted) ─> draft ─> ... ─> close(id)

    A request drafts from its own text and from the outputs kept in its namespace, never from another namespace.
    All methods may be called from any thread; they give the interpreter's lock back. A call that raises has changed
    nothing.
    """

    def __init__(self, config: EngineConfig = EngineConfig()) -> None:  # noqa: B008 - frozen
        self.config = config
        self._core = _core.Engine(
            num_token_ids=MAX_TOKEN_IDS if config.vocab_size is None else config.vocab_size,
            max_pattern=config.max_pattern,
            alpha=config.alpha,
            min_token_prob=config.min_token_prob,
            chain=config.mode == "chain",
            max_draft_tokens=config.max_draft_tokens,
            budget_bytes=config.budget_bytes,
        )

    def open(self, request_id: str, prompt: TokenArray, namespace: str = "") -> None:
        """Starts a request with its prompt, one token at least.

        Raises:
            TokenError: The prompt is empty, no 1-D array of integers, or has an id outside the vocabulary.
            DuplicateRequestError: The request is open already.
        """
        self._core.open(request_id, _as_int32("prompt", prompt), namespace)

    def extend(self, request_id: str, tokens: TokenArray) -> None:
        """Appends output tokens, none at all included, to a request.

        Raises:
            TokenError: `tokens` is no 1-D array of integers, or has an id outside the vocabulary.
            UnknownRequestError: The request is not open.
        """
        self._core.extend(request_id, _as_int32("tokens", tokens))

    def draft(self, request_ids: Sequence[str], *, max_tokens: int | NDArray[np.int32] | None = None) -> DraftBatch:
        """Drafts for a batch of requests, row i for request_ids[i], in one native call.

        Args:
            request_ids: Open requests; one may come more than once.
            max_tokens: The most nodes to draft, for all rows or as int32[b] row by row. EngineConfig.max_draft_tokens
                holds besides. 0: the root only.

        Raises:
            ConfigError: `max_tokens` is negative, of the wrong type or of the wrong length.
            UnknownRequestError: A request is not open.
        """
        ids = list(request_ids)
        return DraftBatch(*self._core.draft(ids, _as_limits(max_tokens, len(ids))))

    def close(self, request_id: str, keep: bool = True, *, num_output_tokens: int | None = None) -> None:
        """Ends a request and frees its index.

        Args:
            request_id: An open request.
            keep: Add the output, all that was extended, to the global index of the request's namespace. An empty
                output adds nothing.
            num_output_tokens: Keep that many tokens of the output at most, from its beginning.

        Raises:
            ConfigError: `num_output_tokens` is negative.
            UnknownRequestError: The request is not open.
        """
        if num_output_tokens is not None and num_output_tokens < 0:
            raise ConfigError(
                f"num_output_tokens must be >= 0, got {num_output_tokens}; pass None to keep the whole output"
            )
        self._core.close(request_id, keep, num_output_tokens)

    def num_tokens(self, request_id: str) -> int:
        """Tokens of the request's prompt and output; raises UnknownRequestError if it is not open."""
        return self._core.num_tokens(request_id)

    def is_open(self, request_id: str) -> bool:
        """Whether the request was opened and not closed since."""
        return self._core.is_open(request_id)

    def clear(self) -> None:
        """Drops the global index of all namespaces. Open requests stay."""
        self._core.clear()

    def stats(self) -> EngineStats:
        """How much the engine holds now."""
        open_requests, request_bytes, global_bytes, namespaces, outputs, output_tokens, evicted = self._core.stats()
        return EngineStats(
            open_requests=open_requests,
            request_bytes=request_bytes,
            global_bytes=global_bytes,
            namespaces=namespaces,
            outputs=outputs,
            output_tokens=output_tokens,
            evicted_outputs=evicted,
        )

    def check_integrity(self) -> None:
        """Checks the invariants of all indexes, which reads all their memory; raises RuntimeError naming a broken one."""
        self._core.check_integrity()


def _as_int32(name: str, tokens: TokenArray) -> NDArray[np.int32]:
    """The tokens as the native engine takes them, copied only where they are not so already."""
    if isinstance(tokens, np.ndarray):
        values: NDArray[Any] = tokens
    elif isinstance(tokens, array):
        values = np.frombuffer(tokens, dtype=tokens.typecode) if len(tokens) else np.empty(0, dtype=np.int32)
    elif isinstance(tokens, list | tuple):
        values = np.array(tokens) if tokens else np.empty(0, dtype=np.int32)
    else:
        raise TokenError(f"{name} must be a numpy array, array.array or list of ints, got {type(tokens).__name__}")
    if values.dtype.kind not in "iu":
        raise TokenError(f"{name} must be integers, got {values.dtype}; pass token ids as numpy int32")
    if values.ndim != 1:
        raise TokenError(f"{name} must have one dimension, got the shape {values.shape}; pass one request at a time")
    if values.dtype != np.int32:
        limits = np.iinfo(np.int32)
        wrong = np.flatnonzero((values < limits.min) | (values > limits.max))
        if len(wrong):
            raise TokenError(
                f"token ids must be in [0, {MAX_TOKEN_IDS}), got {values[wrong[0]]} at index {wrong[0]}; "
                "pass the ids of the served model's tokenizer"
            )
    return np.ascontiguousarray(values, dtype=np.int32)


def _as_limits(max_tokens: int | NDArray[np.int32] | None, num_rows: int) -> NDArray[np.int32] | None:
    if max_tokens is None:
        return None
    if isinstance(max_tokens, np.ndarray):
        if max_tokens.dtype != np.int32 or max_tokens.shape != (num_rows,):
            raise ConfigError(
                f"max_tokens must be an int or int32[{num_rows}], one limit for each request, "
                f"got {max_tokens.dtype}{list(max_tokens.shape)}; convert it with astype(numpy.int32)"
            )
        return np.ascontiguousarray(max_tokens)
    if not isinstance(max_tokens, int) or isinstance(max_tokens, bool):
        raise ConfigError(f"max_tokens must be an int or int32[{num_rows}], got {type(max_tokens).__name__}")
    if max_tokens < 0:
        raise ConfigError(f"max_tokens must be >= 0, got {max_tokens}; pass 0 to draft nothing")
    return np.full(num_rows, min(max_tokens, np.iinfo(np.int32).max), dtype=np.int32)
