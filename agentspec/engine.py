"""The engine: it keeps suffix indexes of past text and drafts the tokens that may come next."""

from __future__ import annotations

from array import array
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from os import PathLike, fspath
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from agentspec import _core
from agentspec.config import MAX_TOKEN_IDS, EngineConfig
from agentspec.drafts import DraftBatch, DraftBuffers
from agentspec.errors import ConfigError, TokenError
from agentspec.estimates import Estimates
from agentspec.fingerprint import identity
from agentspec.snapshot import SealedSegment, Snapshot

TokenArray: TypeAlias = "NDArray[np.int32] | array[int] | Sequence[int]"
"""Token ids. A 1-D contiguous int32 array is passed on without a copy; other sequences of ints are copied."""


@dataclass(frozen=True, slots=True)
class EngineStats:
    """Sizes and counters of an engine."""

    open_requests: int
    request_bytes: int
    """Memory of the open requests' texts and indexes."""
    conversation_bytes: int
    """Memory of the indexes kept for the next turns of conversations."""
    spared_tokens: int
    """Number of prompt tokens that were reused from an earlier turn's index, counted since the engine was created."""
    waiting_outputs: int
    """Number of outputs of closed requests that are not in the global index yet."""
    corpora: int
    global_bytes: int
    """Memory of the global index, over all namespaces; at most EngineConfig.budget_bytes after flush()."""
    namespaces: int
    outputs: int
    """Number of outputs in the global index. Each namespace keeps its latest ones."""
    output_tokens: int
    """Number of tokens of these outputs, without the prompt tails stored in front of them."""
    segments: int
    """Number of sealed segments in the global index."""
    evicted_outputs: int
    """Number of outputs evicted to stay within the budget, counted since the engine was created."""


@dataclass(frozen=True, slots=True)
class NamespaceStats:
    """Sizes of one namespace in the global index."""

    name: str
    num_outputs: int
    num_tokens: int
    """Number of tokens of the outputs, without the prompt tails stored in front of them."""
    num_bytes: int


@dataclass(frozen=True, slots=True, eq=False)
class Trials:
    """n continuations that the drafter weighed along the true text, each in at most w - 1 contexts."""

    weights: NDArray[np.int32]
    """[n, w], index of the lower of the two weights that each context interpolates between; -1: no context. The bias
    comes last."""
    fractions: NDArray[np.float32]
    """[n, w], share of the weight after that one; the lower weight gets the remaining share."""
    estimates: NDArray[np.float32]
    """[n], estimated probability that the path down to the continuation is accepted."""
    accepted: NDArray[np.uint8]
    """[n], 1 where the continuation is the true next token."""


def request_hash(request_id: str) -> int:
    """Hashes a request's id to 32 bits, never 0. The hash is the upper half of the ids of the request's outputs.

    It is the same in every process and release. Two different request ids collide with a chance of 1 in 2^32.
    """
    return _core.request_hash(request_id)


