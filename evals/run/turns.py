"""Asks servers in turns while all of them are alive, so that every server meets the same disturbances of the
machine."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import TypeVar

from agentspec.environment import without_folders
from agentspec.errors import AgentspecError
from agentspec.progress import say

T = TypeVar("T")


def ask_in_turns(
    names: Sequence[str],
    slices: Callable[[ExitStack, str], Iterator[T]],
    on_turn: Callable[[Mapping[str, Sequence[T]]], object],
) -> tuple[dict[str, list[T]], dict[str, str]]:
    """The slices of each server in order, and the error of each server that failed; the others go on.

    Args:
        names: Of the servers.
        slices: Starts a server, which the stack stops, when its first slice is asked for.
        on_turn: Called after each turn with what is done so far.
    """
    with ExitStack() as stack:
        asked = {name: slices(stack, name) for name in names}
        done: dict[str, list[T]] = {name: [] for name in names}
        errors: dict[str, str] = {}
        # The first turn starts the servers.
        turn = 0
        while asked:
            for name in _rotated(tuple(asked), turn):
                try:
                    result = next(asked[name], None)
                except (AgentspecError, OSError) as failure:
                    errors[name] = without_folders(_first_lines(str(failure)))
                    say(f"  {name} failed: {errors[name]}")
                    result = None
                if result is None:
                    del asked[name]
                else:
                    done[name].append(result)
            turn += 1
            if asked:
                on_turn(done)
        return done, errors


def _rotated(names: Sequence[str], turn: int) -> list[str]:
    """The order of a turn: no server always follows the same one."""
    first = turn % len(names) if names else 0
    return [*names[first:], *names[:first]]


def _first_lines(text: str) -> str:
    """The error itself and, if a log follows it, the log line that most likely gives the reason."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if len(lines) < 2:
        return text.strip()
    told = [line for line in lines[1:] if re.match(r"[\w.]*(Error|Exception)\b", line)]
    return f"{lines[0]} {(told or lines)[-1]}"
