"""Decides how much each decode step verifies: the controller of a server, its plans, and what the steps observed."""

from __future__ import annotations

import logging
import os
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from importlib import metadata

import numpy as np
import torch
from numpy.typing import NDArray

from agentspec import _core
from agentspec.drafts import DraftBatch
from agentspec.environment import processor
from agentspec.integrations.sglang import arguments
from agentspec.integrations.sglang.drafting.breaker import Breaker
from agentspec.integrations.sglang.drafting.device_clock import Start
from agentspec.integrations.sglang.metrics import ControlMetrics, Counters
from agentspec.integrations.sglang.sglang_types import ScheduleBatch, ServerArgs
from agentspec.integrations.sglang.widths.device_peaks import measured_peaks
from agentspec.integrations.sglang.widths.step_rest import StepRest
from agentspec.integrations.sglang.widths.tiers import padded_width
from agentspec.scheduling import (
    ControlConfig,
    Controller,
    MeasuredRange,
    Profile,
    ProfileKey,
    StepPlan,
    StepState,
    make_controller,
)
from agentspec.scheduling.columns import candidate_widths, num_drafted
from agentspec.scheduling.goodput import GoodputController, native_goodput
from agentspec.scheduling.hybrid import ModelNumbers, planning_numbers

logger = logging.getLogger("agentspec")

# Number of latest steps that a server lists while it is profiled.
_STEPS_TOLD = 1024
# From this number of rows on, the offered widths depend on the latest steps.
_MANY_ROWS = 32
_LATEST = 8
_LEAST_OFFERED = 4
_LEAST_SECONDS = 1e-5
# Where the device waits for the host, one step of this number is learnt from, once so many were timed.
_LEARN_EVERY = 4
# Tokens in the KV cache of a row by which predictions of the same batch may be off.
_SAME_CONTEXT = 64
_KNOWN_WELL = 64


@dataclass(slots=True)
class PlannedStep:
    """A step from its plan until its result is observed."""

    plan: StepPlan | None
    """None if the controller failed or had nothing to decide."""
    rows: int
    width: int
    """Number of tokens of each row, root and padding included."""
    context: int
    """Number of tokens in the KV cache over all rows."""
    is_first: bool = False
    """Whether no step had this shape before. Its kernels may have to be compiled, so its time says nothing of others."""
    seconds: float = 0.0
    """Time of the verification; 0 until it is known, and for good if the step is the first of its shape."""
    drafter_seconds: float = 0.0
    """Time spent waiting for the draft model and merging its drafts; 0 if it did not run."""
    passes_launch: float = 0.0
    """The host's time for launching the draft model's passes; 0 if they did not run, or the step waited for them."""
    extend_launch: float = 0.0
    """The host's time for launching the draft model's reading of the accepted tokens; 0 if it does not read them."""
    end: Start | None = None
    """When the verification ends; None until it is launched."""

    @property
    def num_tokens(self) -> int:
        """Number of tokens verified over the batch, padding included."""
        return self.rows * self.width

    def took(self, seconds: float) -> None:
        if not self.is_first:
            self.seconds = seconds


