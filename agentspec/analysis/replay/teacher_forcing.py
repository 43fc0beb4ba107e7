"""Replays drafting along a recorded output, which tells the tokens that the model would have accepted.

    step     draft a tree ─> walk it along the true output ─> k tokens accepted ─> advance by k + 1

Verification is greedy: a node is accepted if its parent is and its token is the output's next. The token after the
last accepted one, the bonus token, comes from the model in the same step, so an output's last token is always a bonus
token. A call's first token comes from its prefill and takes no step. Hence, for any drafter,

    accept length = accepted tokens per step + 1 = (output tokens - calls) / steps

Outputs cannot differ from the record, and `replay` checks this.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from agentspec.analysis.replay.traces import Call

_BINS = 10
"""Of the calibration error."""


class Draft(NamedTuple):
    """A draft tree without its root; children come after their parents."""

    tokens: Sequence[int]
    parents: Sequence[int]
    """Index of each node's parent; -1 for children of the root, the last token of the context."""
    estimates: Sequence[float] = ()
    """The probability that each node is accepted, if the drafter estimates it."""


class System(Protocol):
    """A drafter that follows one request at a time."""

    def remember(self, call: Call) -> None:
        """Learns a finished call, as if it had been served."""

    def open(self, prompt: NDArray[np.int32]) -> None:
        """Starts a request."""

    def extend(self, tokens: NDArray[np.int32]) -> None:
        """Appends output tokens to the request."""

    def draft(self, max_tokens: int) -> Any:
        """Drafts at most `max_tokens` tokens, in the system's own format. This call is timed."""

    def tree(self, drafted: Any) -> Draft:
        """Converts the draft to a tree. This call is not timed."""

    def close(self) -> None:
        """Ends the request and keeps its output for later ones."""


class SweptSystem(System, Protocol):
    """A drafter that learns the same, however its drafts divide a text into steps, and drafts with any setting."""

    def draft(self, max_tokens: int, setting: Any = None) -> Any:
        """Drafts with another setting than its own, if one is given."""


class GroupedSystem(System, Protocol):
    """A system that lets callers name groups of requests."""

    def name_group(self, group: str) -> None:
        """Sets the group of the requests that are opened from here on."""


@dataclass(slots=True)
class Measurement:
    """Sums over replayed calls. Times are CPU time of the calling thread, in ns."""

    calls: int = 0
    output_tokens: int = 0
    prompt_tokens: int = 0
    steps: int = 0
    drafted: int = 0
    accepted: int = 0
    open_ns: int = 0
    draft_ns: int = 0
    extend_ns: int = 0
    close_ns: int = 0
    step_us: list[float] = field(default_factory=list)
    """The mean time of drafting and extending per step, for each call that had steps."""
    estimated: list[float] = field(default_factory=list)
    """The estimate of each drafted node, if the drafter gives estimates."""
    came_true: list[bool] = field(default_factory=list)
    """Whether each of these nodes was accepted."""

    def record(self) -> dict[str, float | int | None]:
        """The figures. Means over steps are 0 if there was no step, and the calibration error is None without
        estimates."""
        steps, calls = max(self.steps, 1), max(self.calls, 1)
        return {
            "accepted_per_step": round(self.accepted / steps, 4),
            "drafted_per_step": round(self.drafted / steps, 4),
            "accept_length": round(self.accepted / steps + 1, 4),
            "steps": self.steps,
            "calls": self.calls,
            "prompt_tokens": self.prompt_tokens,
            "output_tokens": self.output_tokens,
            "draft_us_per_step": round((self.draft_ns + self.extend_ns) / steps / 1e3, 3),
            "draft_us_per_step_median_call": round(statistics.median(self.step_us or [0.0]), 3),
            "open_us_per_call": round(self.open_ns / calls / 1e3, 3),
            "close_us_per_call": round(self.close_ns / calls / 1e3, 3),
            "calibration_error": round(calibration_error(self.estimated, self.came_true), 4)
            if self.estimated
            else None,
        }


