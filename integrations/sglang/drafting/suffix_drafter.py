"""Suffix drafts of a server: the engine, the requests it follows, and the store behind it.

Owned by a speculative worker, on the scheduler's thread. Nothing here raises into a step: what fails costs drafts and
is counted.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray

import agentspec
from agentspec._core import Rows
from agentspec.drafts import DraftBatch, DraftBuffers, Outcome
from agentspec.engine import Engine
from agentspec.integrations.sglang import arguments, attention_backends, compat
from agentspec.integrations.sglang.admin import wire
from agentspec.integrations.sglang.admin.corpora import Served
from agentspec.integrations.sglang.admin.desk import AdminDesk
from agentspec.integrations.sglang.admin.wire import JsonObject
from agentspec.integrations.sglang.drafting.accepted_tokens import AcceptedTokens
from agentspec.integrations.sglang.drafting.answer_ends import end_at_first_stop
from agentspec.integrations.sglang.drafting.breaker import Breaker
from agentspec.integrations.sglang.drafting.draftless import START_TOKENS, DraftlessRows, Reason
from agentspec.integrations.sglang.drafting.request_counts import RequestCounts
from agentspec.integrations.sglang.drafting.requests import KeptOutput, RequestBook
from agentspec.integrations.sglang.drafting.rows import DraftedStep, roots_only
from agentspec.integrations.sglang.metrics import AdminMetrics, Counters, StateMetrics, StoreMetrics
from agentspec.integrations.sglang.setting_sources import resolve_for_process
from agentspec.integrations.sglang.sglang_types import ModelConfig, Req, ServerArgs
from agentspec.integrations.sglang.store_setup import namespace_key, open_sharing, served_scope
from agentspec.integrations.sglang.tenants import Handling, Tenants
from agentspec.integrations.sglang.widths.control import WidthControl, profile_key
from agentspec.integrations.sglang.widths.tiers import tier_widths

logger = logging.getLogger("agentspec")


@dataclass(slots=True)
class SuffixStep:
    """The suffix drafts of a step of b rows. Arrays are views of memory that the next step overwrites."""

    requests: list[Req]
    rows: Rows
    drafts: DraftBatch
    """A row that cannot be drafted for is its root alone, and all are where no draft would pay."""
    lengths: NDArray[np.int64]
    """[b], tokens of the texts."""
    ends: NDArray[np.int64]
    """[b], tokens in the KV cache, as the device has told; -1 where it has not."""
    context: int
    """Their sum."""
    rooms: NDArray[np.int32]
    """[b], the most drafted tokens that can count: up to max_tokens, the context's end and the width of a row."""
    outcomes: NDArray[np.uint8] | Reason
    """[b], values of `Outcome`; or why no row was drafted for."""
    began: float
    """When the last result was there, by time.perf_counter()."""