class WidthControl:
    """Cuts the drafts of a step to the part that pays. Owned by a speculative worker, on the scheduler's thread.

    A failure of the controller costs speed only: the step then verifies everything that was drafted. After repeated
    failures all steps do so for a while.
    """

    def __init__(
        self,
        config: ControlConfig,
        profile: Profile | None,
        key: ProfileKey,
        *,
        max_width: int,
        counters: Counters,
        max_failures: int,
        profiling: bool = False,
        is_learned: bool = False,
        rest: StepRest | None = None,
    ) -> None:
        """Makes the controller.

        Args:
            key: The model, the device and the engine of this server.
            max_width: The most tokens of a row. Steps may have any width up to it, until use_widths() is called.
            profiling: Pad steps to the controller's width and list the latest steps.
            is_learned: Whether the profile is what an earlier server has learned. It is then dropped if the graphs of
                this server turn out to be others.
            rest: What is known of the other parts of a step; None: nothing yet.

        Raises:
            ConfigError: The profile was measured for another key, or lacks what the controller needs.
        """
        # use_widths() later says whether there are graphs.
        known = key if profile is None else replace(key, graphs=profile.key.graphs)
        self.controller: Controller = make_controller(config, profile, known)
        self._config = config
        self._profile = profile
        self._is_learned = is_learned
        self._seen = profile.measured if profile is not None else None
        self._max_width = max_width
        self.widths: tuple[int, ...] = ()
        self._widths_for: Callable[[int], tuple[int, ...]] = lambda rows: ()
        self._latest_widths: deque[int] = deque(maxlen=_LATEST)
        self._counters = counters
        self._breaker = Breaker(max_failures)
        self._last: PlannedStep | None = None
        self._metrics: ControlMetrics | None = None
        self._record = ControlRecord()
        self._rest = rest or StepRest()
        # Steps that were observed since the latest one that was learnt from.
        self._unlearnt = 0
        # What seconds() gave last, and for what.
        self._predicted: tuple[tuple[int, int, int, int], NDArray[np.float64]] | None = None
        self._key = key
        self._profiling = profiling
        self._peaks: dict[str, float] = {}
        self._num_steps = 0
        self._steps: deque[tuple[int, int, int, float]] = deque(maxlen=_STEPS_TOLD)
        # The shapes of earlier steps, with numbers of rows rounded up as kernels are compiled.
        self._shapes: set[tuple[int, int]] = set()
        # (rows, width, seconds of the whole step, generated tokens) of each step whose times are known.
        self._num_yields = 0
        self._yields: deque[tuple[int, int, float, int]] = deque(maxlen=_STEPS_TOLD)
        self._num_drafts = 0
        self._drafts: deque[tuple[int, int, int, float]] = deque(maxlen=_STEPS_TOLD)
        # Of each row for which the draft model drafted: its tokens' probabilities, and how many of them were accepted.
        self._num_chains = 0
        self._chains: deque[tuple[list[float], int]] = deque(maxlen=_STEPS_TOLD)

    def use_widths(
        self,
        widths: tuple[int, ...],
        *,
        captured: bool,
        widths_for: Callable[[int], tuple[int, ...]] | None = None,
    ) -> None:
        """Sets the widths that steps are padded to. Call it before the first step.

        Args:
            widths: Ascending to `max_width`; () allows any width. If `max_width` is the only one, cutting drafts would
                save nothing, so none are cut.
            captured: Whether steps run in captured graphs.
            widths_for: The widths that a step may have, by its number of rows; None allows all of `widths`.

        Raises:
            ConfigError: The profile was measured with captured graphs and there are none, or vice versa.
        """
        self.widths = widths
        self._widths_for = widths_for or (lambda rows: widths)
        self._key = replace(self._key, graphs="captured" if captured else "none")
        if self._profile is None or self._profile.key == self._key:
            return
        if not self._is_learned:
            self._profile.require(self._key)
        # Steps without graphs take other times than those that an earlier server learned with graphs.
        self._profile = None
        self.controller = make_controller(self._config, None)

    def measure_peaks(self, device: str, dtype: torch.dtype, hidden_size: int) -> None:
        """Measures the device's peak figures for `agentspec profile`. Call it before the first step."""
        peaks = measured_peaks(torch.device(device), dtype)
        self._peaks = {"peak_flops": peaks.flops, "peak_bandwidth": peaks.bandwidth, "hidden_size": hidden_size}

    def export(self, labels: dict[str, str]) -> None:
        """Registers the controller's metrics with Prometheus."""
        self._metrics = ControlMetrics(labels)

    def describe(self) -> dict[str, object]:
        """The block `control` of `/server_info`: the controller's state, the last step's plan, and sums over steps."""
        last = self._last
        shown = {} if last is None or last.plan is None else {
            "width": last.plan.width,
            "budget": int(last.plan.num_nodes.sum()),
            "reason": last.plan.reason,
            "predicted_ms": last.plan.seconds * 1e3,
            "observed_ms": last.seconds * 1e3,
            "predicted_tokens": last.plan.expected_tokens,
        }  # fmt: skip
        told: dict[str, object] = {}
        if self._profiling:
            told = {
                "num_steps": self._num_steps,
                "steps": list(self._steps),
                "num_drafts": self._num_drafts,
                "drafts": list(self._drafts),
                "num_yields": self._num_yields,
                "yields": list(self._yields),
                "num_chains": self._num_chains,
                "chains": list(self._chains),
                **self._peaks,
                "profile_key": asdict(self._key),
            }
        rest = {
            "rest_ms": self.rest * 1e3,
            "host_ms": self._rest.host.describe(),
            "costs_from": self._profile.note or "a profile" if self._profile else "steps",
        }
        return {
            **self.controller.describe(),
            "widths_captured": list(self.widths),
            **rest,
            "last_step": shown,
            **self._record.snapshot(),
            **told,
        }

    @property
    def is_fixed(self) -> bool:
        """Whether every step is as wide as possible."""
        return self.widths == (self._max_width,)

    @property
    def rest(self) -> float:
        """Seconds of a step besides its verification and the draft model, see StepRest."""
        return self._rest.seconds

    def whole(self, seconds: float, *, passes: bool, extends: bool) -> float:
        """Predicted seconds of a whole step in stream order.

        Args:
            seconds: Of the device besides `rest`.
            passes, extends: As in HostTime.least().
        """
        return max(self.rest + seconds, self._rest.least(passes=passes, extends=extends))

    def step_begins(self, requests: Sequence[object]) -> None:
        """Call it at the beginning of a decode step of these requests, before plan()."""
        self._rest.begin(time.perf_counter(), requests)

    def verifies(self, step: PlannedStep, end: Start, *, in_order: bool) -> None:
        """Call it when the step's verification was launched.

        Args:
            end: When the verification ends.
            in_order: Whether the step is one in stream order.
        """
        step.end = end
        self._rest.verifies(in_order=in_order)

    def launched(self) -> None:
        """Call it when a step in stream order was launched."""
        self._rest.launched(time.perf_counter())

    def resumed(self) -> None:
        """Call it when the scheduler has the result of a step."""
        self._rest.resumed(time.perf_counter())

    def interrupted(self, batch: ScheduleBatch) -> None:
        """Call it when the scheduler runs this batch, which is not a decode step."""
        if batch.forward_mode.is_extend():
            self._rest.prompts(len(batch.reqs), sum(batch.extend_lens))
        else:
            self._rest.interrupted()

    def most_width(self, rows: int) -> int:
        """The most tokens of a row that the next step of `rows` rows may verify. More need not be drafted.

        With many rows, drafting takes time and wide steps hardly ever pay. So at most twice the widest of the latest
        steps is offered then.
        """
        widths = self._widths_for(rows)
        most = widths[-1] if widths else self._max_width
        if rows < _MANY_ROWS or len(widths) == 1 or not self._latest_widths:
            return most
        offered = max(2 * max(self._latest_widths), _LEAST_OFFERED)
        return most if offered >= most else padded_width(offered, widths)

    def plan(self, drafts: DraftBatch, context: int) -> tuple[NDArray[np.int32], PlannedStep]:
        """Decides which part of the drafts is verified, and at which width.

        Args:
            drafts: The drafts of the step's b rows. No row has more nodes than most_width().
            context: Number of tokens in the KV cache over all rows.

        Returns:
            The number of each row's best nodes that are verified, its root not counted, int32[b]; and the plan.
        """
        rows = len(drafts)
        most = self.most_width(rows)
        widths = tuple(width for width in self._widths_for(rows) if width <= most)
        plan: StepPlan | None = None
        if len(widths) != 1 and self._breaker.allow():
            try:
                state = StepState(drafts, context, widths, most, self.rest)
                plan = self.controller.plan(state)
                self._breaker.succeeded()
            except Exception:
                self._failed()
        num_nodes = np.minimum(num_drafted(drafts), np.int32(most - 1)) if plan is None else plan.num_nodes
        widest = int(num_nodes.max()) + 1
        if self._profiling and plan is not None:
            widest = plan.width
        width = padded_width(widest, widths)
        self._latest_widths.append(width)
        planned = PlannedStep(plan, rows, width, context, is_first=self._is_first(rows, width))
        self._rest.planned(planned)
        return num_nodes, planned

    @property
    def plans_ahead(self) -> GoodputController | None:
        """The controller, if its decisions can be made natively, one step ahead."""
        return self.controller if isinstance(self.controller, GoodputController) and not self._profiling else None

    def goodput(self) -> _core.Goodput:
        """What decides on widths by goodput, with the settings of this server and no history."""
        return native_goodput(self._config, self._profile)

    def planning_numbers(
        self,
        widths: NDArray[np.int64],
        seconds: NDArray[np.float64],
        model: ModelNumbers | None,
        speedup: float,
        speedup_alone: float = 0.0,
        *,
        extends: bool,
    ) -> _core.PlanningNumbers:
        """planning_numbers() with what steps have taught this controller. `extends`: as in HostTime.least()."""
        controller, exponents = self.controller, (1.0, 1.0)
        if isinstance(controller, GoodputController):
            exponents = controller.bias.exponent, controller.bias_united.exponent
        return planning_numbers(
            widths,
            seconds,
            model,
            rest=self.rest,
            least=(
                self._rest.least(passes=False, extends=extends),
                self._rest.least(passes=True, extends=extends),
            ),
            speedup=speedup,
            speedup_alone=speedup_alone,
            exponents=exponents,
        )

    def candidates(self, rows: int) -> NDArray[np.int64]:
        """int64[w], the widths that a step of `rows` rows may have, ascending from 1."""
        most = self.most_width(rows)
        return candidate_widths(tuple(width for width in self._widths_for(rows) if width <= most), most)

    def seconds(self, rows: int, widths: NDArray[np.int64], context: int) -> NDArray[np.float64]:
        """float64[w], predicted seconds of verifying `rows` rows of these widths.

        `context`: number of tokens in the KV cache over all rows.
        """
        # Between two observations, a step's context hardly changes what it takes.
        of = rows, int(widths[-1]), context // (_SAME_CONTEXT * rows), self.num_timed
        if self._predicted is None or self._predicted[0] != of:
            seconds = self.controller.costs.at_widths(context, np.multiply(widths, rows, dtype=np.float64))
            # A curve that was learned with other contexts may end at nothing.
            self._predicted = of, np.maximum(seconds, _LEAST_SECONDS)
        return self._predicted[1]

    def padded(self, rows: int, width: int) -> int:
        """The width to which a step of `rows` rows is padded that should have `width` nodes a row, or fewer."""
        widths = self._widths_for(rows)
        return padded_width(min(width, widths[-1] if widths else self._max_width), widths)

    def launched_ahead(self, rows: int, width: int, context: int) -> PlannedStep:
        """Notes a step that was launched before its drafts were known, and whose plan will follow."""
        self._latest_widths.append(width)
        planned = PlannedStep(None, rows, width, context, is_first=self._is_first(rows, width))
        self._rest.planned(planned)
        return planned

    def plan_roots(self, rows: int, context: int, width: int = 1) -> tuple[NDArray[np.int32], PlannedStep]:
        """Like plan(), for a step of roots only that has at least `width` nodes a row. The controller is not asked."""
        width = padded_width(width, self._widths_for(rows))
        planned = PlannedStep(None, rows, width, context, is_first=self._is_first(rows, width))
        self._rest.planned(planned)
        return np.zeros(rows, np.int32), planned

    def _is_first(self, rows: int, width: int) -> bool:
        """Whether SGLang's kernels may have to be compiled for a step of this shape.

        They are compiled for each width and for numbers of rows up to each power of two.
        """
        seen = len(self._shapes)
        self._shapes.add(((rows - 1).bit_length(), width))
        return len(self._shapes) > seen

    def drafted(self, rows: int, passes: int, context: int, seconds: float) -> None:
        """Called after the draft model has drafted for a step."""
        if self._profiling:
            self._num_drafts += 1
            self._drafts.append((rows, passes, context, seconds))

    def chained(self, probabilities: Sequence[list[float]], num_accepted: Sequence[int]) -> None:
        """Called while steps are profiled, for the rows for which the draft model has drafted a chain each.

        Args:
            probabilities: Of each row's tokens, that one is accepted if all before it are.
            num_accepted: How many of them were.
        """
        self._num_chains += len(num_accepted)
        self._chains.extend(zip(probabilities, num_accepted, strict=True))

    def observe_suffixes(self, estimated: NDArray[np.float64], sizes: NDArray[np.int64], followed: float) -> None:
        """Learns what suffix drafts alone would have brought in a step that verified their unions with the draft model's.

        Args:
            estimated: float64[c], sums of the estimates of each column of the suffix drafts.
            sizes: int64[c], number of their nodes.
            followed: Number of these nodes that were right, over all rows; expected where it is unknown.
        """
        if isinstance(self.controller, GoodputController) and np.count_nonzero(sizes):
            self.controller.bias.observe(estimated, sizes, followed)

    def learns(self) -> bool:
        """Whether to learn from the next step that is observed. Learning takes the host's time. Where the device waits for
        the host, this makes steps longer, and every fourth step has to do once some are known."""
        self._unlearnt += 1
        if self._rest.ran_dry and self._unlearnt < _LEARN_EVERY and self.num_timed >= _KNOWN_WELL:
            return False
        self._unlearnt = 0
        return True

    def observe(self, step: PlannedStep, num_accepted: Sequence[int], *, learns: bool = True) -> None:
        """Counts the result of a step, and learns from it if `learns`. Call it in the order of the steps.

        `num_accepted`: number of accepted tokens of each row, bonus tokens not counted.
        """
        self._last = step
        if self._profiling:
            self._num_steps += 1
            self._steps.append((step.rows, step.width, step.context, step.seconds))
            if step.seconds > 0.0 and self.rest > 0.0 and len(num_accepted) == step.rows:
                self._num_yields += 1
                whole = self.rest + step.seconds + step.drafter_seconds
                self._yields.append((step.rows, step.width, whole, step.rows + sum(num_accepted)))
        if step.plan is None or len(num_accepted) != step.rows:
            return
        # The step was only as wide as its widest row required, which may be less than planned.
        if step.plan.width != step.width:
            step.plan = replace(step.plan, width=step.width)
        if learns:
            if step.seconds > 0.0:
                self._see(step.rows, step.width, step.context)
            try:
                self.controller.observe(step.plan, np.array(num_accepted, np.int32), step.seconds, context=step.context)
            except Exception:
                self._failed()
        num_tokens = step.rows + sum(num_accepted)
        self._record.observe(step.plan, step.seconds, num_tokens)
        if self._metrics is not None:
            self._metrics.observe(step.plan, step.seconds, num_tokens)

    @property
    def num_timed(self) -> int:
        """Number of steps whose times were learned from."""
        return self.controller.costs.num_observed

    def learned(self) -> Profile | None:
        """The step costs that were learned; None while they rest on few steps."""
        if self._seen is None:
            return None
        widths = tuple(sorted({1, self._max_width, *self.widths}))
        return self.controller.costs.learned(self._key, self._seen, widths)

    def _see(self, rows: int, width: int, context: int) -> None:
        """Extends the range of the steps that costs were learned from."""
        length = context // rows
        if self._seen is None:
            self._seen = MeasuredRange(
                batch_sizes=(rows, rows), context_lengths=(length, length), widths=(width, width)
            )
            return
        seen = self._seen
        inside = (
            seen.batch_sizes[0] <= rows <= seen.batch_sizes[1]
            and seen.context_lengths[0] <= length <= seen.context_lengths[1]
            and seen.widths[0] <= width <= seen.widths[1]
        )
        if not inside:
            self._seen = MeasuredRange(
                batch_sizes=_with(seen.batch_sizes, rows),
                context_lengths=_with(seen.context_lengths, length),
                widths=_with(seen.widths, width),
            )

    def _failed(self) -> None:
        logger.exception("agentspec's controller failed; the step verifies all that was drafted")
        self._counters.add("control_errors", 1)
        self._breaker.failed()


