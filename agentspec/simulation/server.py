"""A server with continuous batching on an event clock. It does everything except forward passes, which take the seconds
of a profile (SmartSpec, 7.2).

    waiting ──admitted, if rows and KV cache have room──> prefilled in chunks ──first token──> running ──> finished
       ^                                                                                          │
       └──────────────────── retracted where the KV cache is full, computed again ────────────────┘

It schedules like SGLang without mixed chunks. Whenever a waiting request can be admitted, a step prefills. Otherwise
each step verifies one draft of every running request. Drafted tokens occupy the KV cache during their step. If steps
overlap, a finished request keeps its place until the next step has ended, without taking part in it.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from agentspec.errors import ConfigError
from agentspec.scheduling import Controller, Profile, ServingCosts, StepState, StepTimes
from agentspec.simulation.metrics import RunLog
from agentspec.simulation.requests import Requests


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    """Limits of a simulated server. Raises ConfigError if a field is out of range."""

    max_running: int = 256
    """Greatest number of requests decoded together."""
    kv_tokens: int = 1 << 20
    """Number of tokens that the KV cache holds."""
    prefill_tokens: int = 8192
    """Greatest number of prompt tokens computed in a step."""
    reserved_tokens: int = 64
    """A request is admitted only if this number of tokens is left for each request that then runs."""
    max_width: int = 32
    """Greatest number of tokens verified per row, its root included."""
    widths: tuple[int, ...] = ()
    """The widths that a row may be padded to, ascending from 1; (): any width."""
    draft_seconds: float = 0.0
    """Seconds of drafting for one row on the CPU."""
    costs: ServingCosts | None = None
    """The costs besides verification; None: nothing, and a prefill takes as long as a verification of its size."""
    plain: bool = False
    """Whether to decode without verification. A step then takes the seconds of `costs` alone."""
    admission: Literal["slots", "goodput"] = "slots"
    """When a waiting request starts: `slots` as soon as there is room, `goodput` only if the steps are expected to yield
    more tokens a second with it (SmartSpec, algorithm 2)."""
    foresees: bool = False
    """Whether the controller knows which nodes will be accepted, as an oracle would."""
    whole_batches: bool = False
    """Whether requests are admitted only while nothing runs. The waiting requests then form a batch that is decoded to
    its end (Su et al., 5.3)."""

    def __post_init__(self) -> None:
        for name in ("max_running", "kv_tokens", "prefill_tokens", "max_width"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.reserved_tokens < 0:
            raise ConfigError(f"reserved_tokens must be >= 0, got {self.reserved_tokens}")
        if not 0 <= self.draft_seconds < math.inf:
            raise ConfigError(f"draft_seconds must be >= 0 and finite, got {self.draft_seconds}")
        if self.plain and self.costs is None:
            raise ConfigError("a server that does not verify needs costs of its steps, got none; pass a profile's")
        if self.widths and (self.widths[0] != 1 or list(self.widths) != sorted(set(self.widths))):
            raise ConfigError(f"widths must ascend from 1, got {self.widths}; for example 1,2,4,8")


class _Run:
    """The state of one run. Only tokens of running and admitted requests are in the KV cache."""

    def __init__(self, requests: Requests, profile: Profile, config: ServerConfig, controller: Controller) -> None:
        n = len(requests)
        self.requests, self.profile, self.config, self.controller = requests, profile, config, controller
        self.step_times = StepTimes(profile)
        self.now = 0.0
        self.kv_used = 0
        self.waiting: deque[int] = deque()
        # Admitted and not yet wholly prefilled: (request, tokens computed so far, tokens to compute in total).
        self.prefilling: deque[tuple[int, int, int]] = deque()
        self.running = np.zeros(0, np.int64)
        # Requests that have all of their tokens, but are answered only when the next step has ended.
        self.ending = np.zeros(0, np.int64)
        self.num_finished = 0
        self.next_arrival = 0
        # Number of requests that clients of a closed loop have sent.
        self.num_sent = int(np.isfinite(requests.arrival).sum())
        # The time from a client to the scheduler and back delays all requests alike, so it all counts before arrival.
        self.request_seconds = config.costs.request_seconds if config.costs else 0.0
        self.overlap = config.costs is not None and config.costs.overlap
        # Width of the latest decode step, and its tokens for each row.
        self.width, self.tokens_per_row = 1, 1.0
        self.log = RunLog(
            requests=requests,
            arrival=requests.arrival.copy(),
            admitted=np.full(n, math.nan),
            first_token=np.full(n, math.nan),
            finished=np.full(n, math.nan),
            generated=np.zeros(n, np.int64),
        )

    def run(self, on_finished: Callable[[int], object]) -> RunLog:
        while self.num_finished < len(self.requests):
            self._take_arrivals()
            self._admit()
            if self.prefilling:
                self._prefill()
            elif len(self.running):
                self._decode()
            elif len(self.ending):
                self._answer(self._take_ending())
            else:
                self.now = float(self.log.arrival[self.next_arrival]) + self.request_seconds
            on_finished(self.num_finished)
        return self.log

    def _take_arrivals(self) -> None:
        arrival = self.log.arrival
        while self.next_arrival < len(arrival) and arrival[self.next_arrival] + self.request_seconds <= self.now:
            self.waiting.append(self.next_arrival)
            self.next_arrival += 1

    def _admit(self) -> None:
        config, log = self.config, self.log
        if config.whole_batches and len(self.running) + len(self.ending):
            return
        while self.waiting:
            request = self.waiting[0]
            num_rows = len(self.running) + len(self.prefilling) + len(self.ending)
            context = int(self.requests.prompt_tokens[request] + log.generated[request])
            # A request is always admitted if it is alone. Otherwise it could wait for ever.
            reserved = config.reserved_tokens * (num_rows + 1) if num_rows else 0
            if num_rows >= config.max_running or self.kv_used + context + reserved > config.kv_tokens:
                return
            if config.admission == "goodput" and num_rows and not self._pays(num_rows, context):
                return
            self.waiting.popleft()
            self._use_kv(context)
            if math.isnan(log.admitted[request]):
                log.admitted[request] = self.now
            # Tokens generated before a retraction are computed again, like the prompt.
            self.prefilling.append((request, int(self.requests.cached_tokens[request]), context))

    def _pays(self, rows: int, context: int) -> bool:
        """Whether another request of `context` tokens adds to the tokens a second of steps like the latest one."""

        def rate(rows: int, read: int) -> float:
            seconds = self.profile.target.seconds(read, rows * self.width)
            if self.config.costs:
                seconds += self.config.costs.step_seconds(rows, read, rows * self.width)
            if self.profile.drafter is not None:
                seconds += self.profile.drafter.drafting(read, rows, self.width - 1)
            return rows * self.tokens_per_row / seconds

        return rate(rows + 1, self.kv_used + context) >= rate(rows, self.kv_used)

    def _prefill(self) -> None:
        """Computes the next chunks in one step, first come, first served."""
        left, context, first = self.config.prefill_tokens, 0, []
        while left and self.prefilling:
            request, computed, total = self.prefilling.popleft()
            chunk = min(left, total - computed)
            context += computed
            left -= chunk
            if computed + chunk < total:
                self.prefilling.appendleft((request, computed + chunk, total))
            else:
                first.append(request)
        batched = self.config.prefill_tokens - left
        cost = self.config.costs.prefill if self.config.costs else self.profile.target
        rows = np.array(first, np.int64)
        self._finish_step(rows, np.ones(len(rows), np.int64), cost.seconds(context, batched), len(rows), width=0)
        self.running = np.concatenate([self.running, rows[~self._is_complete(rows)]])

    def _decode(self) -> None:
        """Verifies one draft for each running request."""
        config, log = self.config, self.log
        if config.kv_tokens - self.kv_used < len(self.running):
            # Finished requests make room before any request is retracted.
            self._answer(self._take_ending())
        self._make_room()
        rows = self.running
        b = len(rows)
        max_width = min(config.max_width, (config.kv_tokens - self.kv_used) // b)
        generated = log.generated[rows]
        # The last token's keys and values are computed when it is read.
        context = int((self.requests.prompt_tokens[rows] + generated - 1).sum())
        places = self.requests.first_place[rows] + generated - 1
        acceptance = self.requests.acceptance
        state = StepState(
            drafts=acceptance.drafts(places, max_width, known=config.foresees),
            context=context,
            widths=tuple(width for width in config.widths if width <= max_width),
            max_width=max_width,
            rest=config.costs.step_seconds(b, context, b) if config.costs and not config.plain else 0.0,
        )
        plan = self.controller.plan(state)
        num_accepted = acceptance.accepted[places, plan.num_nodes].astype(np.int32)
        verification = self.step_times.seconds(b, plan.num_tokens / b, context)
        seconds = 0.0 if config.plain else verification
        if config.costs:
            seconds += config.costs.step_seconds(b, context, plan.num_tokens)
        if max_width > 1 and not config.plain:
            seconds += config.draft_seconds * b
        if self.profile.drafter is not None:
            # One pass for each drafted token of the longest draft (SmartSpec, eq. 5).
            passes = plan.width - 1
            seconds += passes * self.profile.drafter.seconds(context + b * (passes - 1) / 2, b)
        if not self.profile.covers(b, plan.width, context):
            log.uncovered_steps += 1
        self.controller.observe(plan, num_accepted, verification, context=context)
        log.peak_kv_tokens = max(log.peak_kv_tokens, self.kv_used + plan.num_tokens)
        self._use_kv(int(num_accepted.sum()) + b)
        self._finish_step(
            rows,
            num_accepted + 1,
            seconds,
            b,
            width=plan.width,
            drafted=int(plan.num_nodes.sum()),
            expected=plan.expected_tokens,
            reason=plan.reason,
        )
        self.width, self.tokens_per_row = plan.width, float(num_accepted.mean()) + 1.0
        self.running = rows[~self._is_complete(rows)]

    def _finish_step(
        self,
        rows: NDArray[np.int64],
        num_tokens: NDArray[np.int64] | NDArray[np.int32],
        seconds: float,
        num_rows: int,
        *,
        width: int,
        drafted: int = 0,
        expected: float = 0.0,
        reason: str = "prefill",
    ) -> None:
        """Moves the clock, gives the rows their tokens, and answers the requests that have all of theirs."""
        log = self.log
        log.start.append(self.now)
        log.seconds.append(seconds)
        log.rows.append(num_rows)
        log.width.append(width)
        log.tokens.append(int(num_tokens.sum()))
        log.drafted.append(drafted)
        log.expected.append(expected)
        log.reason.append(reason)
        self.now += seconds
        log.generated[rows] += num_tokens
        if not width:
            new = rows[np.isnan(log.first_token[rows])]
            log.first_token[new] = self.now
        done = rows[self._is_complete(rows)]
        if self.overlap:
            before = self._take_ending()
            self.ending = done
            done = before
        self._answer(done)

    def _is_complete(self, rows: NDArray[np.int64]) -> NDArray[np.bool_]:
        return self.log.generated[rows] >= self.requests.output_tokens[rows]

    def _take_ending(self) -> NDArray[np.int64]:
        ending, self.ending = self.ending, np.zeros(0, np.int64)
        return ending

    def _answer(self, done: NDArray[np.int64]) -> None:
        """Frees the KV cache of the requests. Their clients then send their next requests."""
        if not len(done):
            return
        log = self.log
        log.finished[done] = self.now
        self.num_finished += len(done)
        contexts = self.requests.prompt_tokens[done] + log.generated[done]
        # A token's keys and values are computed when it is read, so those of an output's last token never are.
        self.kv_used -= int((contexts - 1).sum())
        if math.isinf(self.requests.arrival[-1]):
            sent = min(self.num_sent + len(done), len(self.requests))
            log.arrival[self.num_sent : sent] = self.now
            self.num_sent = sent
            self._take_arrivals()

    def _use_kv(self, num_tokens: int) -> None:
        self.kv_used += num_tokens
        self.log.peak_kv_tokens = max(self.log.peak_kv_tokens, self.kv_used)

    def _make_room(self) -> None:
        """Retracts requests until each of the others has room for a token. Requests with the least output go first, and
        among them those with the longest prompts. One request is always kept."""
        while len(self.running) > 1 and self.config.kv_tokens - self.kv_used < len(self.running):
            order = np.lexsort((-self.requests.prompt_tokens[self.running], self.log.generated[self.running]))
            request = int(self.running[order[0]])
            self.running = self.running[self.running != request]
            self.kv_used -= int(self.requests.prompt_tokens[request] + self.log.generated[request]) - 1
            self.waiting.append(request)
            self.log.retractions += 1


def simulate(
    requests: Requests,
    profile: Profile,
    config: ServerConfig,
    controller: Controller,
    on_finished: Callable[[int], object] = lambda done: None,
) -> RunLog:
    """Serves all requests. The controller learns from the run, and on_finished is called after each step with the
    number of finished requests. Raises ConfigError if a request is longer than the KV cache."""
    longest = int((requests.prompt_tokens + requests.output_tokens).max())
    if longest > config.kv_tokens:
        raise ConfigError(
            f"the KV cache must hold the longest request, {longest} tokens, got {config.kv_tokens}; raise kv_tokens"
        )
    return _Run(requests, profile, config, controller).run(on_finished)
