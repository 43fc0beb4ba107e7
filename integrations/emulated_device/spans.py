"""The table of functions that belong to each part of a step, the only table of names in the emulation.

A name that does not exist is reported and otherwise ignored. A function outside the table counts as the scheduler's.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from typing import Any

from agentspec.integrations.emulated_device.device.trace import NO_REQUESTS
from agentspec.integrations.emulated_device.device.work import Work

_OURS = "agentspec.integrations.sglang"
_THEIRS = "sglang.srt"
SPANS: dict[str, str] = {
    f"{_OURS}.drafting.accepted_tokens.AcceptedTokens.wait": "reading",
    f"{_OURS}.drafting.draft_model.LaunchedTrees.wait": "reading",
    f"{_OURS}.drafting.suffix_drafter.SuffixDrafter.draft": "drafting",
    f"{_OURS}.drafting.accepted_tokens.AcceptedTokens.catch_up": "growing",
    f"{_OURS}.workers.hybrid._Hybrid._choose": "planning",
    f"{_OURS}.workers.hybrid._Hybrid._united": "drafting",
    f"{_OURS}.stream_order.steps.StreamOrder.launch": "drafting",
    f"{_OURS}.drafting.suffix_drafter.SuffixDrafter.settle": "planning",
    f"{_OURS}.widths.control.WidthControl.plan": "planning",
    f"{_OURS}.drafting.verify_input.VerifyStaging.build": "staging",
    f"{_OURS}.drafting.verify_input.VerifyStaging.tensors": "staging",
    f"{_OURS}.drafting.verify_input.VerifyStaging.laid_out": "staging",
    f"{_OURS}.drafting.verify_input.VerifyStaging.unite": "staging",
    f"{_THEIRS}.managers.overlap_utils.FutureMap.resolve_seq_lens_cpu": "reading",
    f"{_THEIRS}.speculative.ngram_worker.NGRAMWorker._prepare_draft_tokens": "drafting",
    f"{_THEIRS}.speculative.ngram_worker.NGRAMWorker._update_ngram_corpus": "growing",
    f"{_THEIRS}.speculative.eagle_worker_v2.EagleDraftWorker.draft": "drafting",
    f"{_THEIRS}.managers.schedule_batch.ScheduleBatch.prepare_for_extend": "prefill",
    f"{_THEIRS}.managers.scheduler.Scheduler.get_new_batch_prefill": "prefill",
}
NATIVE: tuple[str, ...] = (
    f"{_THEIRS}.speculative.cpp_ngram.ngram_corpus.NgramCorpus.batch_get",
    f"{_THEIRS}.speculative.cpp_ngram.ngram_corpus.NgramCorpus.batch_put",
    f"{_THEIRS}.speculative.cpp_ngram.ngram_corpus.NgramCorpus.synchronize",
    f"{_THEIRS}.speculative.cpp_ngram.ngram_corpus.NgramCorpus.erase_match_state",
)
_NATIVE_MODULE = "agentspec._core"
"""A module whose functions all count as native code."""

_SECONDS = ("python_seconds", "native_seconds", "launch_seconds", "wait_seconds")
_COUNTED = ("host_reads", "eager_ops", "h2d_copies", "blocking_h2d_copies", "d2h_copies", "graphs", "tokens")


class Steps:
    """Host seconds of decode steps: from the call of the speculative worker until it has launched all of the step."""

    def __init__(self, work: Work) -> None:
        self._work = work
        self._inside_native = 0
        self._native = 0.0
        self.python_seconds = 0.0
        """Includes host torch calls and views; excludes launches, waits and native code."""
        self.native_seconds = 0.0
        self.launch_seconds = 0.0
        self.wait_seconds = 0.0
        self.by_rows: dict[int, dict[str, float]] = {}
        """Sums by number of rows, over steps that directly followed a step with the same number of rows."""
        self._last_rows = 0
        self._last: dict[str, float] = {}

    def as_native(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Wraps the function so that its time counts as native."""

        @functools.wraps(function)
        def native(*args: Any, **kwargs: Any) -> Any:
            if self._inside_native:
                return function(*args, **kwargs)
            self._inside_native += 1
            started = self._work.clock.now()
            try:
                return function(*args, **kwargs)
            finally:
                self._native += self._work.clock.now() - started
                self._inside_native -= 1

        return native

    def as_step(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Wraps a worker's `forward_batch_generation` so that its decode steps are measured."""
        work = self._work

        @functools.wraps(function)
        def step(worker: Any, batch: Any, *args: Any, **kwargs: Any) -> Any:
            if batch is None or not batch.forward_mode.is_decode():
                self._last_rows = 0
                work.timeline.enter("prefill")
                try:
                    return function(worker, batch, *args, **kwargs)
                finally:
                    work.timeline.leave()
            clock, device = work.clock, work.device
            before = clock.now(), clock.launching, device.waited, self._native
            result = function(worker, batch, *args, **kwargs)
            took, launching, waited, native = (
                now - then
                for now, then in zip((clock.now(), clock.launching, device.waited, self._native), before, strict=True)
            )
            self.python_seconds += took - launching - waited - native
            self.native_seconds += native
            self.launch_seconds += launching
            self.wait_seconds += waited
            work.counts.steps += 1
            self._ended(len(batch.reqs))
            return result

        return step

    def _ended(self, rows: int) -> None:
        """Notes that a step of `rows` rows was launched, and assigns to it all that happened since the step before."""
        work, timeline = self._work, self._work.timeline
        sums = {
            "steps": float(work.counts.steps),
            **{name: float(getattr(work.counts, name)) for name in _COUNTED},
            **{name: getattr(self, name) for name in _SECONDS},
            "busy_seconds": timeline.busy,
            "idle_seconds": sum(timeline.idle_of.values()) - timeline.idle_of.get(NO_REQUESTS, 0.0),
            "seconds": work.clock.now(),
        }
        if rows == self._last_rows:
            found = self.by_rows.setdefault(rows, dict.fromkeys(sums, 0.0))
            for name, value in sums.items():
                found[name] += value - self._last[name]
        self._last_rows, self._last = rows, sums

    def totals(self) -> dict[str, float]:
        """Mean seconds of a step over all decode steps so far."""
        steps = max(self._work.counts.steps, 1)
        return {f"step_{name}": getattr(self, name) / steps for name in _SECONDS}


def wrap_spans(work: Work, steps: Steps, worker: Any) -> list[str]:
    """Wraps the functions of the tables and the step of the scheduler's `worker`. Returns the missing names."""
    missing = []
    for path, category in SPANS.items():
        if not _replace(path, functools.partial(_spanned, work, category)):
            missing.append(path)
    for path in NATIVE:
        if not _replace(path, steps.as_native):
            missing.append(path)
    _wrap_native_module(steps)
    worker.forward_batch_generation = functools.partial(steps.as_step(type(worker).forward_batch_generation), worker)
    return missing


def _spanned(work: Work, category: str, function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def spanned(*args: Any, **kwargs: Any) -> Any:
        work.timeline.enter(category)
        try:
            return function(*args, **kwargs)
        finally:
            work.timeline.leave()

    return spanned


def _replace(path: str, wrap: Callable[[Callable[..., Any]], Callable[..., Any]]) -> bool:
    """Replaces a function or method by wrap(function). Returns False if the name does not exist."""
    parts = path.split(".")
    for count in range(len(parts) - 1, 0, -1):
        try:
            owner: Any = importlib.import_module(".".join(parts[:count]))
        except ImportError:
            continue
        for name in parts[count:-1]:
            owner = getattr(owner, name, None)
        function = getattr(owner, parts[-1], None)
        if owner is None or function is None:
            return False
        setattr(owner, parts[-1], wrap(function))
        return True
    return False


def _wrap_native_module(steps: Steps) -> None:
    module = importlib.import_module(_NATIVE_MODULE)
    for owner in (module, *(value for value in vars(module).values() if isinstance(value, type))):
        for name, value in list(vars(owner).items()):
            if callable(value) and not isinstance(value, type) and not name.startswith("__"):
                # Enumerations and the like refuse new attributes.
                try:
                    setattr(owner, name, steps.as_native(value))
                except (AttributeError, TypeError):
                    continue