class SuffixDrafter:
    """Drafts from the texts of requests, of finished outputs and of corpora.

        admit ──> draft ─ plan ─ launched, a step at a time ──> finish, abort or idle

    What stands between the device's result and the next launch is in draft() and plan(). All else about a step is in
    launched(), while the device works.

    Ranks must verify the same trees: the first one drafts for all, and it alone uses the store.
    """

    def __init__(self, server_args: ServerArgs, model_config: ModelConfig, *, drafts_here: bool, ragged: bool) -> None:
        """Opens the engine, its corpora and the store, by the settings that the launcher resolved.

        Args:
            server_args: SGLang's.
            model_config: SGLang's, of the target.
            drafts_here: Whether this process drafts; else every row is its root alone.
            ragged: Whether rows are verified without padding.

        Raises:
            ConfigError: A file or the store cannot be used.
        """
        settings = self.settings = resolve_for_process(arguments.marked_settings(server_args))
        max_width = self.max_width = arguments.verify_width(server_args)
        """The most nodes a row, its root included."""
        self.widths = tier_widths(settings.widths, max_width)
        """To capture graphs for, where steps run in captured graphs."""
        counters = Counters()
        self.counters = counters
        self.drafts_here = drafts_here
        self._breaker = Breaker(settings.breaker_failures)
        self._started = time.time()
        scope = self._scope = served_scope(settings, server_args)
        self.config = settings.engine_config(
            vocab_size=int(model_config.vocab_size),
            max_draft_tokens=max_width - 1,
            trees=attention_backends.verifies_trees(server_args),
            tokenizer=scope.tokenizer,
        )
        self.engine = Engine(self.config)
        for path in settings.corpus_paths:
            self.engine.attach_corpus(path)
        self._sharing = open_sharing(settings, self.engine, scope) if drafts_here else None
        self._draftless = DraftlessRows()
        self._requests = RequestCounts(arguments.tokenizer_folder(server_args), int(model_config.vocab_size))
        tenants = Tenants(settings.namespace_from, namespace_key(settings))
        self._desk: AdminDesk | None = None
        if drafts_here:
            self._desk = AdminDesk(
                self.engine,
                Served(
                    tokenizer=arguments.tokenizer_folder(server_args),
                    identity=scope.tokenizer,
                    vocab_size=int(model_config.vocab_size),
                    most_bytes=settings.admin_corpora_mb << 20,
                ),
                corpora_at_start=settings.corpus_paths,
                sharing=self._sharing,
                namespace_of=tenants.namespace,
            )
        self._book = RequestBook(
            self.engine,
            tenants,
            int(model_config.context_len),
            on_error=lambda: counters.add("draft_errors", 1),
            on_kept=self._share,
            on_opened=partial(self.guarded, self._opened),
        )
        end_at_first_stop()
        self.accepted = AcceptedTokens(self.engine, lambda rows: counters.add("draft_errors", rows))
        """What forwards write; told by the worker that launches them."""
        # Drafts are read before the next step is drafted, so one place for them is enough.
        self._buffers = DraftBuffers(1, max_width - 1)
        self._batch: tuple[list[Req], Rows, NDArray[np.int64] | None] | None = None
        # Requests whose texts are not what the scheduler decodes.
        self._astray: list[Req] = []
        self.profile = settings.step_profile()
        """Of the target and its drafter; None: none is known."""
        self.control = WidthControl(
            settings.control_config(has_drafter=bool(compat.draft_model_path(server_args))),
            # When it plans a step, what a model drafter takes is spent: the policy has weighed that.
            self.profile and replace(self.profile, drafter=None),
            profile_key(server_args),
            max_width=max_width,
            counters=counters,
            max_failures=settings.breaker_failures,
            profiling=settings.profiling,
            ragged=ragged,
        )
        """What of the drafts is verified."""
        self.state_metrics: StateMetrics | None = None
        if drafts_here and arguments.metrics_enabled(server_args):
            labels = {"model_name": arguments.served_model_name(server_args)}
            counters.export(labels)
            self._draftless.counts.export(labels)
            self._requests.export(labels)
            self.control.export(labels)
            self.state_metrics = StateMetrics(labels, self.engine, self._breaker)
            if self._desk:
                self.state_metrics.also(AdminMetrics(labels, self._desk))
            self.state_metrics.start()
            if self._sharing:
                self._sharing.on_health(StoreMetrics(labels))

    def describe(self) -> dict[str, object]:
        """Its part of the block `agentspec` of `/server_info`."""
        stats = self.engine.stats()
        return {
            "version": agentspec.__version__,
            "started": self._started,
            "uptime_seconds": time.time() - self._started,
            "scope": {"model": self._scope.model, "tokenizer": self._scope.tokenizer, "id": self._scope.id},
            "metrics": self.state_metrics is not None,
            "counters": self.counters.snapshot(),
            "rows_without_draft": self._draftless.counts.snapshot(),
            **self._requests.snapshot(),
            "control": self.control.describe(),
            "breaker": {"open": self._breaker.is_open, "openings": self._breaker.num_openings},
            "engine": {name: getattr(stats, name) for name in stats.__slots__},
            "store": self._sharing.health() if self._sharing else None,
        }

    def administer(self, command: JsonObject) -> JsonObject:
        """The answer to a command of the server's administrator; raises nothing."""
        return wire.NO_DESK if self._desk is None else self._desk.answer(command)

    def clear(self) -> None:
        """Forgets finished outputs; what is in the store stays there."""
        if self._sharing:
            self._sharing.engine_cleared()
        self.engine.clear()

    def prefilled(self, requests: Sequence[Req], ends: Sequence[int], next_tokens: torch.Tensor) -> None:
        """A prefill of the requests was launched. After the launch: on a GPU a prompt's index is built meanwhile.

        Args:
            requests: SGLang's `Req`, one a row.
            ends: For each row the tokens in the KV cache behind the chunk.
            next_tokens: integer[b] on the device, what the target wrote behind it.
        """
        if self.drafts_here:
            self.guarded(self._prefilled, requests, np.array(ends, np.int64), next_tokens)

    def _prefilled(self, requests: Sequence[Req], ends: NDArray[np.int64], next_tokens: torch.Tensor) -> None:
        # What was accepted before must not be taken for what a retraction dropped.
        self.accepted.catch_up()
        lengths = ends - self._book.padding(requests)
        for request, length in zip(requests, lengths.tolist(), strict=True):
            self.guarded(self._book.admit, request, length)
        rows = self._book.known_rows(requests)
        self.accepted.prefilled(requests, rows, ends, lengths, next_tokens)
        # A request may have been opened anew.
        self._batch = None

    def finish(self, rid: str) -> None:
        self.guarded(self._book.finish, rid)

    def abort(self, rid_prefix: str, everything: bool) -> None:
        self.guarded(self._book.abort, rid_prefix, everything)

    def idle(self) -> None:
        """The scheduler runs nothing: what ended in its last batch is closed, for no later step will see it."""
        self.guarded(self._book.reap, ())

    def draft(self, requests: list[Req]) -> SuffixStep:
        """Brings the texts to what the device has written, which it waits for, and drafts one tree a row.

        Args:
            requests: SGLang's `Req`, one a row.

        Raises:
            Exception: Texts cannot be followed; the step then verifies roots only.
        """
        # Whatever does not depend on the accepted tokens is done before the wait for them, while the device works.
        if self._astray:
            self._call_back()
        b = len(requests)
        self._rows_of(requests)
        buffers = self._buffers_for(b)
        most = self.control.most_width(b) - 1
        self.accepted.wait()
        began = time.perf_counter()
        self.accepted.catch_up()
        rows, ends, lengths = self._standing(requests)
        context = int(ends.sum())
        wanted = self.control.wants_draft(b, context)
        if not wanted:
            self.counters.add("paused_steps", 1)
        outcomes: NDArray[np.uint8] | Reason = "breaker" if wanted else "paused_by_controller"
        drafts = None
        if wanted and self._breaker.allow():
            try:
                drafts = self.engine.draft_rows(rows, lengths=lengths, max_tokens=most, out=buffers)
                outcomes = buffers.outcomes[:b]
                self._breaker.succeeded()
            except Exception:
                outcomes = "failed"
                self.failed("agentspec could not draft; this step verifies roots only")
        if drafts is None:
            drafts = self.engine.draft_rows(rows, lengths=lengths, max_tokens=0, out=buffers)
        return SuffixStep(
            requests, rows, drafts, buffers.lengths[:b], ends, context, buffers.rooms[:b], outcomes, began
        )

    def nothing(self, requests: list[Req]) -> SuffixStep:
        """A step without drafts, where draft() or what comes after it failed; texts go on growing."""
        b, began = len(requests), time.perf_counter()
        try:
            rows, ends, lengths = self._standing(requests)
        except Exception:
            # Nothing is known of any row.
            rows, ends = self.engine.rows([""] * b), np.full(b, -1, np.int64)
            lengths = np.zeros(b, np.int64)
        drafts, rooms = roots_only(np.zeros(b, np.int32)), np.zeros(b, np.int32)
        return SuffixStep(requests, rows, drafts, lengths, ends, int(ends.sum()), rooms, "failed", began)

    def launched(self, step: SuffixStep, drafted: DraftedStep) -> None:
        """The verification of a step was launched: counts its rows, learns, and closes what has ended.

        Args:
            step: What draft() returned; nothing was drafted since.
            drafted: What is verified of it.
        """
        drafted.count_drafted(self.counters)
        self.guarded(self._launched, step, drafted)

    def _launched(self, step: SuffixStep, drafted: DraftedStep) -> None:
        self.engine.learn(step.rows)
        offsets = step.drafts.offsets
        had_draft = (offsets[1:] - offsets[:-1]) > 1
        self._draftless.count(
            step.outcomes, had_draft, drafted.num_drafted > 0, lambda row, outcome: self._reason(step, row, outcome)
        )
        if not isinstance(step.outcomes, str):
            for row in np.flatnonzero(step.outcomes == Outcome.OTHER_TEXT).tolist():
                self._astray.append(step.requests[row])
        self._book.reap(step.requests)

    def _reason(self, step: SuffixStep, row: int, outcome: Outcome) -> Reason | None:
        request = step.requests[row]
        if outcome is Outcome.NO_MATCH:
            return "no_match_at_start" if len(request.output_ids) < START_TOKENS else None
        if not self._book.may_draft(request.rid):
            return "disabled_by_request"
        # One that has ended runs for a step more, and no one reads what it goes on to write.
        return "no_room" if outcome is Outcome.NOT_OPEN and request.finished() else None

    def _call_back(self) -> None:
        astray, self._astray = self._astray, []
        self._batch = None
        for request in astray:
            if request.finished():
                continue
            self.counters.add("draft_errors", 1)
            logger.error("agentspec does not draft for a row whose text is not the scheduler's")
            self.guarded(self._book.reopen, request)
        self.accepted.find_again(self._book.known_rows)

    def _standing(self, requests: list[Req]) -> tuple[Rows, NDArray[np.int64], NDArray[np.int64]]:
        """Where the requests stand after the latest step: the engine's rows, tokens in the KV cache, and of the texts."""
        rows, padding = self._rows_of(requests)
        ends = self.accepted.ends(requests)
        # The last accepted token has no KV yet.
        return rows, ends, ends + 1 if padding is None else ends + 1 - padding

    def _rows_of(self, requests: list[Req]) -> tuple[Rows, NDArray[np.int64] | None]:
        """See RequestBook.rows(); found once for all steps of the same batch."""
        if self._batch is None or self._batch[0] != requests:
            self._batch = (list(requests), *self._book.rows(requests))
        return self._batch[1], self._batch[2]

    def _buffers_for(self, rows: int) -> DraftBuffers:
        if rows > self._buffers.max_rows:
            self._buffers = DraftBuffers(1 << (rows - 1).bit_length(), self.max_width - 1)
        return self._buffers

    @property
    def some_may_not_draft(self) -> bool:
        """Whether may_draft() is False for some request that is open."""
        return self._book.num_without_drafts > 0

    def may_draft(self, rid: str) -> bool:
        """False where the request asked for no drafts, whoever makes them."""
        return self._book.may_draft(rid)

    def failed(self, message: str) -> None:
        """To be called where an exception is handled: drafting failed, and pauses after some failures in a row."""
        logger.exception(message)
        self.counters.add("draft_errors", 1)
        self._breaker.failed()

    def guarded(self, call: Callable[..., object], *args: object) -> None:
        """Book-keeping must never stop the scheduler."""
        try:
            call(*args)
        except Exception:
            logger.exception("agentspec could not follow a request; it only costs drafts")
            self.counters.add("draft_errors", 1)

    def _opened(self, handling: Handling, prompt: NDArray[np.int32]) -> None:
        self._requests.opened(handling, prompt)
        if self._desk and not handling.is_private:
            self._desk.last_use.touch(handling.namespace)

    def _share(self, kept: KeptOutput) -> None:
        self.guarded(self._requests.finished, np.asarray(kept.output[: kept.num_output_tokens], np.int32))
        if self._sharing is None:
            return
        tail = self.config.prompt_tail
        self._sharing.publish(
            kept.namespace,
            kept.output_id,
            kept.request_id,
            kept.prompt[-tail:] if tail else (),
            kept.output,
            kept.num_output_tokens,
        )
