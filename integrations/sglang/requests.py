"""Keeps the engine's requests in step with the scheduler's.

    event                                    what happens here
    ---------------------------------------  ---------------------------------------------------------------
    first prefill of a request               admit: the engine opens it with its whole prompt
    prefill again, after a retraction        admit: opened anew if the engine knows tokens that were dropped
    decode step                              sync: the engine's text grows by what was accepted
    finished in decode                       finish: closed; its trimmed output joins the global index
    finished at prefill                      reap: the request itself says that it is finished
    aborted, wherever it waits               abort marks it; reap closes it once no decode batch holds it
    nothing runs                             reap: no decode step may come that would

A request that is only absent from a batch stays open: it may be retracted, or waiting behind a prefill.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from agentspec.engine import Engine
from agentspec.integrations.sglang.tenants import Handling, Tenants

logger = logging.getLogger("agentspec")


class Request(Protocol):
    """The part of SGLang's `Req` that is read here."""

    rid: str
    origin_input_ids: Sequence[int]
    output_ids: Sequence[int]

    def finished(self) -> bool: ...


@dataclass(frozen=True, slots=True)
class KeptOutput:
    """A finished output that joined the global index."""

    namespace: str
    output_id: int
    request_id: str
    prompt: Sequence[int]
    output: Sequence[int]
    num_output_tokens: int
    """So many of the output's first tokens belong to the answer."""


@dataclass(slots=True)
class _Entry:
    request: Request
    handling: Handling
    # Length of the text prompt; differs from len(origin_input_ids) where images were padded in.
    num_prompt_tokens: int
    aborted: bool = False
    # Set when the engine refused this request; it is never drafted for again, others are.
    barred: bool = False


class RequestBook:
    """Every request that the engine has open, by request id.

    Invariant: an entry that is not barred is open in the engine, and the engine's text is a prefix of
    prompt + output_ids + tokens not yet processed.
    """

    def __init__(
        self,
        engine: Engine,
        tenants: Tenants,
        on_error: Callable[[], None],
        on_kept: Callable[[KeptOutput], None] = lambda kept: None,
        on_opened: Callable[[Handling, NDArray[np.int32]], None] = lambda handling, prompt: None,
    ) -> None:
        self._engine = engine
        self._tenants = tenants
        self._on_error = on_error
        self._on_kept = on_kept
        self._on_opened = on_opened
        self._entries: dict[str, _Entry] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def admit(self, request: Request) -> None:
        """Makes `request` known to the engine, or brings it back to what the scheduler knows."""
        entry = self._entries.get(request.rid)
        if entry is not None and entry.request is not request:
            # The id came back for another request before its first one was seen to end.
            self._end(request.rid, entry)
            entry = None
        if entry is None:
            self._open(request)
        elif not entry.barred and self._engine.num_tokens(request.rid) > self._num_processed(entry):
            # A retraction dropped tokens that the engine has seen.
            self._close(request.rid, entry, keep=False)
            self._open(request, again=True)

    def sync(self, request: Request, unprocessed: Sequence[int]) -> bool:
        """Brings the engine's text to prompt + output_ids + `unprocessed`; False where it must not be drafted for."""
        self.admit(request)
        entry = self._entries[request.rid]
        return self._grow(entry, unprocessed) and entry.handling.draft

    def may_draft(self, rid: str) -> bool:
        """False where the request asked for no drafts."""
        entry = self._entries.get(rid)
        return entry is None or entry.handling.draft

    def finish(self, rid: str) -> None:
        """The scheduler finished `rid`: its output, as the user sees it, joins the global index."""
        entry = self._entries.get(rid)
        if entry is not None:
            self._end(rid, entry)

    def abort(self, rid_prefix: str, everything: bool) -> None:
        """The scheduler was told to abort; which requests still run is only seen later."""
        for rid, entry in self._entries.items():
            if everything or rid.startswith(rid_prefix):
                entry.aborted = True

    def reap(self, decoding: set[str]) -> None:
        """Closes what has ended without a finish event; `decoding` are the requests of the current decode batch."""
        for rid, entry in list(self._entries.items()):
            if rid not in decoding and (entry.aborted or entry.request.finished()):
                self._end(rid, entry)

    def _grow(self, entry: _Entry, unprocessed: Sequence[int]) -> bool:
        if entry.barred:
            return False
        rid, output = entry.request.rid, entry.request.output_ids
        known = self._engine.num_tokens(rid) - entry.num_prompt_tokens
        new = [*output[known:], *unprocessed[max(known - len(output), 0) :]]
        if not new:
            return True
        try:
            self._engine.extend(rid, np.asarray(new, dtype=np.int32))
        except Exception:
            self._bar(rid, entry)
            return False
        return True

    def _num_processed(self, entry: _Entry) -> int:
        return entry.num_prompt_tokens + len(entry.request.output_ids)

    def _open(self, request: Request, *, again: bool = False) -> None:
        prompt = _prompt(request)
        entry = _Entry(request, self._tenants.handling(request), num_prompt_tokens=len(prompt))
        self._entries[request.rid] = entry
        try:
            tokens = np.asarray(prompt, dtype=np.int32)
            self._engine.open(request.rid, tokens, entry.handling.namespace)
            if not again:
                self._on_opened(entry.handling, tokens)
        except Exception:
            self._bar(request.rid, entry)

    def _end(self, rid: str, entry: _Entry) -> None:
        """Closes the request; what it wrote is learnt from unless it was aborted or never finished."""
        keep = entry.handling.keep and entry.request.finished() and not entry.aborted
        if keep:
            # The last accepted tokens were never drafted from, so the engine may lack them.
            self._grow(entry, ())
        self._close(rid, entry, keep=keep)

    def _close(self, rid: str, entry: _Entry, *, keep: bool) -> None:
        self._entries.pop(rid, None)
        if entry.barred:
            return
        num_output_tokens = visible_length(entry.request) if keep else None
        try:
            output_id = self._engine.close(rid, keep=keep, num_output_tokens=num_output_tokens)
            if output_id is not None and num_output_tokens is not None:
                request = entry.request
                self._on_kept(
                    KeptOutput(
                        entry.handling.namespace,
                        output_id,
                        rid,
                        _prompt(request),
                        request.output_ids,
                        num_output_tokens,
                    )
                )
            if entry.handling.is_private:
                # Nobody else may learn from how well its drafts did.
                self._engine.delete_namespace(entry.handling.namespace)
        except Exception:
            logger.exception("agentspec could not close a request")
            self._on_error()

    def _bar(self, rid: str, entry: _Entry) -> None:
        logger.exception("agentspec does not draft for one request")
        self._on_error()
        entry.barred = True
        if self._engine.is_open(rid):
            self._engine.close(rid, keep=False)


def _prompt(request: Any) -> Sequence[int]:
    """The prompt's tokens, without those that stand for images."""
    prompt: Sequence[int] = getattr(request, "origin_input_ids_unpadded", None) or request.origin_input_ids
    return prompt


def visible_length(request: Any) -> int:
    """Output tokens that belong to the answer: a stop inside an accepted draft leaves more in output_ids."""
    finished_len = getattr(request, "finished_len", None)
    return len(request.output_ids) if finished_len is None else int(finished_len)
