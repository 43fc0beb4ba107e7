"""The engine: suffix indexes of what was written, and drafts of what may come next."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from os import PathLike, fspath
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from agentspec import _core
from agentspec.config import MAX_TOKEN_IDS, EngineConfig
from agentspec.draft_tree import DraftBatch, DraftBuffers
from agentspec.errors import ConfigError, TokenError
from agentspec.estimates import Estimates
from agentspec.fingerprint import identity

TokenArray: TypeAlias = "NDArray[np.int32] | array[int] | Sequence[int]"
"""Token ids: best a 1-D contiguous int32 array, which is passed on as it is; other sequences of ints are copied."""


@dataclass(frozen=True, slots=True)
class EngineStats:
    """How much an engine holds."""

    open_requests: int
    request_bytes: int
    """Memory of the open requests' texts and indexes."""
    conversation_bytes: int
    """Memory of the indexes kept for the next turns of conversations."""
    spared_tokens: int
    """Prompt tokens that were not indexed again, since an earlier turn's index had them; since the engine was made."""
    waiting_outputs: int
    """Outputs of closed requests that are not in the global index yet."""
    corpora: int
    global_bytes: int
    """Memory of the global index, over all namespaces; at most EngineConfig.budget_bytes after flush()."""
    namespaces: int
    outputs: int
    """Outputs in the global index: the latest ones of each namespace."""
    output_tokens: int
    """Their tokens, without the ends of prompts that stand before them."""
    segments: int
    """Sealed segments of the global index."""
    evicted_outputs: int
    """Outputs dropped to stay within the budget, since the engine was made."""


