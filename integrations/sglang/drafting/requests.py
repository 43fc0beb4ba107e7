"""Keeps the engine's requests in step with the scheduler's.

    event                                    what happens here
    ---------------------------------------  ---------------------------------------------------------------
    prefill of a request                     admit: the engine opens it with its whole prompt
    prefill again, after a retraction        admit: opened anew if the engine knows tokens that were dropped
    another batch decodes                    rows: the engine finds its requests, once for all their steps
    finished in decode                       finish: closed; its trimmed output joins the global index
    finished at prefill                      reap: the request itself says that it is finished
    aborted, wherever it waits               abort marks it; reap closes it once no decode batch holds it
    nothing runs                             reap: no decode step may come that would

Between these events texts grow without the book: by what the device has accepted (accepted_tokens.py). A request that is
only absent from a batch stays open: it may be retracted, or waiting behind a prefill.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from agentspec._core import Rows
from agentspec.engine import Engine
from agentspec.integrations.sglang.sglang_types import Req
from agentspec.integrations.sglang.tenants import Handling, Tenants

logger = logging.getLogger("agentspec")


@dataclass(frozen=True, slots=True)
class KeptOutput:
    """A finished output that joined the global index."""

    namespace: str
    output_id: int
    request_id: str
    prompt: Sequence[int]
    output: Sequence[int]
    num_output_tokens: int
    """Number of leading output tokens that belong to the answer."""


@dataclass(slots=True)
class _Entry:
    request: Req
    handling: Handling
    # Length of the text prompt.
    num_prompt_tokens: int
    # Tokens in the KV cache that stand for images and are not in the text.
    num_padding: int
    aborted: bool = False
    # Set when the engine refused this request; it is never drafted for again, others are.
    barred: bool = False
    num_reopened: int = 0


class RequestBook:
    """Every request that the engine has open, by request id.

    Invariant: an entry that is not barred is open in the engine.
    """

    def __init__(
        self,
        engine: Engine,
        tenants: Tenants,
        context_length: int,
        on_error: Callable[[], None],
        on_kept: Callable[[KeptOutput], None] = lambda kept: None,
        on_opened: Callable[[Handling, NDArray[np.int32]], None] = lambda handling, prompt: None,
    ) -> None:
        """`context_length`: tokens that a request may have in the KV cache."""
        self._engine = engine
        self._tenants = tenants
        self._context_length = context_length
        self._on_error = on_error
        self._on_kept = on_kept
        self._on_opened = on_opened
        self._entries: dict[str, _Entry] = {}
        # Entries with padding.
        self._num_padded = 0
        self.num_without_drafts = 0
        """Open requests that asked for no drafts."""

    def __len__(self) -> int:
        return len(self._entries)

    def admit(self, request: Req, length: int | None = None) -> None:
        """Makes `request` known to the engine, or brings it back to what the scheduler knows.

        `length`: tokens of its text up to the end of what is being prefilled; None: nothing is.
        """
        entry = self._entries.get(request.rid)
        if entry is not None and entry.request is not request:
            # The id came back for another request before its first one was seen to end.
            self._end(request.rid, entry)
            entry = None
        if entry is None:
            self._open(request)
        elif length is not None and self._is_stale(entry, length):
            self._open_again(entry)

    def padding(self, requests: Sequence[Req]) -> NDArray[np.int64]:
        """int64[b], tokens in the KV cache of each request that stand for images and are not in its text."""
        return np.array([len(request.origin_input_ids) - len(_prompt(request)) for request in requests], np.int64)

    def rows(self, requests: Sequence[Req]) -> tuple[Rows, NDArray[np.int64] | None]:
        """The engine's requests of a batch, and padding(); None where no request has any."""
        entries = self._entries
        for request in requests:
            entry = entries.get(request.rid)
            # One that has ended runs for a step more, and was closed.
            if (entry is None or entry.request is not request) and not request.finished():
                self.admit(request)
        return self.known_rows(requests), self.padding(requests) if self._num_padded else None

    def known_rows(self, requests: Sequence[Req]) -> Rows:
        """The engine's requests of a batch, as far as they are open now; an id that came back for another request is
        not."""
        entries = self._entries
        ids = []
        for request in requests:
            entry = entries.get(request.rid)
            ids.append(request.rid if entry is not None and entry.request is request else "")
        return self._engine.rows(ids)

    def reopen(self, request: Req) -> bool:
        """Brings a text that went astray back to what the scheduler has processed; False where that was done before, in
        vain: the request is then not drafted for any more."""
        entry = self._entries.get(request.rid)
        if entry is None or entry.request is not request or entry.barred:
            return False
        if entry.num_reopened:
            self._bar(request.rid, entry, "its text does not stay in step with the scheduler's")
            return False
        self._open_again(entry).num_reopened = 1
        return True

    def finish(self, rid: str) -> None:
        """The scheduler finished `rid`: its output, as the user sees it, joins the global index."""
        entry = self._entries.get(rid)
        if entry is not None:
            self._end(rid, entry)

    def may_draft(self, rid: str) -> bool:
        """False where the request asked for no drafts."""
        entry = self._entries.get(rid)
        return entry is None or entry.handling.draft

    def abort(self, rid_prefix: str, everything: bool) -> None:
        """The scheduler was told to abort; which requests still run is only seen later."""
        for rid, entry in self._entries.items():
            if everything or rid.startswith(rid_prefix):
                entry.aborted = True

    def reap(self, decoding: Sequence[Req]) -> None:
        """Closes what has ended without a finish event; `decoding` are the requests of the current decode batch."""
        if len(self._entries) <= len(decoding):
            # Nearly always each of the batch has an entry, so that there are no others. Where one of the batch has ended
            # and has none, whatever else has ended is closed a step later.
            return
        running = {request.rid for request in decoding}
        for rid, entry in list(self._entries.items()):
            if rid not in running and (entry.aborted or entry.request.finished()):
                self._end(rid, entry)

    def _grow(self, entry: _Entry) -> None:
        """Appends what the scheduler has processed and the engine lacks."""
        if entry.barred:
            return
        rid, output = entry.request.rid, entry.request.output_ids
        known = self._engine.num_tokens(rid) - entry.num_prompt_tokens
        if known >= len(output):
            return
        try:
            self._engine.extend(rid, np.asarray(output[known:], dtype=np.int32))
        except Exception:
            self._bar(rid, entry)

    def _is_stale(self, entry: _Entry, length: int) -> bool:
        """Whether the engine's text is another one than what is prefilled, up to `length` tokens, continues: a retraction
        drops tokens that the engine has seen. A chunk before the last ends inside of the text."""
        if entry.barred:
            return False
        processed = entry.num_prompt_tokens + len(entry.request.output_ids)
        return self._engine.num_tokens(entry.request.rid) not in (length, processed)

    def _open(self, request: Req, *, again: bool = False) -> None:
        prompt = _prompt(request)
        padding = len(request.origin_input_ids) - len(prompt)
        entry = _Entry(request, self._tenants.handling(request), num_prompt_tokens=len(prompt), num_padding=padding)
        self._entries[request.rid] = entry
        self._num_padded += padding > 0
        self.num_without_drafts += not entry.handling.draft
        try:
            tokens = np.asarray(prompt, dtype=np.int32)
            self._engine.open(
                request.rid, tokens, entry.handling.namespace, max_length=self._max_length(request, entry)
            )
            if not again:
                self._on_opened(entry.handling, tokens)
        except Exception:
            self._bar(request.rid, entry)

    def _open_again(self, entry: _Entry) -> _Entry:
        """Gives a request a text of what the scheduler has processed."""
        request = entry.request
        self._close(request.rid, entry, keep=False)
        self._open(request, again=True)
        new = self._entries[request.rid]
        new.aborted, new.num_reopened = entry.aborted, entry.num_reopened
        self._grow(new)
        return new

    def _end(self, rid: str, entry: _Entry) -> None:
        """Closes the request; what it wrote is learnt from unless it was aborted or never finished."""
        keep = entry.handling.keep and entry.request.finished() and not entry.aborted
        if keep:
            # The last accepted tokens were never drafted from, so the engine may lack them.
            self._grow(entry)
        self._close(rid, entry, keep=keep)

    def _close(self, rid: str, entry: _Entry, *, keep: bool) -> None:
        if self._entries.pop(rid, None) is not None:
            self._num_padded -= entry.num_padding > 0
            self.num_without_drafts -= not entry.handling.draft
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

    def _max_length(self, request: Req, entry: _Entry) -> int:
        """Tokens that the text can have: up to max_tokens and the context's end; 0 where nothing may be drafted."""
        if not entry.handling.draft:
            return 0
        # The last token needs no place in the KV cache.
        longest = self._context_length + 1 - entry.num_padding
        answer = getattr(request.sampling_params, "max_new_tokens", None)
        return max(longest if answer is None else min(longest, entry.num_prompt_tokens + int(answer)), 0)

    def _bar(self, rid: str, entry: _Entry, reason: str = "the engine refused it") -> None:
        logger.error("agentspec does not draft for one request: %s", reason, exc_info=sys.exc_info()[0] is not None)
        self._on_error()
        entry.barred = True
        if self._engine.is_open(rid):
            self._engine.close(rid, keep=False)


def _prompt(request: Req) -> Sequence[int]:
    """The prompt's tokens, without those that stand for images."""
    prompt: Sequence[int] = getattr(request, "origin_input_ids_unpadded", None) or request.origin_input_ids
    return prompt


def visible_length(request: Req) -> int:
    """Output tokens that belong to the answer: a stop inside an accepted draft leaves more in output_ids."""
    finished_len = getattr(request, "finished_len", None)
    return len(request.output_ids) if finished_len is None else int(finished_len)
