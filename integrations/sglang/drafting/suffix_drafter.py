"""Suffix drafts of a server: the engine, the requests that it follows, and the store.

Owned by a speculative worker, on the scheduler's thread. A failure here is counted and costs drafts only; it never
stops a step.
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
from agentspec.integrations.sglang.drafting.breaker import MAX_FAILURES, Breaker
from agentspec.integrations.sglang.drafting.draftless import START_TOKENS, DraftlessRows, Reason
from agentspec.integrations.sglang.drafting.request_counts import RequestCounts
from agentspec.integrations.sglang.drafting.requests import KeptOutput, RequestBook
from agentspec.integrations.sglang.drafting.rows import DraftedStep, TracedDrafts, roots_only
from agentspec.integrations.sglang.drafting.verify_input import VerifyStaging
from agentspec.integrations.sglang.kernels.kept_tokens import keep_what_plain_decoding_keeps
from agentspec.integrations.sglang.kernels.token_states import commit_no_states, keep_states_of_each_row
from agentspec.integrations.sglang.metrics import AdminMetrics, Counters, StateMetrics, StoreMetrics, metric_labels
from agentspec.integrations.sglang.setting_sources import resolve_for_process
from agentspec.integrations.sglang.sglang_types import ModelRunner, Req, ServerArgs
from agentspec.integrations.sglang.store_setup import namespace_key, open_sharing, served_scope
from agentspec.integrations.sglang.stream_order.host_functions import launcher, works
from agentspec.integrations.sglang.stream_order.ranks import Ranks
from agentspec.integrations.sglang.stream_order.steps import AheadStep, StreamOrder
from agentspec.integrations.sglang.tenants import AdapterNames, Handling, Tenants
from agentspec.integrations.sglang.widths.control import WidthControl, profile_key
from agentspec.integrations.sglang.widths.graph_sizes import wanted_widths
from agentspec.integrations.sglang.widths.kept_costs import KeptCosts
from agentspec.integrations.sglang.widths.tiers import WidthTiers
from agentspec.scheduling import StepCost

logger = logging.getLogger("agentspec")

_KEEP_SECONDS = 60.0
"""A server that is never idle keeps its step costs this often. Writing the file takes a fraction of a millisecond."""


@dataclass(slots=True)
class SuffixStep:
    """The suffix drafts of a step of b rows. The arrays are views of memory that the next step overwrites."""

    requests: list[Req]
    rows: Rows
    drafts: DraftBatch
    """A row without a draft has only its root. If no draft would pay, all rows do."""
    padding: NDArray[np.int64] | None
    """[b], number of tokens in the KV cache that are not in the texts; None: there are none."""
    ends: NDArray[np.int64]
    """[b], number of tokens in the KV cache as the device reported it; -1 if it did not."""
    context: int
    """The sum of the known `ends`."""
    rooms: NDArray[np.int32]
    """[b], the most drafted tokens that can be accepted, by max_tokens, the context and the width of a row."""
    outcomes: NDArray[np.uint8] | Reason
    """[b], values of `Outcome`; or the reason why no row has a draft."""
    began: float
    """When the last result had arrived, by time.perf_counter()."""


class SuffixDrafter:
    """Drafts from the texts of requests, of finished outputs and of corpora.

        prefilled ──> draft, plan, launched in each step ──> finish, abort or idle

    The device idles while draft() and plan() run. Everything else about a step is put off with later() until the next
    step waits for the device. If it was done right after the launch, it would delay a prefill that the scheduler may have
    to launch.

    All ranks must verify the same trees, so the first one drafts for all. Only it uses the store.
    """

    def __init__(self, server_args: ServerArgs, model_runner: ModelRunner, *, drafts_here: bool) -> None:
        """Opens the engine, its corpora and the store, with the settings that the launcher resolved. `model_runner`: the
        target's. `drafts_here`: whether this process drafts. If not, it receives the drafts of the first rank. Raises
        ConfigError if a file or the store cannot be used."""
        model_config = model_runner.model_config
        settings = self.settings = resolve_for_process(arguments.marked_settings(server_args))
        max_width = self.max_width = arguments.verify_width(server_args)
        """The most nodes of a row, its root included."""
        self.widths = wanted_widths(server_args, settings.widths)
        """The widths to capture graphs for, if steps run in captured graphs."""
        counters = Counters()
        self.counters = counters
        self.drafts_here = drafts_here
        self._breaker = Breaker()
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
        self._traced = TracedDrafts() if drafts_here and arguments.traces_requests(server_args) else None
        self._requests = RequestCounts(arguments.tokenizer_folder(server_args), int(model_config.vocab_size))
        adapter_name = AdapterNames(partial(compat.loaded_adapters, model_runner)) if drafts_here else str
        tenants = Tenants(settings.namespace_from, namespace_key(settings), adapter_name)
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
        keep_what_plain_decoding_keeps()
        if arguments.has_token_states(model_config):
            keep_states_of_each_row()
        else:
            commit_no_states()
        self.accepted = AcceptedTokens(self.engine, lambda rows: counters.add("draft_errors", rows))
        """The tokens that forwards wrote. The worker that launches the forwards reports them."""
        # Drafts are read before the next step is drafted, so one buffer is enough.
        self._buffers = DraftBuffers(1, max_width - 1)
        self._batch: tuple[list[Req], Rows, NDArray[np.int64] | None] | None = None
        self._order: StreamOrder | None = None
        self._put_off: list[Callable[[], object]] = []
        # Requests whose texts differ from what the scheduler decodes.
        self._astray: list[Req] = []
        key = profile_key(server_args)
        self._kept_costs = KeptCosts.of(settings, server_args, key) if drafts_here else None
        self._next_keep = 0.0
        self.drafter_cost: Callable[[], StepCost | None] = lambda: None
        """The cost of a pass of the draft model, as far as it is known. Set by a worker that has one."""
        self.profile = settings.step_profile() or (self._kept_costs.load() if self._kept_costs else None)
        """The step costs of the target and its draft model: the given profile, or what an earlier server has learned."""
        self.control = WidthControl(
            settings.control_config(has_drafter=bool(compat.draft_model_path(server_args))),
            # When the controller plans a step, the draft model has already run; the policy has weighed that cost.
            self.profile and replace(self.profile, drafter=None),
            key,
            max_width=max_width,
            counters=counters,
            max_failures=MAX_FAILURES,
            profiling=settings.profiling,
            is_learned=not settings.profile,
        )
        """Decides how much of the drafts is verified."""
        self.state_metrics: StateMetrics | None = None
        if drafts_here and arguments.metrics_enabled(server_args):
            labels = metric_labels(server_args)
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
        """The drafter's part of the block `agentspec` of `/server_info`."""
        self.settle()
        stats = self.engine.stats()
        return {
            "version": agentspec.__version__,
            "dp_rank": compat.data_parallel_rank(),
            "started": self._started,
            "uptime_seconds": time.time() - self._started,
            "scope": {"model": self._scope.model, "tokenizer": self._scope.tokenizer, "id": self._scope.id},
            "metrics": self.state_metrics is not None,
            "min_token_prob": self.config.min_token_prob,
            "counters": self.counters.snapshot(),
            "rows_without_draft": self._draftless.counts.snapshot(),
            **self._requests.snapshot(),
            "control": self.control.describe(),
            "breaker": {"open": self._breaker.is_open, "openings": self._breaker.num_openings},
            "engine": {name: getattr(stats, name) for name in stats.__slots__},
            "store": self._sharing.health() if self._sharing else None,
        }

    def administer(self, command: JsonObject) -> JsonObject:
        """Answers a command of the server's administrator. Raises nothing."""
        return wire.NO_DESK if self._desk is None else self._desk.answer(command)

    def capture(self, tiers: WidthTiers) -> None:
        """Captures the graphs of all widths. Steps are then padded to those that could be captured."""
        widths = tiers.capture(self.widths)
        self.control.use_widths(widths, captured=tiers.has_graphs, widths_for=tiers.widths_for)

    def clear(self) -> None:
        """Forgets finished outputs. Those in the store stay there."""
        self.settle()
        if self._sharing:
            self._sharing.engine_cleared()
        self.engine.clear()

    def prefilled(self, requests: Sequence[Req], ends: Sequence[int], next_tokens: torch.Tensor) -> None:
        """Called after a prefill of the requests was launched, so that prompts are indexed while a GPU works.

        Args:
            requests: SGLang's `Req`, one for each row.
            ends: For each row, the number of tokens in the KV cache after the chunk.
            next_tokens: integer[b] on the device, the token that the target wrote after each chunk.
        """
        if self.drafts_here:
            self.guarded(self._prefilled, requests, np.array(ends, np.int64), next_tokens)

    def _prefilled(self, requests: Sequence[Req], ends: NDArray[np.int64], next_tokens: torch.Tensor) -> None:
        were_retracted = any(request.output_ids for request in requests)
        if were_retracted and self._order is not None:
            self._order.interrupted()
        if self.accepted.stream is None or were_retracted:
            # Tokens that were accepted before must not look like tokens that a retraction dropped.
            self.catch_up()
        padding = self._book.padding(requests)
        for request, length in zip(requests, (ends - padding).tolist(), strict=True):
            self.guarded(self._book.admit, request, length)
        rows = self._book.known_rows(requests)
        self.accepted.prefilled(requests, rows, ends, padding if padding.any() else None, next_tokens)
        # A request may have been opened again, so its row may have changed.
        self._batch = None

    def finish(self, rid: str) -> None:
        request = self._book.request(rid) if self._traced is not None else None
        if self._traced is not None and request is not None:
            # SGLang closes the request's span next.
            self.settle()
            self.guarded(self._traced.end, request)
        self.guarded(self._book.finish, rid)

    def abort(self, rid_prefix: str, everything: bool) -> None:
        self.guarded(self._book.abort, rid_prefix, everything)

    def dropped(self, request: Req) -> None:
        self.guarded(self._book.drop, request)

    def in_stream_order(
        self, staging: VerifyStaging, runner: ModelRunner, backends: Sequence[object], *, may: bool
    ) -> tuple[StreamOrder | None, Ranks | None]:
        """Prepares steps that run in stream order. All ranks call this together.

        Args:
            staging: Their memory.
            runner: The target's.
            backends: The attention backends of the steps. One that needs the lengths of texts on the host must wait.
            may: Whether this rank's worker can run such steps.

        Returns:
            What launches the host's part of steps, on the rank that drafts; and the ranks that run such steps together,
            or None if the device, an attention backend, the controller or a worker cannot run them.
        """
        device, group = torch.device(runner.device), compat.tensor_parallel_group()
        can = may and self.settings.stream_order != "off"
        can = can and self.control.plans_ahead is not None and not self.control.is_fixed
        can = can and not any(
            getattr(backend, "needs_cpu_seq_lens", True) for backend in backends if backend is not None
        )
        launch = launcher(device) if can and self.drafts_here else None
        can = can and (not self.drafts_here or (launch is not None and works(launch, device)))
        if group is not None:
            can = all(group.all_gather_object(can))
        if not can:
            return None, None
        ranks = Ranks(group, staging, device)
        if launch is None:
            return None, ranks
        self._order = StreamOrder(
            launch,
            device,
            self.engine.native,
            self.control,
            self.accepted,
            staging,
            max_rows=len(runner.req_to_token_pool.req_to_token),
            max_width=self.max_width,
            failed=self.failed,
        )
        return self._order, ranks

    @property
    def may_draft_now(self) -> bool:
        """Whether drafting is allowed, after failures."""
        return self._breaker.allow()

    def verified_ahead(self, step: AheadStep, num_accepted: Sequence[int]) -> bool:
        """Counts a step in stream order whose result was processed, and learns from it if there is time. To be put off with
        later(). Returns whether it has learnt.

        `num_accepted`: the number of accepted tokens of each row, bonus tokens not counted.
        """
        native = step.native
        if native.error:
            logger.error("agentspec could not draft in stream order; the step verified roots only: %s", native.error)
            self.counters.add("draft_errors", 1)
            self._breaker.failed()
        else:
            self._breaker.succeeded()
        if native.num_lost:
            self.counters.add("draft_errors", native.num_lost)
        self.counters.add("verified_tokens", step.planned.num_tokens)
        self.counters.add("drafting_seconds", native.seconds)
        step.planned.plan = step.plan()
        learns = self.control.learns()
        self.control.observe(step.planned, num_accepted, learns=learns)
        had_draft = step.first_sources > 0
        if not step.unites:
            drafted = DraftedStep(step.first_sources, step.num_nodes)
            drafted.count_drafted(self.counters)
            self.accepted_of(step.requests, drafted, num_accepted)
        self.drafted(step.requests, step.outcomes, had_draft, had_draft)
        return learns

    def accepted_of(self, requests: Sequence[Req], drafted: DraftedStep, num_accepted: Sequence[int]) -> None:
        """Counts the accepted tokens of a step whose result was processed, bonus tokens not counted."""
        drafted.count_accepted(self.counters, num_accepted)
        if self._traced is not None:
            self._traced.add(requests, drafted, num_accepted)

    def idle(self) -> None:
        """Called when the scheduler is idle. Closes the requests that ended in its last batch; no later step would."""
        self.settle()
        self.guarded(self._book.reap, ())
        self.guarded(self._keep_costs)

    def later(self, call: Callable[..., object], *args: object) -> None:
        """Puts off a call that the next launch does not need. Calls keep their order. A failure is counted and raises
        nothing."""
        self._put_off.append(partial(self.guarded, call, *args))

    def settle(self) -> None:
        """Runs the calls that were put off. Called while the device works, and before anything is drafted."""
        calls, self._put_off = self._put_off, []
        for call in calls:
            call()
        if self._kept_costs is not None and time.monotonic() >= self._next_keep:
            self.guarded(self._keep_costs)

    def _keep_costs(self) -> None:
        """Keeps the step costs that were learned, if there is news."""
        kept, steps = self._kept_costs, self.control.num_timed
        self._next_keep = time.monotonic() + _KEEP_SECONDS
        if kept is None or not kept.is_due(steps):
            return
        profile = self.control.learned()
        if profile is not None:
            kept.keep(replace(profile, drafter=self.drafter_cost()), steps)

    def catch_up(self) -> None:
        """Appends what all forwards so far have written to the texts. Waits for the device."""
        if self.accepted.stream is not None:
            # Steps in stream order append what they have taken.
            self.accepted.stream.synchronize()
        self.accepted.catch_up()

    def begin(self, requests: list[Req]) -> tuple[Rows, NDArray[np.int64] | None]:
        """Does everything for a step that does not depend on the accepted tokens. `requests`: SGLang's `Req`, one for
        each of b rows. Returns the engine's rows, and the number of tokens in each row's KV cache that are not in its
        text, int64[b], or None if all are."""
        self.guarded(self._book.reap, requests)
        if self._astray:
            self._call_back()
        self.guarded(self._release)
        return self._rows_of(requests)

    def draft(self, requests: list[Req]) -> SuffixStep:
        """Waits for the tokens that the device has written, appends them to the texts, and drafts a tree for each row.
        `requests`: SGLang's `Req`, one for each row.

        Raises:
            Exception: The texts cannot be followed. The caller then verifies roots only.
        """
        # The device works meanwhile.
        self.settle()
        rows, padding = self.begin(requests)
        b = len(requests)
        buffers = self._buffers_for(b)
        most = self.control.most_width(b) - 1
        self.accepted.wait()
        began = time.perf_counter()
        self.catch_up()
        outcomes: NDArray[np.uint8] | Reason = "breaker"
        drafts = None
        if self._breaker.allow():
            try:
                drafts = self.engine.draft_followed(rows, padding=padding, max_tokens=most, out=buffers)
                outcomes = buffers.outcomes[:b]
                self._breaker.succeeded()
            except Exception:
                outcomes = "failed"
                self.failed("agentspec could not draft; this step verifies roots only")
        if drafts is None:
            drafts = self.engine.draft_followed(rows, padding=padding, max_tokens=0, out=buffers)
        ends = buffers.ends[:b]
        context = int(np.maximum(ends, 0).sum())
        return SuffixStep(requests, rows, drafts, padding, ends, context, buffers.rooms[:b], outcomes, began)

    def nothing(self, requests: list[Req]) -> SuffixStep:
        """A step without drafts, for use after draft() or a later part of the step failed. The texts go on growing."""
        b, began = len(requests), time.perf_counter()
        ends, padding = np.full(b, -1, np.int64), None
        try:
            rows, padding = self._rows_of(requests)
            buffers = self._buffers_for(b)
            self.engine.draft_followed(rows, padding=padding, max_tokens=0, out=buffers)
            ends = buffers.ends[:b]
        except Exception:
            # Nothing is known of any row.
            rows = self.engine.rows([""] * b)
        drafts, rooms = roots_only(np.zeros(b, np.int32)), np.zeros(b, np.int32)
        context = int(np.maximum(ends, 0).sum())
        return SuffixStep(requests, rows, drafts, padding, ends, context, rooms, "failed", began)

    def launched(self, step: SuffixStep, verified: NDArray[np.bool_]) -> None:
        """Counts the rows without a draft in a step whose verification was launched, and learns. To be put off with
        later(). `step`: the latest result of draft(). `verified`: bool[b], whether a drafted token of the row is
        verified."""
        self.engine.learn(step.rows)
        offsets = step.drafts.offsets
        self.drafted(step.requests, step.outcomes, (offsets[1:] - offsets[:-1]) > 1, verified)

    def drafted(
        self,
        requests: list[Req],
        outcomes: NDArray[np.uint8] | Reason,
        had_draft: NDArray[np.bool_],
        verified: NDArray[np.bool_],
    ) -> None:
        """Counts the rows without a draft, and notes the rows whose texts differ from the scheduler's.

        Args:
            requests: SGLang's `Req`, one for each of b rows.
            outcomes: As in SuffixStep.
            had_draft: bool[b], whether the row had a draft.
            verified: bool[b], whether a drafted token of the row was verified.
        """
        self._draftless.count(outcomes, had_draft, verified, lambda row, outcome: self._reason(requests[row], outcome))
        if not isinstance(outcomes, str):
            for row in np.flatnonzero(outcomes == Outcome.OTHER_TEXT).tolist():
                self._astray.append(requests[row])

    def _reason(self, request: Req, outcome: Outcome) -> Reason | None:
        if outcome is Outcome.NO_MATCH:
            return "no_match_at_start" if len(request.output_ids) < START_TOKENS else None
        if (reason := self._book.undrafted(request.rid)) is not None:
            return reason
        # A request that has ended runs for one more step, whose output nobody reads.
        return "no_room" if outcome is Outcome.NOT_OPEN and request.finished() else None

    def _call_back(self) -> None:
        astray, self._astray = self._astray, []
        self._batch = None
        for request in astray:
            if request.finished():
                continue
            self.counters.add("draft_errors", 1)
            logger.error(
                "agentspec does not draft for a row, because its copy of the text differs from the scheduler's"
            )
            self.guarded(self._book.reopen, request)
        self.accepted.find_again(self._book.known_rows)

    def _release(self) -> None:
        if self._book.release(self.accepted.will_tell):
            self._batch = None
            self.accepted.find_again(self._book.known_rows)

    def _rows_of(self, requests: list[Req]) -> tuple[Rows, NDArray[np.int64] | None]:
        """RequestBook.rows(), looked up once for all steps of the same batch."""
        if self._batch is None or self._batch[0] != requests:
            self._batch = (list(requests), *self._book.rows(requests))
        return self._batch[1], self._batch[2]

    def _buffers_for(self, rows: int) -> DraftBuffers:
        if rows > self._buffers.max_rows:
            self._buffers = DraftBuffers(1 << (rows - 1).bit_length(), self.max_width - 1)
        return self._buffers

    @property
    def some_may_not_draft(self) -> bool:
        """Whether may_draft() is False for at least one open request."""
        return self._book.num_without_drafts > 0

    def may_draft(self, rid: str) -> bool:
        """False if the request must not have drafts now, neither from suffixes nor from a draft model."""
        return self._book.undrafted(rid) is None

    def failed(self, message: str) -> None:
        """Logs and counts a failure of drafting. Call it in an exception handler. Some in a row pause drafting."""
        logger.exception(message)
        self.counters.add("draft_errors", 1)
        self._breaker.failed()

    def guarded(self, call: Callable[..., object], *args: object) -> None:
        """Calls `call(*args)`. Logs and counts its exceptions, because bookkeeping must never stop the scheduler."""
        try:
            call(*args)
        except Exception:
            logger.exception("agentspec could not follow a request; this costs drafts but does not change outputs")
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
