"""Decode steps whose host part runs in the order of a device's stream, so that the scheduler's thread never waits.

    main stream    verify t ─┬─ draft-extend t ─ passes t + 1 ─────────────┬─ verify t + 1
                             │                                            │
    side stream              └─ accepted tokens ─ DraftingStep ─ drafts ──┘

The scheduler's thread launches all of this ahead of time. The native DraftingStep appends the accepted tokens to the
texts, drafts, cuts the drafts to the width of its step, and packs them. It also plans the width, and whether the draft
model's passes run, of a later step: at the launch of a step, the latest plan is taken that is there by then.

A step belongs to its DraftingStep from its launch until the device has verified it. Then the scheduler processes the
result, and settle() counts the step and learns from it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from agentspec import _core
from agentspec._core import Rows
from agentspec.integrations.sglang.drafting.accepted_tokens import AcceptedTokens, ReadBack
from agentspec.integrations.sglang.drafting.device_clock import DeviceEvent
from agentspec.integrations.sglang.drafting.verify_input import PARTS, VerifyStaging
from agentspec.integrations.sglang.sglang_types import Req
from agentspec.integrations.sglang.stream_order.host_functions import Launch
from agentspec.integrations.sglang.widths.control import PlannedStep, WidthControl
from agentspec.scheduling import StepPlan
from agentspec.scheduling.goodput import REASONS
from agentspec.scheduling.hybrid import ModelNumbers, NextStep, Speedup, counted

_ALONE_FORGETTING = 0.995
"""What a step counts one step later, as in the rule that pauses the draft model."""


@dataclass(slots=True, eq=False)
class AheadStep:
    """A step from its launch until the scheduler has processed its result. Its arrays are valid as long."""

    native: _core.DraftingStep
    event: DeviceEvent
    """Done when the drafts are on the device."""
    requests: list[Req]
    rows: Rows
    padding: NDArray[np.int64] | None
    width: int
    planned: PlannedStep
    model: ModelNumbers | None
    unites: bool
    predicted_seconds: float
    """Of the verification."""
    seconds: float
    """Predicted of the whole step."""
    plain_seconds: float
    """Predicted of a whole step that decodes plainly."""
    num_nodes: NDArray[np.int32]
    """[b], the most drafted nodes that are verified; fewer if the device unites drafts."""
    first_sources: NDArray[np.uint8]
    """[b], `Source` of the likeliest node of each row's suffix draft."""
    outcomes: NDArray[np.uint8]
    """[b], values of `Outcome`."""
    ends: NDArray[np.int64]
    """[b], number of tokens in the KV cache; -1 if unknown."""
    estimated: NDArray[np.float64]
    """[width - 1], sums of the estimates of each column's verified nodes."""
    sizes: NDArray[np.int64]
    """[width - 1], number of these nodes."""
    reason: int = 3
    read: ReadBack | None = None
    report: torch.Tensor | None = None

    @property
    def is_done(self) -> bool:
        """Whether the native part has run, in the order of the device."""
        return self.native.is_done and self.event.query()

    @property
    def next(self) -> NextStep:
        return NextStep(*self.native.next)

    def plan(self) -> StepPlan:
        """What was verified, for the controller. Only for a step that is done."""
        rows = len(self.requests)
        return StepPlan(
            self.width,
            self.num_nodes,
            rows + self.native.expected,
            self.predicted_seconds,
            REASONS[self.reason],
            self.estimated,
            self.sizes,
            self.unites,
        )


@dataclass(frozen=True, slots=True)
class _Memory:
    """The memory of every third step."""

    native: _core.DraftingStep
    event: DeviceEvent
    num_nodes: NDArray[np.int32]
    first_sources: NDArray[np.uint8]
    outcomes: NDArray[np.uint8]
    ends: NDArray[np.int64]
    rooms: NDArray[np.int32]
    estimated: NDArray[np.float64]
    sizes: NDArray[np.int64]


