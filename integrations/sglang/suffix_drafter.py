"""Suffix drafts of a server: the engine, the requests it follows, and the store behind it.

Owned by a speculative worker, on the scheduler's thread. Nothing here raises into a step: what fails costs drafts and
is counted.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

import agentspec
from agentspec.draft_tree import DraftBatch, DraftBuffers
from agentspec.engine import Engine
from agentspec.integrations.sglang import compat
from agentspec.integrations.sglang.accepted_tokens import Texts
from agentspec.integrations.sglang.admin import wire
from agentspec.integrations.sglang.admin.corpora import Served
from agentspec.integrations.sglang.admin.desk import AdminDesk
from agentspec.integrations.sglang.admin.metrics import AdminMetrics
from agentspec.integrations.sglang.answer_ends import end_at_first_stop
from agentspec.integrations.sglang.breaker import Breaker
from agentspec.integrations.sglang.counters import Counters
from agentspec.integrations.sglang.draftless import START_TOKENS, DraftlessRows
from agentspec.integrations.sglang.request_counts import RequestCounts
from agentspec.integrations.sglang.requests import KeptOutput, RequestBook
from agentspec.integrations.sglang.rows import last_token, roots_only, spread
from agentspec.integrations.sglang.setting_sources import resolve_for_process
from agentspec.integrations.sglang.state_metrics import StateMetrics
from agentspec.integrations.sglang.store_metrics import StoreMetrics
from agentspec.integrations.sglang.store_setup import namespace_key, open_sharing, served_scope
from agentspec.integrations.sglang.tenants import Handling, Tenants
from agentspec.integrations.sglang.width_control import PlannedStep, WidthControl, profile_key
from agentspec.integrations.sglang.width_tiers import tier_widths

logger = logging.getLogger("agentspec")


class SuffixDrafter:
    """Drafts from the texts of requests, of finished outputs and of corpora.

        admit ──> draft, a step at a time ──> finish, abort or idle

    Ranks must verify the same trees: the first one drafts for all, and it alone uses the store.
    """

    def __init__(self, server_args: Any, model_config: Any, *, drafts_here: bool, ragged: bool) -> None:
        """Opens the engine, its corpora and the store, by the settings that the launcher resolved.

        Args:
            server_args: SGLang's.
            model_config: SGLang's, of the target.
            drafts_here: Whether this process drafts; else every row is its root alone.
            ragged: Whether rows are verified without padding.

        Raises:
            ConfigError: A file or the store cannot be used.
        """
        settings = self.settings = resolve_for_process(compat.marked_settings(server_args))
        max_width = self.max_width = compat.verify_width(server_args)
        """The most nodes a row, its root included."""
        self.widths = tier_widths(settings.widths, max_width)
        """To capture graphs for, where steps run in captured graphs."""
        counters = Counters()
        self.counters = counters
        self.drafts_here = drafts_here
        self._context_length = int(model_config.context_len)
        self._breaker = Breaker(settings.breaker_failures)
        self._started = time.time()
        scope = self._scope = served_scope(settings, server_args)
        self.config = settings.engine_config(
            vocab_size=int(model_config.vocab_size),
            max_draft_tokens=max_width - 1,
            trees=compat.verifies_trees(server_args),
            tokenizer=scope.tokenizer,
        )
        self.engine = Engine(self.config)
        for path in settings.corpus_paths:
            self.engine.attach_corpus(path)
        self._sharing = open_sharing(settings, self.engine, scope) if drafts_here else None
        self._draftless = DraftlessRows()
        self._requests = RequestCounts(compat.tokenizer_folder(server_args), int(model_config.vocab_size))
        tenants = Tenants(settings.namespace_from, namespace_key(settings))
        self._desk: AdminDesk | None = None
        if drafts_here:
            self._desk = AdminDesk(
                self.engine,
                Served(
                    tokenizer=compat.tokenizer_folder(server_args),
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
            on_error=lambda: counters.add("draft_errors", 1),
            on_kept=self._share,
            on_opened=partial(self.guarded, self._opened),
        )
        end_at_first_stop()
        # Drafts are read before the next step is drafted, so one place for them is enough.
        self._buffers = DraftBuffers(1, max_width - 1)
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
        if drafts_here and compat.metrics_enabled(server_args):
            labels = {"model_name": compat.served_model_name(server_args)}
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

    def describe(self) -> dict[str, Any]:
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

    def administer(self, command: dict[str, Any]) -> dict[str, Any]:
        """The answer to a command of the server's administrator; raises nothing."""
        return wire.NO_DESK if self._desk is None else self._desk.answer(command)

    def clear(self) -> None:
        """Forgets finished outputs; what is in the store stays there."""
        if self._sharing:
            self._sharing.engine_cleared()
        self.engine.clear()

    def admit(self, requests: Sequence[Any]) -> None:
        """A prefill of the requests was launched. After the launch: on a GPU a prompt's index is built meanwhile."""
        if self.drafts_here:
            for request in requests:
                self.guarded(self._book.admit, request)

    def finish(self, rid: str) -> None:
        self.guarded(self._book.finish, rid)

    def abort(self, rid_prefix: str, everything: bool) -> None:
        self.guarded(self._book.abort, rid_prefix, everything)

    def idle(self) -> None:
        """The scheduler runs nothing: what ended in its last batch is closed, for no later step will see it."""
        self.guarded(self._book.reap, set())

    def drafts(self, requests: Sequence[Any], texts: Texts) -> DraftBatch:
        """One tree a row, its root from the scheduler's own data; a row that cannot be drafted for is its root, and all
        are where no draft would pay. A text that is not followed meanwhile is made up for by the next draft.

        Args:
            requests: SGLang's `Req`, one a row.
            texts: Where they stand.
        """
        roots = np.array([last_token(r, tail) for r, tail in zip(requests, texts.unprocessed, strict=True)], np.int32)
        drafts = roots_only(roots)
        wanted = self.control.wants_draft(len(roots), int(texts.seq_lens.sum()))
        self.counters.add("paused_steps", not wanted)
        self._draftless.begin(len(roots), "breaker" if wanted else "paused_by_controller")
        if wanted and self._breaker.allow():
            try:
                drafts = _checked(self._engine_drafts(requests, texts, roots), roots)
                self._breaker.succeeded()
            except Exception:
                self._draftless.begin(len(roots), "failed")
                self.failed("agentspec could not draft; this step verifies roots only")
        self.guarded(self._book.reap, {request.rid for request in requests})
        return drafts

    def plan(self, drafts: DraftBatch, seq_lens: NDArray[np.int64]) -> tuple[DraftBatch, PlannedStep]:
        """What of a step's drafts is verified, as WidthControl.plan() says; counts the rows that have no draft."""
        had_draft = np.diff(drafts.offsets) > 1
        drafts, planned = self.control.plan(drafts, seq_lens)
        self.guarded(self._draftless.count, had_draft, np.diff(drafts.offsets) > 1)
        return drafts, planned

    def may_draft(self, rid: str) -> bool:
        """False where the request asked for no drafts, whoever makes them."""
        return self._book.may_draft(rid)

    def rooms(self, requests: Sequence[Any], texts: Texts) -> NDArray[np.int32]:
        """int32[b], how many drafted tokens can still count: up to max_tokens, the context's end and the width of a row."""
        rows = zip(requests, texts.seq_lens.tolist(), texts.unprocessed, strict=True)
        return np.array([self._room(request, seq_len, len(tail)) for request, seq_len, tail in rows], np.int32)

    def _room(self, request: Any, seq_len: int, num_unprocessed: int) -> int:
        answer = request.sampling_params.max_new_tokens
        room = min(self._context_length - seq_len - 1, self.max_width - 1)
        if answer is not None:
            # The bonus token takes one of the places.
            room = min(room, answer - len(request.output_ids) - num_unprocessed - 1)
        return max(room, 0)

    def failed(self, message: str) -> None:
        """To be called where an exception is handled: drafting failed, and pauses after some failures in a row."""
        logger.exception(message)
        self.counters.add("draft_errors", 1)
        self._breaker.failed()

    def guarded(self, call: Callable[..., object], *args: Any) -> None:
        """Book-keeping must never stop the scheduler."""
        try:
            call(*args)
        except Exception:
            logger.exception("agentspec could not follow a request; it only costs drafts")
            self.counters.add("draft_errors", 1)

    def _engine_drafts(self, requests: Sequence[Any], texts: Texts, roots: NDArray[np.int32]) -> DraftBatch:
        """One native call for the rows that may be drafted for, spread over all rows of the batch."""
        rows, ids, caps, at_start = [], [], [], []
        caps_of_all = self.rooms(requests, texts).tolist()
        for row, (request, tail, is_known) in enumerate(
            zip(requests, texts.unprocessed, texts.is_known.tolist(), strict=True)
        ):
            if not is_known and request.finished():
                # It ended behind some of the tokens that this row accepted, and no one reads what it goes on to write.
                self._draftless.set(row, "no_room")
                continue
            if not is_known:
                self._draftless.set(row, "failed")
                self.counters.add("draft_errors", 1)
                logger.error("agentspec does not draft for a row whose counts contradict each other")
                continue
            if self._book.sync(request, tail):
                rows.append(row)
                ids.append(request.rid)
                caps.append(caps_of_all[row])
                at_start.append(len(request.output_ids) + len(tail) < START_TOKENS)
            else:
                self._draftless.set(row, "refused" if self._book.may_draft(request.rid) else "disabled_by_request")
        if not rows:
            return roots_only(roots)
        if len(ids) > self._buffers.max_rows:
            self._buffers = DraftBuffers(1 << (len(ids) - 1).bit_length(), self.max_width - 1)
        drafts = self.engine.draft(ids, max_tokens=np.array(caps, np.int32), out=self._buffers)
        self._draftless.outcomes(rows, self._buffers.outcomes[: len(rows)], at_start)
        return drafts if len(rows) == len(roots) else spread(drafts, rows, roots)

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


def _checked(drafts: DraftBatch, roots: NDArray[np.int32]) -> DraftBatch:
    """Refuses drafts that do not start from the scheduler's last tokens: they would be about another text."""
    if not np.array_equal(drafts.tokens[drafts.offsets[:-1]], roots):
        raise ValueError("the engine's text does not end where the scheduler's does")
    return drafts