def calibration_error(estimated: ArrayLike, came_true: ArrayLike) -> float:
    """Expected calibration error: the distance of mean estimate and mean truth in equal bins of the estimate, weighted
    by the sizes of the bins; 0 without estimates."""
    estimates, truths = np.asarray(estimated, dtype=np.float64), np.asarray(came_true, dtype=np.float64)
    if not len(estimates):
        return 0.0
    bins = np.minimum((estimates * _BINS).astype(np.int64), _BINS - 1)
    distances = np.bincount(bins, estimates - truths, minlength=_BINS)
    return float(np.abs(distances).sum() / len(estimates))


def accepted_nodes(draft: Draft, truth: Sequence[int]) -> list[int]:
    """The nodes of a draft that verification accepts if the model writes `truth`, in order from the root."""
    nodes: list[int] = []
    node = -1
    for i, (token, parent) in enumerate(zip(draft.tokens, draft.parents, strict=True)):
        if len(nodes) == len(truth):
            break
        if parent == node and token == truth[len(nodes)]:
            nodes.append(i)
            node = i
    return nodes


def replay(
    calls: Iterable[Call], system: System, max_draft_tokens: int, on_call: Callable[[Measurement], None] | None = None
) -> Measurement:
    """Replays calls one after another, and passes the sums to `on_call` after each. Raises AssertionError if the system
    drafted more than `max_draft_tokens`, or a replayed output differs from the record."""
    sums = Measurement()
    for call in calls:
        replay_call(call, system, max_draft_tokens, sums)
        if on_call is not None:
            on_call(sums)
    return sums


def replay_together(
    calls: Iterable[Call],
    lanes: Sequence[GroupedSystem],
    max_draft_tokens: int,
    on_call: Callable[[Measurement], None] | None = None,
    *,
    name_groups: bool = False,
) -> Measurement:
    """Replays calls side by side, one in each lane, as a server would run them in one batch.

    The sessions of a task take lanes together, and their calls open together: the second calls of all sessions when the
    first ones have ended. All open calls take their steps in turn. Raises AssertionError as replay() does.

    Args:
        calls: Those of a session in their order.
        lanes: Systems that learn from each other's calls.
        max_draft_tokens: See replay().
        on_call: See replay().
        name_groups: Name a group for each task and each of its calls, as a caller would that knows them.
    """
    sessions: dict[tuple[str, str, str], list[Call]] = {}
    for call in calls:
        sessions.setdefault((call.task, call.session, call.run), []).append(call)
    # A stable sort keeps the order of the recording among tasks.
    tasks = list(dict.fromkeys(task for task, _, _ in sessions))
    ordered = [some for task in tasks for (of, _, _), some in sessions.items() if of == task]
    sums = Measurement()
    for first in range(0, len(ordered), len(lanes)):
        for number, together in enumerate(zip_longest(*ordered[first : first + len(lanes)])):
            for call, lane in zip(together, lanes, strict=False):
                if name_groups and call is not None:
                    lane.name_group(f"{call.task}, call {number}")
            running = [
                ReplayedCall(call, lane, max_draft_tokens, sums)
                for call, lane in zip(together, lanes, strict=False)
                if call is not None
            ]
            while running:
                for one in [one for one in running if one.is_complete]:
                    running.remove(one)
                    one.close()
                    if on_call is not None:
                        on_call(sums)
                for one in running:
                    one.step()
    return sums