@dataclass(frozen=True, slots=True, eq=False)
class Trials:
    """n continuations that were weighed on the way a text really took, each in up to w - 1 contexts."""

    weights: NDArray[np.int32]
    """[n, w], the lower of the two weights that each context counts with; -1: none. The bias comes last."""
    fractions: NDArray[np.float32]
    """[n, w], how much the weight after that one counts, the other counting with the rest."""
    estimates: NDArray[np.float32]
    """[n], the probability that the path down to the continuation is accepted, as estimated."""
    accepted: NDArray[np.uint8]
    """[n], 1 for the token that really came next."""


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
            plain_rule=config.rule == "suffixdecoding",
            max_draft_tokens=config.max_draft_tokens,
            budget_bytes=config.budget_bytes,
            conversation_bytes=config.conversation_bytes,
            prompt_tail=config.prompt_tail,
            max_growing_tokens=config.max_growing_tokens,
            num_threads=config.num_threads,
            background=config.background,
            tokenizer=identity(config.tokenizer),
            weights=(config.estimates or Estimates.default()).with_corpora().weights,
            learning_rate=config.learning_rate,
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

    def draft(
        self,
        request_ids: Sequence[str],
        *,
        max_tokens: int | NDArray[np.int32] | None = None,
        out: DraftBuffers | None = None,
    ) -> DraftBatch:
        """Drafts for a batch of requests, row i for request_ids[i], in one native call.

        Args:
            request_ids: Open requests; one may come more than once.
            max_tokens: The most nodes to draft, for all rows or as int32[b] row by row. EngineConfig.max_draft_tokens
                holds besides. 0: the root only.
            out: Where to write; the result is then valid until the next call with the same buffers. None: new memory.

        Raises:
            ConfigError: `max_tokens` is negative, of the wrong type or of the wrong length; or `out` has not room for
                as many rows and nodes as `max_tokens` allows.
            UnknownRequestError: A request is not open.
        """
        ids = tuple(request_ids)
        limits = _as_limits(max_tokens, len(ids))
        if out is None:
            return DraftBatch(*self._core.draft(ids, limits))
        return out.batch(len(ids), self._core.draft_into(ids, limits, out.native))

    def close(self, request_id: str, keep: bool = True, *, num_output_tokens: int | None = None) -> int | None:
        """Ends a request.

        Args:
            request_id: An open request.
            keep: Add the output, all that was extended, to the global index of the request's namespace. An empty
                output adds nothing. The request's own index is kept for the conversation's next turn.
            num_output_tokens: Keep that many tokens of the output at most, from its beginning.

        Returns:
            The output's id in the global index, unique over engines and restarts, or None if it was not kept.

        Raises:
            ConfigError: `num_output_tokens` is negative.
            UnknownRequestError: The request is not open.
        """
        if num_output_tokens is not None and num_output_tokens < 0:
            raise ConfigError(
                f"num_output_tokens must be >= 0, got {num_output_tokens}; pass None to keep the whole output"
            )
        return self._core.close(request_id, keep, num_output_tokens) or None

    def num_tokens(self, request_id: str) -> int:
        """Tokens of the request's prompt and output; raises UnknownRequestError if it is not open."""
        return self._core.num_tokens(request_id)

    def is_open(self, request_id: str) -> bool:
        """Whether the request was opened and not closed since."""
        return self._core.is_open(request_id)

    def flush(self) -> None:
        """Waits until everything given so far is indexed, sealed and merged as far as it is to be."""
        self._core.flush()

    def clear(self) -> None:
        """Drops the global index of all namespaces and what is kept of conversations. Open requests stay."""
        self._core.clear()

    def delete_output(self, output_id: int) -> bool:
        """Deletes one output, which is never drafted from again once this returns; False if it is not there.

        Open requests whose own prompt quotes it keep their text. What is kept of conversations is dropped, since it
        may quote it too.
        """
        return self._core.erase_output(output_id)

    def delete_namespace(self, namespace: str) -> bool:
        """Deletes all that is kept of a namespace, at once; False if nothing was. Its open requests stay."""
        return self._core.erase_namespace(namespace)

    def save(self, namespace: str, path: str | PathLike[str]) -> int:
        """Writes a namespace's outputs as one sealed segment, replacing the file in one step; returns how many.

        Raises:
            SegmentError: The file cannot be written.
        """
        return self._core.save(namespace, fspath(path))

    def load(self, namespace: str, path: str | PathLike[str]) -> int:
        """Maps a file that save() wrote and adds its outputs to a namespace, before those it has; returns how many.

        Raises:
            SegmentError: The file is missing, damaged, of a newer format or of another tokenizer.
        """
        return self._core.load(namespace, fspath(path))

    def attach_corpus(self, path: str | PathLike[str], namespaces: Sequence[str] = ()) -> None:
        """Lets namespaces draft from a corpus that `agentspec corpus` built; all of them if none are named.

        A file that is attached already is read anew, for the namespaces named now.

        Raises:
            ConfigError: The engine's rule drafts from no corpus, or `namespaces` is a string.
            SegmentError: The file is missing, damaged, of a newer format, of another tokenizer, or no corpus.
        """
        if self.config.rule != "calibrated":
            raise ConfigError(f"corpora need the rule 'calibrated', got {self.config.rule!r}, which drafts from none")
        if isinstance(namespaces, str):
            raise ConfigError(f"namespaces must be a sequence of names, got the string {namespaces!r}; pass a list")
        self._core.attach_corpus(fspath(path), list(namespaces))

    def detach_corpus(self, path: str | PathLike[str]) -> bool:
        """Ends drafting from a corpus; False if it was not attached."""
        return self._core.detach_corpus(fspath(path))

    def estimates(self) -> Estimates:
        """What estimates are made from now, after what verification has accepted."""
        return Estimates(self._core.weights(), "learned online")

    def trials(self, request_id: str, truth: TokenArray) -> Trials:
        """What the drafter weighs for a request whose next tokens are known, to fit estimates on.

        Raises:
            UnknownRequestError: The request is not open.
        """
        return Trials(*self._core.trials(request_id, _as_int32("truth", truth)))

    def stats(self) -> EngineStats:
        """How much the engine holds now."""
        return EngineStats(*self._core.stats())

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