class Engine:
    """Indexes open requests and the outputs of finished ones, and drafts the next tokens of open requests.

        open(id, prompt) ─> draft([id, ...]) ─> extend(id, accepted) ─> draft ─> ... ─> close(id)

    A request drafts from its own text and from the outputs kept in its namespace, never from another namespace.
    Activity in other namespaces does not change its drafts as long as no budget is reached.
    All methods are thread-safe and release the GIL. A call that raises has changed nothing.
    """

    def __init__(self, config: EngineConfig = EngineConfig()) -> None:  # noqa: B008 - frozen
        self.config = config
        self._core = _core.Engine(
            num_token_ids=MAX_TOKEN_IDS if config.vocab_size is None else config.vocab_size,
            max_pattern=config.max_pattern,
            alpha=config.alpha,
            min_token_prob=config.min_token_prob,
            chain=config.mode == "chain",
            own_text=config.own_text,
            plain_rule=config.rule == "suffixdecoding",
            max_draft_tokens=config.max_draft_tokens,
            budget_bytes=config.budget_bytes,
            conversation_bytes=config.conversation_bytes,
            prompt_tail=config.prompt_tail,
            max_growing_tokens=config.max_growing_tokens,
            max_siblings=config.max_siblings,
            num_threads=config.num_threads,
            background=config.background,
            tokenizer=identity(config.tokenizer),
            weights=(config.estimates or Estimates.default()).with_corpora().weights,
            learning_rate=config.learning_rate,
        )

    def open(
        self,
        request_id: str,
        prompt: TokenArray,
        namespace: str = "",
        *,
        max_length: int | None = None,
        group: str = "",
        shown: bool = True,
        prediction: TokenArray = (),
    ) -> None:
        """Starts a request with its prompt, which has at least one token.

        Args:
            namespace: Whose outputs it drafts from, and where its own output is kept.
            max_length: Number of tokens that the text may grow to, prompt included; `draft_followed()` drafts nothing
                beyond that. None means no limit.
            group: Requests of a namespace that name the same group are siblings. Those that name none are siblings if
                their prompts are equal. See EngineConfig.max_siblings.
            shown: Whether siblings may draft from its output while it grows.
            prediction: A text that the output is expected to repeat, from its beginning on. Only this request drafts
                from it, and it is dropped when the request closes.

        Raises:
            TokenError: The prompt is empty, or the prompt or the prediction is not a 1-D array of integers or has an id
                outside the vocabulary.
            DuplicateRequestError: The request is open already.
            ConfigError: `max_length` is negative.
        """
        if max_length is not None and max_length < 0:
            raise ConfigError(f"max_length must be >= 0, got {max_length}; pass None for a text without a limit")
        tokens, predicted = _as_int32("prompt", prompt), _as_int32("prediction", prediction)
        self._core.open(request_id, tokens, namespace, max_length, group, shown, predicted)

    def extend(self, request_id: str, tokens: TokenArray) -> None:
        """Appends output tokens to a request. `tokens` may be empty. Raises TokenError if `tokens` is not a 1-D array
        of integers, or has an id outside the vocabulary; UnknownRequestError if the request is not open."""
        self._core.extend(request_id, _as_int32("tokens", tokens))

    def draft(self, request_ids: Sequence[str], *, max_tokens: int | NDArray[np.int32] | None = None) -> DraftBatch:
        """Drafts for a batch of requests, row i for request_ids[i], in one native call.

        Args:
            request_ids: Open requests; the same request may appear more than once.
            max_tokens: Maximum number of nodes drafted per row, one int for all rows or int32[b].
                EngineConfig.max_draft_tokens applies as well. 0 drafts the root only.

        Raises:
            ConfigError: `max_tokens` is negative, of the wrong type or of the wrong length.
            UnknownRequestError: A request is not open.
        """
        ids = tuple(request_ids)
        return DraftBatch(*self._core.draft(ids, _as_limits(max_tokens, len(ids))))

    @property
    def native(self) -> _core.Engine:
        """The native engine, for native code that calls it."""
        return self._core

    def rows(self, request_ids: Sequence[str]) -> _core.Rows:
        """Looks up the requests of a batch once, for all the steps that they take together.

        A request that is not open gets a row without text. A request that is closed later is skipped from then on,
        even if its id is opened again.
        """
        return self._core.rows(tuple(request_ids))

    def follow(
        self,
        rows: _core.Rows,
        accepted: NDArray[np.int64],
        ends: NDArray[np.int64],
        padding: NDArray[np.int64] | None = None,
    ) -> int:
        """Appends the tokens that a forward wrote to the texts that lack exactly these tokens, in one native call.

        The estimates learn from these tokens in the next learn() or, without one, in the next follow(). Raises
        ConfigError if the arrays do not have b rows.

        Args:
            rows: The b requests of the forward.
            accepted: int64[b, 1 + w]. Each row holds the number of accepted tokens, then the tokens themselves at the
                front of the w places.
            ends: int64[b], number of tokens in the KV cache after the forward. The last accepted token has no KV yet.
            padding: int64[b], number of these tokens that are not in the text; None: all are.

        Returns:
            The number of rows that lost their index and are no longer drafted for, because memory is short or because
            they have a token outside the vocabulary.
        """
        return self._core.follow(rows, accepted, ends, padding)

    def learn(self, rows: _core.Rows) -> None:
        """Updates the estimates of the rows' namespaces with the tokens that follow() appended."""
        self._core.learn(rows)

    def draft_followed(
        self, rows: _core.Rows, *, out: DraftBuffers, padding: NDArray[np.int64] | None = None, max_tokens: int
    ) -> DraftBatch:
        """Drafts for the rows of a batch, as draft() does, in one native call that releases the GIL. Raises ConfigError
        if `max_tokens` is negative, `padding` does not have b rows, or `out` is too small.

        Args:
            rows: The b requests of a step. A request that is not open gets only a root of token 0; one whose text is not
                what follow() last reported gets only its root.
            out: Buffers to write to. The first b of their outcomes and rooms are set, and of their ends, to the numbers of
                tokens in the KV cache that were reported, or -1. The result is valid until the next call with the same
                buffers.
            padding: int64[b], as in follow().
            max_tokens: Maximum number of nodes per row, its root not counted. EngineConfig.max_draft_tokens and the
                `max_length` of each request apply as well; the bonus token takes one of the places up to `max_length`.
        """
        nodes = self._core.draft_followed(rows, padding, max_tokens, out.native, out.ends[: len(rows)])
        return out.batch(len(rows), nodes)

    def complete(self, request_id: str, output: TokenArray) -> None:
        """Appends the tokens of an output that the request's text lacks. follow() cannot append any of them meanwhile.

        Args:
            output: All tokens of the output so far.

        Raises:
            TokenError: `output` is not a 1-D array of integers or has an id outside the vocabulary.
            UnknownRequestError: The request is not open.
        """
        self._core.complete(request_id, _as_int32("output", output))

    def close(self, request_id: str, keep: bool = True, *, num_output_tokens: int | None = None) -> int | None:
        """Ends a request.

        Args:
            keep: Add the output, which is everything passed to extend(), to the global index of the request's
                namespace. An empty output adds nothing. The request's own index is kept for the conversation's next
                turn.
            num_output_tokens: Keep at most this number of leading output tokens.

        Returns:
            The output's id in the global index, or None if it was not kept. Its upper 32 bits are request_hash() of
            the request's id. Its lower 32 bits are a counter with a random start in each engine, so ids of outputs of
            other requests, engines and runs collide with a chance of 1 in 2^32.

        Raises:
            ConfigError: `num_output_tokens` is negative.
            UnknownRequestError: The request is not open.
        """
        if num_output_tokens is not None and num_output_tokens < 0:
            raise ConfigError(
                f"num_output_tokens must be >= 0, got {num_output_tokens}; pass None to keep the whole output"
            )
        return self._core.close(request_id, keep, num_output_tokens) or None

    def add(self, namespace: str, output_id: int, tokens: TokenArray, *, num_prompt_tail: int, time: int) -> bool:
        """Adds a finished output from elsewhere to a namespace, as its latest one, like close() does.

        Args:
            output_id: The id that close() returned for the output. An output that is present already is added again.
            tokens: The prompt tail, then the output. At most EngineConfig.prompt_tail tokens of the tail are kept.
            num_prompt_tail: Number of leading tokens that belong to the prompt tail.
            time: When the output was finished, in seconds since 1970.

        Returns:
            False if there is no output after the prompt tail, if an output of that id is already waiting to be added,
            or if memory is short.

        Raises:
            ConfigError: `output_id` is not in [1, 2**64), or `time` does not fit 64 bits.
            TokenError: `tokens` is not a 1-D array of integers or has an id outside the vocabulary, or
                `num_prompt_tail` is not in [0, len(tokens)].
        """
        _check_id("output_id", output_id)
        if num_prompt_tail < 0:
            raise TokenError(f"num_prompt_tail must be >= 0, got {num_prompt_tail}; count the tokens before the output")
        return self._core.add(
            namespace, output_id, _as_int32("tokens", tokens), num_prompt_tail, _as_time("time", time)
        )

    def num_tokens(self, request_id: str) -> int:
        """Number of tokens of the request's prompt and output; raises UnknownRequestError if it is not open."""
        return self._core.num_tokens(request_id)

    def is_open(self, request_id: str) -> bool:
        """Whether the request is open."""
        return self._core.is_open(request_id)

    def flush(self) -> None:
        """Waits until everything given so far is indexed and all due sealing and merging is done."""
        self._core.flush()

    def wait_indexed(self) -> None:
        """Waits until everything given so far can be drafted from; other threads can draft meanwhile. If the global index
        is then more than half over its budget, waits as flush() does."""
        self._core.wait_indexed()

    def clear(self) -> None:
        """Drops the global index of all namespaces, the kept conversation indexes and all learnt estimates. Open
        requests stay."""
        self._core.clear()

    def delete_output(self, output_id: int) -> bool:
        """Deletes one output; returns False if it is not present. Once this returns, nothing drafts from the output.

        Open requests whose own prompt quotes the output keep their text. The kept conversation indexes of its
        namespace are dropped, since they may quote it too; those of all namespaces are dropped if the output may have
        been evicted before. Its text leaves memory soon after, when the segment that held it has been rewritten.
        """
        return self._core.erase_output(output_id)

    def delete_request(self, namespace: str, request_id: str) -> int:
        """Deletes all outputs of a request from a namespace, as delete_output() does; returns the number deleted.

        The outputs are found by request_hash().
        """
        return self._core.erase_request(namespace, request_id)

    def expire(self, namespace: str, before: int) -> int:
        """Deletes a namespace's outputs that were finished before a time, in seconds since 1970, as delete_output()
        does; returns the number deleted. Raises ConfigError if `before` does not fit 64 bits."""
        return self._core.expire(namespace, _as_time("before", before))

    def delete_namespace(self, namespace: str) -> bool:
        """Deletes everything kept for a namespace, its learnt estimates included, in one step; returns False if it had
        no outputs. Its open requests stay."""
        return self._core.erase_namespace(namespace)

    def snapshot(self, namespace: str) -> Snapshot:
        """Takes a consistent view of a namespace's finished outputs: its sealed segments, not copied, and the ids of
        the outputs that are not sealed yet."""
        segments, unsealed, is_rewriting = self._core.snapshot(namespace)
        return Snapshot(tuple(SealedSegment(*segment) for segment in segments), unsealed, is_rewriting)

    def load_segments(
        self,
        namespace: str,
        blobs: Sequence[bytes | bytearray | NDArray[np.uint8]],
        *,
        known: Collection[int] | NDArray[np.uint64] = (),
    ) -> NDArray[np.uint64]:
        """Adds copies of sealed segments to a namespace, as older than the outputs it has. It adds all of them or none.
        Returns [n], the ids of the added outputs, oldest first.

        Args:
            blobs: The segments' bytes as in SealedSegment.blob, oldest first.
            known: Ids of outputs to leave out. An output that appears twice is added once.

        Raises:
            ConfigError: A blob does not consist of bytes, or `known` holds a value that is not an id.
            SegmentError: A segment is damaged, truncated, of a newer format or of another tokenizer.
        """
        return self._core.load_segments(namespace, [_as_bytes(blob) for blob in blobs], _as_ids("known", known))

    def attach_corpus(self, path: str | PathLike[str], namespaces: Sequence[str] = ()) -> None:
        """Lets namespaces draft from a corpus that `agentspec corpus` built; all of them if none are named.

        A file that is attached already is read again, and the namespaces named now replace the earlier ones. Raises
        ConfigError if the engine's rule drafts from no corpus, or `namespaces` is a string; SegmentError if the file is
        missing, damaged, of a newer format, of another tokenizer, or not a corpus.
        """
        if self.config.rule != "calibrated":
            raise ConfigError(
                f"corpora need the rule 'calibrated', got {self.config.rule!r}, which does not draft from corpora; "
                "set rule='calibrated' in EngineConfig"
            )
        if isinstance(namespaces, str):
            raise ConfigError(f"namespaces must be a sequence of names, got the string {namespaces!r}; pass a list")
        self._core.attach_corpus(fspath(path), list(namespaces))

    def detach_corpus(self, path: str | PathLike[str]) -> bool:
        """Detaches a corpus; returns False if it was not attached. Once this returns, nothing drafts from it."""
        return self._core.detach_corpus(fspath(path))

    def estimates(self, namespace: str = "") -> Estimates:
        """The current estimates of a namespace, as learnt from the tokens that verification accepted there.

        Each namespace starts from EngineConfig.estimates. At most 1024 namespaces keep learnt estimates. One more
        evicts the namespace that has not learnt for the longest time, which then starts from the beginning again.
        """
        return Estimates(self._core.weights(namespace), "learned online")

    def trials(self, request_id: str, truth: TokenArray) -> Trials:
        """The continuations that the drafter weighs for a request whose next tokens are known, to fit estimates on.
        Raises UnknownRequestError if the request is not open."""
        return Trials(*self._core.trials(request_id, _as_int32("truth", truth)))

    def stats(self) -> EngineStats:
        """Current sizes and counters of the engine."""
        return EngineStats(*self._core.stats())

    def namespaces(self) -> list[NamespaceStats]:
        """Sizes of each namespace that has finished outputs, in no particular order."""
        return [NamespaceStats(*stats) for stats in self._core.namespaces()]

    def check_integrity(self) -> None:
        """Checks the invariants of all indexes and raises RuntimeError naming a broken one. It reads all their memory."""
        self._core.check_integrity()


