"""A server with continuous batching on an event clock: everything is done but the forward passes, which take the
seconds of a profile (SmartSpec, 7.2).

    waiting ──admitted, if rows and KV cache have room──> prefilled in chunks ──first token──> running ──> finished
       ^                                                                                          │
       └──────────────────── retracted where the KV cache is full, computed again ────────────────┘

Scheduling is SGLang's without mixed chunks: whenever a waiting request can be admitted, a step prefills; otherwise
each step decodes one draft for every running request. A draft's tokens take room in the KV cache during its step.
Where steps overlap, a finished request holds its place, without taking part, until the step after has ended.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from agentspec.errors import ConfigError
from agentspec.scheduling import Controller, Profile, ServingCosts, StepState, StepTimes
from agentspec.simulation.metrics import RunLog
from agentspec.simulation.requests import Requests


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    """Limits of a simulated server.

    Raises:
        ConfigError: A field is out of range.
    """

    max_running: int = 256
    """Requests decoded together at most."""
    kv_tokens: int = 1 << 20
    """Tokens that the KV cache holds."""
    prefill_tokens: int = 8192
    """Prompt tokens computed in a step at most."""
    reserved_tokens: int = 64
    """A request is admitted only if so many tokens are left for each request that runs then."""
    max_width: int = 32
    """Tokens verified a row at most, its root included."""
    widths: tuple[int, ...] = ()
    """What a row may be padded to, ascending from 1; (): any width."""
    ragged: bool = False
    """Whether rows are verified without padding, each with its own nodes, as the reference kernels for CPUs do."""
    draft_seconds: float = 0.0
    """Of drafting on the CPU for one row."""
    costs: ServingCosts | None = None
    """What serving takes beside verification; None: nothing, and prefills take what verifications of their size do."""
    plain: bool = False
    """Decode without verification: a step takes what `costs` says of it, and nothing else."""
    pads_context: bool = False
    """Attention reads as much of every row as of the longest one, as the reference kernels for CPUs do: a step then
    takes what rows of that length would."""
    whole_batches: bool = False
    """Admit only while nothing runs: batches are formed of what waits and decoded to their ends (Su et al., 5.3)."""

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
        if self.ragged and self.widths:
            raise ConfigError(f"rows that are not padded can have any width, got widths {self.widths}; leave them out")
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
        # Admitted, not yet wholly prefilled: (request, tokens computed so far, tokens to compute in all).
        self.prefilling: deque[tuple[int, int, int]] = deque()
        self.running = np.zeros(0, np.int64)
        # All of their tokens are there, but the step after has to end before anybody is told.
        self.ending = np.zeros(0, np.int64)
        self.num_finished = 0
        self.next_arrival = 0
        # Requests that clients have sent, of those that wait for answers.
        self.num_sent = int(np.isfinite(requests.arrival).sum())
        # From a client to the scheduler and back: whether before or after, it delays all requests alike.
        self.request_seconds = config.costs.request_seconds if config.costs else 0.0
        self.overlap = config.costs is not None and config.costs.overlap
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
            # Alone a request is always admitted, lest it waits for ever.
            reserved = config.reserved_tokens * (num_rows + 1) if num_rows else 0
            if num_rows >= config.max_running or self.kv_used + context + reserved > config.kv_tokens:
                return
            self.waiting.popleft()
            self._use_kv(context)
            if math.isnan(log.admitted[request]):
                log.admitted[request] = self.now
            # What was generated before a retraction is computed again, like the prompt.
            self.prefilling.append((request, int(self.requests.cached_tokens[request]), context))

    def _prefill(self) -> None:
        """One step over the next chunks, first come, first served."""
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
            # Their tokens make room before anything is retracted.
            self._answer(self._take_ending())
        self._make_room()
        rows = self.running
        b = len(rows)
        max_width = min(config.max_width, (config.kv_tokens - self.kv_used) // b)
        generated = log.generated[rows]
        # The last token's keys and values are computed when it is read.
        lengths = self.requests.prompt_tokens[rows] + generated - 1
        context = int(lengths.sum())
        read = int(lengths.max()) * b if config.pads_context else context
        places = self.requests.first_place[rows] + generated - 1
        acceptance = self.requests.acceptance
        wanted = max_width > 1 and self.controller.wants_draft(b, context)
        state = StepState(
            drafts=acceptance.drafts(places, max_width if wanted else 1),
            context=context,
            widths=tuple(width for width in config.widths if width <= max_width),
            max_width=max_width,
            rest=config.costs.step_seconds(b, read, b) if config.costs and not config.plain else 0.0,
            ragged=config.ragged,
        )
        plan = self.controller.plan(state)
        num_accepted = acceptance.accepted[places, plan.num_nodes].astype(np.int32)
        verification = self.step_times.seconds(b, plan.num_tokens / b, read)
        seconds = 0.0 if config.plain else verification
        if config.costs:
            seconds += config.costs.step_seconds(b, read, plan.num_tokens)
        if wanted:
            seconds += config.draft_seconds * b
        if self.profile.drafter is not None:
            # A pass for each drafted token of the longest draft (SmartSpec, eq. 5).
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
        """Moves the clock, gives the rows their tokens and answers those that have all of theirs."""
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
        """Frees what the requests hold; clients that get an answer send their next request."""
        if not len(done):
            return
        log = self.log
        log.finished[done] = self.now
        self.num_finished += len(done)
        contexts = self.requests.prompt_tokens[done] + log.generated[done]
        # A token's keys and values are computed when it is read: the last one's never are, nor is that of a prefill.
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
        """Retracts requests until each of the rest has room for a token: first those with the least output, of them
        those with the longest prompts. One is always kept."""
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
    """Serves all requests.

    Args:
        requests: What comes, and when.
        profile: How long steps take.
        config: The server's limits.
        controller: Decides what each step verifies; it is changed by what it observes.
        on_finished: Told after each step how many requests are finished.

    Raises:
        ConfigError: A request alone is longer than the KV cache.
    """
    longest = int((requests.prompt_tokens + requests.output_tokens).max())
    if longest > config.kv_tokens:
        raise ConfigError(
            f"the KV cache must hold the longest request, {longest} tokens, got {config.kv_tokens}; raise kv_tokens"
        )
    return _Run(requests, profile, config, controller).run(on_finished)