class StreamOrder:
    """Launches the host's part of steps. Owned by a worker, on the scheduler's thread."""

    def __init__(
        self,
        launch: Launch,
        device: torch.device | str,
        engine: _core.Engine,
        control: WidthControl,
        accepted: AcceptedTokens,
        staging: VerifyStaging,
        *,
        max_rows: int,
        max_width: int,
        failed: Callable[[str], object],
    ) -> None:
        """From now on, tokens that forwards write are copied to the host on a stream of their own.

        Args:
            launch: Queues a native call on the current stream of the device.
            staging: The memory of the steps' trees.
            max_rows, max_width: Those of the staging.
            failed: Called with a message in the handler of an exception that costs a step time or drafts.
        """
        controller = control.plans_ahead
        assert controller is not None
        self._launch = launch
        self._failed = failed
        self._module: Any = torch.get_device_module(device)
        self._control = control
        self._accepted = accepted
        self._staging = staging
        self._max_width = max_width
        self.stream: Any = self._module.Stream()
        accepted.stream = self.stream
        with_model = control.goodput()
        self._memories = []
        for index in range(PARTS):
            trees, packed = staging.memory(index)
            arrays = (
                np.zeros(max_rows, np.int32), np.zeros(max_rows, np.uint8), np.zeros(max_rows, np.uint8),
                np.zeros(max_rows, np.int64), np.zeros(max_rows, np.int32), np.zeros(max_width - 1),
                np.zeros(max_width - 1, np.int64),
            )  # fmt: skip
            num_nodes, first_sources, outcomes, ends, rooms, estimated, sizes = arrays
            native = _core.DraftingStep(
                engine=engine,
                suffix_only=controller.native,
                with_model=with_model,
                max_rows=max_rows,
                max_width=max_width,
                max_drafted=max_width - 1,
                trees=trees,
                packed=packed,
                num_nodes=num_nodes,
                first_sources=first_sources,
                outcomes=outcomes,
                ends=ends,
                rooms=rooms,
                estimated=estimated,
                sizes=sizes,
            )
            self._memories.append(_Memory(native, self._module.Event(), *arrays))
        self.speedup = Speedup()
        self.alone = Speedup(_ALONE_FORGETTING)
        """Of what suffix drafts alone would have brought."""
        self._latest: list[AheadStep] = []
        self._plan: NextStep | None = None
        self._chosen: NextStep | None = None
        # Upper bounds on the tokens in the KV cache, over all rows of the latest step and in one row.
        self._context = 0
        self.lengths: NDArray[np.int64] = np.zeros(0, np.int64)
        """int64[b], number of tokens of each text when the requests became a batch, for the latest batch."""
        self.longest = 0
        """The most tokens in the KV cache of a row of the latest launched step, at most."""

    def plan(self, requests: list[Req]) -> NextStep | None:
        """The latest plan that is there for a step of these requests; None before the first. width() and launch() follow
        the plan of the last call."""
        for step in reversed(self._latest):
            if not step.is_done:
                continue
            plan = step.next
            if REASONS[plan.reason] != "nothing-drafted":
                self._plan = self._chosen = plan
            elif step.requests == requests:
                # The last step of a request drafts nothing. That says nothing of the requests that come after it.
                self._plan = plan
            break
        return self._plan

    def interrupted(self) -> None:
        """Forgets what is known of the lengths of texts. Called before a step that waits for its drafts, and before the prefill
        of a retracted request, which also puts the request's last token into the KV cache."""
        self._latest = []

    def bound(self, requests: list[Req]) -> int:
        """An upper bound on the number of tokens in the KV cache over all rows of a batch, before its next step."""
        rows, last = len(requests), self._latest[-1] if self._latest else None
        if last is not None and last.requests == requests:
            grown = rows * last.width
            known = next((step for step in reversed(self._latest) if step.requests == requests and step.is_done), None)
            context, longest = self._context + grown, self.longest + last.width
            if known is not None and known.ends.min() >= 0:
                since = sum(step.width for step in self._latest[self._latest.index(known) :])
                context = min(context, known.native.context + rows * since)
                longest = min(longest, known.native.longest + since)
            self._context, self.longest = context, longest
        else:
            # The scheduler has not processed the results of up to two steps.
            lengths = [len(request.origin_input_ids) + len(request.output_ids) for request in requests]
            self._context = sum(lengths) + 2 * rows * self._max_width
            self.longest = max(lengths) + 2 * self._max_width
            self.lengths = np.array(lengths, np.int64)
        return self._context

    def width(self, rows: int, least: int = 1) -> int:
        """The width of a step of `rows` rows by the plan, with at least `least` nodes a row if that is possible."""
        return self._control.padded(rows, max(least, 1 if self._plan is None else self._plan.width))

    def launch(
        self,
        requests: list[Req],
        rows: Rows,
        padding: NDArray[np.int64] | None,
        context: int,
        width: int,
        *,
        may_draft: bool,
        unites: bool = False,
        model: Callable[[NDArray[np.int64], NDArray[np.float64]], ModelNumbers] | None = None,
        extends: bool = False,
    ) -> AheadStep:
        """Launches the host's part of a step of b rows, and the copy of its drafts to the device.

        If the driver refuses the launch, the calling thread waits for the accepted tokens and drafts itself.

        Args:
            requests: SGLang's `Req`, one for each row.
            rows: The engine's rows of these requests.
            padding: int64[b], number of tokens in the KV cache that are not in the texts; None: there are none.
            context: What bound() gave.
            width: What width() gave.
            may_draft: Whether suffix drafts are made.
            unites: Whether the device unites the drafts with the draft model's trees.
            model: Called with the widths that the next step may have, int64[w], and the seconds of a verification of
                each, float64[w]. None without a draft model.
            extends: Whether the draft model reads the tokens that the step accepts.

        Raises:
            ConfigError: The step is larger than the memory.
        """
        b, control, plan = len(requests), self._control, self._plan
        widths = control.candidates(b)
        seconds = control.seconds(b, widths, context)
        numbers = None if model is None else model(widths, seconds)
        memory = self._memories[self._staging.ahead()]
        memory.native.prepare(
            written=self._accepted.take(),
            rows=rows,
            padding=padding,
            max_tokens=int(widths[-1]) - 1 if may_draft else 0,
            width=width,
            unites=unites,
            suffixes=numbers is None or not numbers.alone,
            numbers=control.planning_numbers(
                widths, seconds, numbers, self.speedup.value, self.alone.value, extends=extends
            ),
        )
        with self._module.stream(self.stream):
            try:
                self._launch(memory.native)
            except Exception:
                self._failed("agentspec could not launch drafts in stream order; this step waits for them")
                self.stream.synchronize()
                memory.native.run()
            if unites:
                self._staging.copy_packed(b, width)
            else:
                self._staging.copy_trees(b, width)
            memory.event.record(self.stream)
        predicted = float(seconds[min(int(widths.searchsorted(width)), len(widths) - 1)])
        passes = 0.0 if numbers is None or not unites else float(numbers.seconds[0] - numbers.extend[0] - seconds[0])
        step = AheadStep(
            memory.native,
            memory.event,
            requests,
            rows,
            padding,
            width,
            control.launched_ahead(b, width, context),
            numbers,
            unites,
            predicted,
            control.whole(predicted + passes, passes=unites, extends=extends),
            control.whole(float(seconds[0]), passes=False, extends=extends),
            memory.num_nodes[:b],
            memory.first_sources[:b],
            memory.outcomes[:b],
            memory.ends[:b],
            memory.estimated[: width - 1],
            memory.sizes[: width - 1],
            3 if plan is None else plan.reason,
        )
        self._latest = [*self._latest[-(PARTS - 2) :], step]
        return step

    def describe(self) -> dict[str, object]:
        """The latest plan that had drafts to choose from, with the numbers that made it: expected tokens and milliseconds
        of a step with suffix drafts alone, and of one with the draft model's passes; and how much faster than plain
        decoding the latest steps were."""
        latest = self.plan([])
        plan = self._chosen or latest
        shown = {} if plan is None else {
            "passes": plan.passes,
            "width": plan.width,
            "reason": REASONS[plan.reason],
            "tokens": plan.tokens,
            "ms": plan.seconds * 1e3,
            "tokens_with_model": plan.tokens_with_model,
            "ms_with_model": plan.seconds_with_model * 1e3,
        }  # fmt: skip
        return {"speedup": self.speedup.value, "plan": shown}

    def observe(self, step: AheadStep, num_accepted: Sequence[int], extend: float = 0.0) -> None:
        """Learns what a step has brought, and what suffix drafts alone would bring in the next one.

        Args:
            num_accepted: Accepted tokens of each row, bonus tokens not counted.
            extend: Seconds by which a step is longer because the draft model reads the accepted tokens.
        """
        rows, plan = len(num_accepted), step.next
        self.speedup.observe(rows + sum(num_accepted), rows * step.seconds / step.plain_seconds)
        if step.model is not None and (alone := plan.seconds - extend) > 0.0:
            self.alone.observe(plan.tokens, rows * alone / step.plain_seconds, counted(rows))

    def join(self, step: AheadStep) -> None:
        """Lets the current stream wait for the step's drafts."""
        stream: Any = self._module.current_stream()
        stream.wait_event(step.event)
