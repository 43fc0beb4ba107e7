"""What is measured, in which order, and how long each task takes on an H200, approximately.

There are three calls of ten minutes, each with the most important tasks first. A task that no longer fits the time is
left out and reported.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from agentspec.errors import ConfigError
from agentspec.evals.gpu.sizes import SIZES

PARTS = ("parity", "sampling", "replay", "profile", "predict")
CALLS = (1, 2, 3)


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """The unit that is done or left out."""

    part: str
    call: int
    """Number of the call of the machine, from 1."""
    seconds: float
    """An estimate that decides whether the task still fits."""
    size: str = ""
    backend: str = "triton"
    systems: tuple[str, ...] = ()
    traces: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        words = (self.part, self.size, self.backend if self.part == "replay" else "", "+".join(self.systems))
        return ":".join(word for word in (*words, "+".join(self.traces)) if word)


_CONTROLS = ("chat", "math")
_AGENTS = ("sql", "swe", "tools")
_ALL = (
    # Correctness first: a fast server with different outputs is of no use.
    Task(part="parity", call=1, seconds=120),
    Task(part="sampling", call=1, seconds=80),
    Task(
        part="replay", call=1, seconds=270, size="llama-8b", systems=("none", "ngram", "suffix"),
        traces=(*_AGENTS, *_CONTROLS),
    ),
    Task(part="replay", call=2, seconds=220, size="llama-8b", systems=("eagle3", "hybrid"), traces=(*_AGENTS, "chat")),
    Task(part="profile", call=2, seconds=130, size="llama-8b"),
    Task(part="predict", call=2, seconds=20, size="llama-8b"),
    Task(
        part="replay", call=2, seconds=170, size="llama-8b", backend="flashinfer", systems=("none", "suffix"),
        traces=("sql", "chat"),
    ),
    Task(part="replay", call=3, seconds=110, size="qwen-32b", systems=("none",), traces=("sql", "swe")),
    Task(part="replay", call=3, seconds=110, size="qwen-32b", systems=("suffix",), traces=("sql", "swe")),
    Task(part="replay", call=3, seconds=110, size="qwen-32b", systems=("hybrid",), traces=("sql", "swe")),
    Task(part="profile", call=3, seconds=150, size="qwen-32b"),
    Task(part="predict", call=3, seconds=20, size="qwen-32b"),
    Task(part="replay", call=3, seconds=110, size="qwen-32b", systems=("ngram",), traces=("sql", "swe")),
    Task(part="replay", call=3, seconds=110, size="qwen-32b", systems=("eagle3",), traces=("sql", "swe")),
)  # fmt: skip
_DRY = (
    Task(part="parity", call=1, seconds=1),
    Task(part="sampling", call=1, seconds=1),
    Task(part="replay", call=1, seconds=1, size="tiny", systems=("none", "suffix"), traces=("sql", "chat")),
    Task(part="replay", call=2, seconds=1, size="tiny", systems=("eagle3", "hybrid"), traces=("sql",)),
    Task(part="profile", call=2, seconds=1, size="tiny"),
    Task(part="predict", call=2, seconds=1, size="tiny"),
    Task(part="replay", call=3, seconds=1, size="tiny", systems=("ngram",), traces=("sql",)),
)  # fmt: skip


def plan(
    *, calls: Sequence[int] = (), parts: Sequence[str] = (), sizes: Sequence[str] = (), dry: bool = False
) -> list[Task]:
    """The tasks in order.

    Args:
        calls: Only tasks of these calls; (): of all.
        parts: Only tasks of these parts; (): of all.
        sizes: Only tasks of these sizes or without a size; (): of all.
        dry: With the small model only, on a CPU.

    Raises:
        ConfigError: A call, a part or a size is unknown.
    """
    for name, given, known in (("call", calls, CALLS), ("part", parts, PARTS), ("size", sizes, tuple(SIZES))):
        unknown = [str(one) for one in given if one not in known]
        if unknown:
            raise ConfigError(f"--{name} must be one of {', '.join(map(str, known))}, got {', '.join(unknown)}")
    return [
        task
        for task in (_DRY if dry else _ALL)
        if (not calls or task.call in calls)
        and (not parts or task.part in parts)
        and (not sizes or not task.size or task.size in sizes)
    ]


def fits(task: Task, seconds_left: float) -> bool:
    """Whether a task may begin. Replays keep partial results when time runs out, so part of the estimate suffices for
    them."""
    return seconds_left >= (0.6 if task.part == "replay" else 0.9) * task.seconds
