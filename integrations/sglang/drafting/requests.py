"""The requests that the engine follows, kept in step with the scheduler's.

    event                                    what happens here
    ---------------------------------------  ---------------------------------------------------------------
    a request is prefilled                   admit: the engine opens it with its whole prompt
    it is prefilled again after a retraction admit: it is opened again if the engine knows tokens that were dropped
    the decode batch changes                 rows: the engine looks up its requests, once for all steps of the batch
    it finishes in decode                    finish: it is closed, and its trimmed output joins the global index
    it finishes at prefill                   reap: closes it, because the request says that it is finished
    it is refused                            nothing: it is never opened
    it has its min_new_tokens                release: it is opened again, and may have drafts from now on
    it is aborted, or a full queue drops it  abort, drop: mark it; reap closes it once no decode batch holds it
    it is dropped for lack of memory         reap: closes it, because the request has a reason to finish
    the scheduler is idle                    reap: closes what has ended, because no decode step may follow

Between these events accepted_tokens.py appends the accepted tokens to the texts. A request that is absent from a batch
stays open, because it may be retracted or wait for a prefill.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from agentspec._core import Rows
from agentspec.engine import Engine
from agentspec.integrations.sglang.drafting.sampling_options import UndraftedReason, undrafted
from agentspec.integrations.sglang.predictions.option import predicted_tokens
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


Undrafted = Literal["disabled_by_request", UndraftedReason]


@dataclass(slots=True)
class _Entry:
    request: Req
    handling: Handling
    # Length of the prompt without padding.
    num_prompt_tokens: int
    # Number of tokens in the KV cache that stand for images and are not in the text.
    num_padding: int
    # Why it must not have drafts.
    undrafted: Undrafted | None
    aborted: bool = False
    # Set when the engine refused this request. It gets no drafts any more; other requests do.
    barred: bool = False
    num_reopened: int = 0


class RequestBook:
    """All requests that the engine has open, by request id.

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
        """`context_length`: the most tokens that a request may have in the KV cache."""
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
        """Number of open requests that must not have drafts."""
        # Those of them that may have drafts later.
        self._waiting: set[str] = set()

    def __len__(self) -> int:
        return len(self._entries)

    def admit(self, request: Req, length: int | None = None) -> None:
        """Opens `request` in the engine, or opens it again if the engine's text is not the scheduler's.

        `length`: number of tokens of its text up to the end of the prefilled chunk; None if nothing is prefilled.
        """
        entry = self._entries.get(request.rid)
        if entry is not None and entry.request is not request:
            # Another request uses the id before the end of the first one was noticed.
            self._end(request.rid, entry)
            entry = None
        if entry is None:
            # SGLang runs a request that it has refused once more, with another text in place of its prompt.
            if not request.to_finish:
                self._open(request)
        elif length is not None and (self._is_stale(entry, length) or self._lost_its_drafts(entry)):
            self._open_again(entry)

    def padding(self, requests: Sequence[Req]) -> NDArray[np.int64]:
        """int64[b], number of tokens in the KV cache of each request that stand for images and are not in its text."""
        return np.array([len(request.origin_input_ids) - len(_prompt(request)) for request in requests], np.int64)

    def rows(self, requests: Sequence[Req]) -> tuple[Rows, NDArray[np.int64] | None]:
        """The engine's rows of a batch, and padding(), or None without any padding. Opens missing requests."""
        entries = self._entries
        for request in requests:
            entry = entries.get(request.rid)
            # A request that has ended runs for one more step and is closed already.
            if (entry is None or entry.request is not request) and not request.finished():
                self.admit(request)
        return self.known_rows(requests), self.padding(requests) if self._num_padded else None

    def known_rows(self, requests: Sequence[Req]) -> Rows:
        """The engine's rows of a batch. A request that is not open gets an empty row, and so does a request whose id
        belongs to another one."""
        entries = self._entries
        ids = []
        for request in requests:
            entry = entries.get(request.rid)
            ids.append(request.rid if entry is not None and entry.request is request else "")
        return self._engine.rows(ids)

    def reopen(self, request: Req) -> bool:
        """Opens a request again whose text is not the scheduler's, with what the scheduler has processed.

        Returns False if that was done before without success. The request then gets no drafts any more.
        """
        entry = self._entries.get(request.rid)
        if entry is None or entry.request is not request or entry.barred:
            return False
        if entry.num_reopened:
            self._bar(request.rid, entry, "its text does not stay in step with the scheduler's")
            return False
        self._open_again(entry).num_reopened = 1
        return True

    def finish(self, rid: str) -> None:
        """Called when the scheduler has finished `rid`. The output that the user sees joins the global index."""
        entry = self._entries.get(rid)
        if entry is not None:
            self._end(rid, entry)

    def request(self, rid: str) -> Req | None:
        """The open request of that id."""
        entry = self._entries.get(rid)
        return None if entry is None else entry.request

    def undrafted(self, rid: str) -> Undrafted | None:
        """Why the request must not have drafts; None if it may."""
        entry = self._entries.get(rid)
        return None if entry is None else entry.undrafted

    def release(self, will_be_told: Callable[[Req], bool]) -> bool:
        """Lets requests have drafts that have their min_new_tokens now. Returns whether there were any. `will_be_told`:
        whether the engine will be told where the text of a request ends before it drafts. Otherwise the request waits
        for its next step."""
        waiting = [self._entries[rid] for rid in self._waiting]
        due = [
            entry
            for entry in waiting
            if not entry.request.finished() and undrafted(entry.request) is None and will_be_told(entry.request)
        ]
        for entry in due:
            self._open_again(entry)
        return bool(due)

    def abort(self, rid_prefix: str, everything: bool) -> None:
        """Marks the requests that the scheduler was told to abort. reap() closes them once they do not run any more."""
        for rid, entry in self._entries.items():
            if everything or rid.startswith(rid_prefix):
                entry.aborted = True

    def drop(self, request: Req) -> None:
        """Marks a request that the scheduler dropped from its queue, like abort()."""
        entry = self._entries.get(request.rid)
        if entry is not None and entry.request is request:
            entry.aborted = True

    def reap(self, decoding: Sequence[Req]) -> None:
        """Closes requests that ended without a finish event. `decoding`: the requests of the current decode batch."""
        if len(self._entries) <= len(decoding):
            # Nearly always each request of the batch has an entry, so there are no other entries. If an ended request
            # of the batch has no entry, other ended requests are closed one step later.
            return
        running = {request.rid for request in decoding}
        for rid, entry in list(self._entries.items()):
            if rid not in running and (entry.aborted or entry.request.to_finish or entry.request.finished()):
                self._end(rid, entry)

    def _grow(self, entry: _Entry) -> None:
        """Appends the tokens that the scheduler has processed and the engine does not have."""
        if entry.barred:
            return
        rid, output = entry.request.rid, entry.request.output_ids
        if self._engine.num_tokens(rid) - entry.num_prompt_tokens >= len(output):
            return
        try:
            self._engine.complete(rid, np.asarray(output, dtype=np.int32))
        except Exception:
            self._bar(rid, entry)

    def _is_stale(self, entry: _Entry, length: int) -> bool:
        """Whether the engine's text differs from the prefilled one, because a retraction dropped tokens.

        `length`: number of tokens up to the end of the chunk. Each chunk but the last one ends inside of the text.
        """
        if entry.barred:
            return False
        processed = entry.num_prompt_tokens + len(entry.request.output_ids)
        return self._engine.num_tokens(entry.request.rid) not in (length, processed)

    @staticmethod
    def _lost_its_drafts(entry: _Entry) -> bool:
        """Whether a request that had drafts must not have them any more, because it was retracted."""
        return entry.undrafted is None and undrafted(entry.request) is not None

    def _open(self, request: Req, *, again: bool = False) -> None:
        prompt = _prompt(request)
        padding = len(request.origin_input_ids) - len(prompt)
        handling = self._tenants.handling(request)
        reason: Undrafted | None = undrafted(request) if handling.draft else "disabled_by_request"
        entry = _Entry(request, handling, num_prompt_tokens=len(prompt), num_padding=padding, undrafted=reason)
        self._entries[request.rid] = entry
        self._num_padded += padding > 0
        self.num_without_drafts += reason is not None
        if reason == "before_min_tokens":
            self._waiting.add(request.rid)
        try:
            tokens = np.asarray(prompt, dtype=np.int32)
            self._engine.open(
                request.rid,
                tokens,
                entry.handling.namespace,
                max_length=self._max_length(request, entry),
                group=entry.handling.group,
                shown=entry.handling.keep,
                prediction=self._prediction(request, entry),
            )
            if not again:
                self._on_opened(entry.handling, tokens)
        except Exception:
            self._bar(request.rid, entry)

    def _open_again(self, entry: _Entry) -> _Entry:
        """Opens a request again with the text that the scheduler has processed."""
        request = entry.request
        self._close(request.rid, entry, keep=False)
        self._open(request, again=True)
        new = self._entries[request.rid]
        new.aborted, new.num_reopened = entry.aborted, entry.num_reopened
        self._grow(new)
        return new

    def _end(self, rid: str, entry: _Entry) -> None:
        """Closes the request. The engine learns from its output unless it was aborted or never finished."""
        request = entry.request
        keep = entry.handling.keep and request.finished() and not entry.aborted and not _was_aborted(request)
        if keep:
            # The last accepted tokens were never drafted from, so the engine may lack them.
            self._grow(entry)
        self._close(rid, entry, keep=keep)

    def _close(self, rid: str, entry: _Entry, *, keep: bool) -> None:
        if self._entries.pop(rid, None) is not None:
            self._num_padded -= entry.num_padding > 0
            self.num_without_drafts -= entry.undrafted is not None
            self._waiting.discard(rid)
        if entry.barred:
            return
        num_output_tokens = visible_length(entry.request) if keep else None
        try:
            output_id = self._close_in_engine(entry, keep=keep, num_output_tokens=num_output_tokens)
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
        except Exception:
            logger.exception("agentspec could not close a request")
            self._on_error()

    def _close_in_engine(self, entry: _Entry, *, keep: bool, num_output_tokens: int | None = None) -> int | None:
        try:
            return self._engine.close(entry.request.rid, keep=keep, num_output_tokens=num_output_tokens)
        finally:
            if entry.handling.is_private:
                # No other request may learn from the acceptance of its drafts, and what it learned must not take the
                # place of what a tenant has learned.
                self._engine.delete_namespace(entry.handling.namespace)

    def _prediction(self, request: Req, entry: _Entry) -> NDArray[np.int32]:
        """What the answer is expected to repeat, as far as an answer can be long; empty if nothing may be drafted."""
        given = predicted_tokens(getattr(request.sampling_params, "custom_params", None))
        return np.asarray(given[: self._context_length] if entry.undrafted is None else (), dtype=np.int32)

    def _max_length(self, request: Req, entry: _Entry) -> int:
        """The most tokens that the text can have, by max_tokens and the context; 0 if nothing may be drafted."""
        if entry.undrafted is not None:
            return 0
        # The last token needs no slot in the KV cache.
        longest = self._context_length + 1 - entry.num_padding
        answer = getattr(request.sampling_params, "max_new_tokens", None)
        return max(longest if answer is None else min(longest, entry.num_prompt_tokens + int(answer)), 0)

    def _bar(self, rid: str, entry: _Entry, reason: str = "the engine refused it") -> None:
        logger.error("agentspec does not draft for one request: %s", reason, exc_info=sys.exc_info()[0] is not None)
        self._on_error()
        entry.barred = True
        self._waiting.discard(rid)
        if self._engine.is_open(rid):
            self._close_in_engine(entry, keep=False)


def _was_aborted(request: Req) -> bool:
    """Whether a finished request has no whole answer, because SGLang gave it up. No order to abort need have come: a turn of
    a session that another one replaces ends so, and so does an answer that its grammar forbids."""
    reason = request.finished_reason
    return reason is not None and reason.to_json()["type"] == "abort"


def _prompt(request: Req) -> Sequence[int]:
    """The tokens of the prompt, without those that stand for images."""
    prompt: Sequence[int] = getattr(request, "origin_input_ids_unpadded", None) or request.origin_input_ids
    return prompt


def visible_length(request: Req) -> int:
    """Number of output tokens that belong to the answer. After a stop inside a draft, output_ids holds more."""
    finished_len = getattr(request, "finished_len", None)
    return len(request.output_ids) if finished_len is None else int(finished_len)