def _as_int32(name: str, tokens: TokenArray) -> NDArray[np.int32]:
    """Converts the tokens to contiguous int32[n] for the native engine; copies only if needed."""
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


def _as_bytes(blob: bytes | bytearray | NDArray[np.uint8]) -> NDArray[np.uint8]:
    if isinstance(blob, bytes | bytearray):
        return np.frombuffer(blob, dtype=np.uint8)
    if not isinstance(blob, np.ndarray) or blob.dtype != np.uint8 or blob.ndim != 1:
        raise ConfigError(
            f"a segment must be bytes, bytearray or a numpy array uint8[n], got {type(blob).__name__}; "
            "pass the bytes of SealedSegment.blob"
        )
    return np.ascontiguousarray(blob)


def _as_ids(name: str, ids: Collection[int] | NDArray[np.uint64]) -> NDArray[np.uint64]:
    if isinstance(ids, np.ndarray) and ids.dtype == np.uint64 and ids.ndim == 1:
        return np.ascontiguousarray(ids)
    for output_id in ids:
        _check_id(name, output_id)
    return np.fromiter(ids, np.uint64, len(ids))


def _check_id(name: str, value: object) -> None:
    if not isinstance(value, int | np.integer) or not 0 < value < 2**64:
        raise ConfigError(f"{name} must be in [1, 2**64), got {value!r}; pass what close() returned")


def _as_time(name: str, seconds: int) -> int:
    if not isinstance(seconds, int | np.integer) or not -(2**63) <= seconds < 2**63:
        raise ConfigError(f"{name} must be an integer of 64 bits, got {seconds!r}; pass seconds since 1970")
    return int(seconds)