def replay_settings(
    calls: Iterable[Call],
    system: SweptSystem,
    settings: Sequence[tuple[Any, int]],
    on_call: Callable[[Measurement], None] | None = None,
) -> list[Measurement]:
    """Replays calls one after another with many settings at once, each with its own limit of draft tokens.

    The result is that of one replay() for each setting, except that times are those of drafts alone. The system follows
    the text token by token, and at each token those settings draft whose last step has ended there. Raises
    AssertionError as replay() does.
    """
    sums = [Measurement() for _ in settings]
    lanes = [_Lane(system, setting) for setting, _ in settings]
    for call in calls:
        running = [
            ReplayedCall(call, lane, limit, own) for lane, (_, limit), own in zip(lanes, settings, sums, strict=True)
        ]
        due = {1: running}
        system.open(call.prompt)
        for position in range(1, len(call.output)):
            system.extend(call.output[position - 1 : position])
            for one in due.pop(position, ()):
                one.step()
                due.setdefault(one.position, []).append(one)
        system.extend(call.output[-1:])
        system.close()
        for one in running:
            one.close()
        if on_call is not None and sums:
            on_call(sums[0])
    return sums


class _Lane:
    """One setting of a system that other lanes share. Requests are opened, extended and closed for all of them."""

    def __init__(self, system: SweptSystem, setting: Any) -> None:
        self._system, self._setting = system, setting
        self.remember = self.open = self.extend = lambda _: None
        self.close = lambda: None
        self.tree = system.tree

    def draft(self, max_tokens: int) -> Any:
        return self._system.draft(max_tokens, self._setting)


class ReplayedCall:
    """A call that is being replayed; its figures go to `sums`."""

    def __init__(self, call: Call, system: System, max_draft_tokens: int, sums: Measurement) -> None:
        self._call, self._system, self._max_draft_tokens, self._sums = call, system, max_draft_tokens, sums
        self._truth = call.output.tolist()
        self._generated = self._truth[:1]
        self._steps = self._spent = 0
        prompt = call.prompt
        started = time.thread_time_ns()
        system.open(prompt)
        system.extend(call.output[:1])
        sums.open_ns += time.thread_time_ns() - started
        sums.prompt_tokens += len(prompt)

    @property
    def position(self) -> int:
        """The number of output tokens so far."""
        return len(self._generated)

    @property
    def is_complete(self) -> bool:
        return self.position >= len(self._truth)

    def step(self) -> None:
        """Drafts, accepts and appends once."""
        clock = time.thread_time_ns
        system, sums, truth, generated = self._system, self._sums, self._truth, self._generated
        done = len(generated)
        started = clock()
        drafted = system.draft(self._max_draft_tokens)
        draft_ns = clock() - started
        draft = system.tree(drafted)
        assert len(draft.tokens) <= self._max_draft_tokens, (
            f"{len(draft.tokens)} tokens drafted of {self._max_draft_tokens}"
        )
        path = accepted_nodes(draft, truth[done:-1])
        generated += [draft.tokens[node] for node in path]
        if draft.estimates:
            # A node also counts as true if it lies beyond the last token that a step can accept.
            accepted = set(accepted_nodes(draft, truth[done:]))
            sums.estimated += draft.estimates
            sums.came_true += [node in accepted for node in range(len(draft.tokens))]
        generated.append(truth[len(generated)])
        started = clock()
        system.extend(self._call.output[done : len(generated)])
        extend_ns = clock() - started
        self._steps += 1
        self._spent += draft_ns + extend_ns
        sums.draft_ns += draft_ns
        sums.extend_ns += extend_ns
        sums.drafted += len(draft.tokens)
        sums.accepted += len(path)

    def close(self) -> None:
        """Ends the call, whose output must be complete."""
        sums = self._sums
        started = time.thread_time_ns()
        self._system.close()
        sums.close_ns += time.thread_time_ns() - started

        assert self._generated == self._truth, "a replay must give the recorded output"
        sums.calls += 1
        sums.output_tokens += len(self._truth)
        sums.steps += self._steps
        if self._steps:
            sums.step_us.append(self._spent / self._steps / 1e3)


def replay_call(call: Call, system: System, max_draft_tokens: int, sums: Measurement) -> None:
    """Replays one call and adds its figures to `sums`."""
    one = ReplayedCall(call, system, max_draft_tokens, sums)
    while not one.is_complete:
        one.step()
    one.close()