def _with(span: tuple[int, int], value: int) -> tuple[int, int]:
    return min(span[0], value), max(span[1], value)


def profile_key(server_args: ServerArgs) -> ProfileKey:
    """The key of a server that runs steps without captured graphs: everything that its step times depend on."""
    device = str(arguments.setting(server_args, "device", "cpu"))
    is_cpu = device == "cpu"
    return ProfileKey(
        model=os.path.basename(os.path.normpath(str(server_args.model_path))),
        device=processor() if is_cpu else torch.get_device_module(device).get_device_name(),
        engine=f"sglang {metadata.version('sglang')}",
        graphs="none",
    )


class ControlRecord:
    """Sums over verified steps, for `/server_info`. Owned by one thread."""

    def __init__(self) -> None:
        self._plans: Counter[str] = Counter()
        self._widths: Counter[int] = Counter()
        self._sums = dict.fromkeys(("predicted_seconds", "observed_seconds"), 0.0)
        self._tokens = {"predicted_tokens": 0.0, "observed_tokens": 0}
        self._num_measured = 0

    def observe(self, plan: StepPlan, seconds: float, num_tokens: int) -> None:
        """Adds a verified step: its plan, its seconds (0 if not measured), and the number of tokens that it wrote."""
        self._plans[plan.reason] += 1
        self._widths[plan.width] += 1
        self._tokens["predicted_tokens"] += plan.expected_tokens
        self._tokens["observed_tokens"] += num_tokens
        if seconds > 0.0:
            self._num_measured += 1
            self._sums["predicted_seconds"] += plan.seconds
            self._sums["observed_seconds"] += seconds

    def snapshot(self) -> dict[str, object]:
        """Steps by reason and by width (as strings), seconds of the measured steps, and tokens of all steps."""
        return {
            "plans": dict(self._plans),
            "widths": {str(width): n for width, n in sorted(self._widths.items())},
            "measured_steps": self._num_measured,
            **self._sums,
            **self._tokens,
        }
