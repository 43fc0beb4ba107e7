"""Turns of two servers that were never run, and facts of them as the page needs them."""

from __future__ import annotations

from typing import Any

from agentspec.ab.arms import Arm
from agentspec.ab.calls import Call
from agentspec.ab.experiment import Turn
from agentspec.ab.workload import TaskResult

ARMS = {
    label: Arm(label=label, name=name, url="", model="m", is_sglang=True, facts={"version": "1"})
    for label, name in (("a", "plain"), ("b", "agentspec"))
}


def call(task: str, seconds: float, **more: Any) -> Call:
    values = {"path": "chat/completions", "began": 10.0, "first": 10.1, "ended": 10.0 + seconds, "is_greedy": True}
    values |= {"completion_tokens": 11, "request": task, "answer": "same", **more}
    return Call(task=task, **values)


def turns(number: int, *, a: float = 2.0, b: float = 1.0) -> list[Turn]:
    """Slices of one task each that takes a second besides its one call."""
    found = []
    for place in range(number):
        for label, seconds in (("a", a), ("b", b)):
            task = f"t{place}"
            result = TaskResult(task=task, seconds=seconds + 1, success=True)
            calls = (call(task, seconds, verify_steps=5 if label == "b" else None),)
            found.append(Turn(repeat=0, slice=place, label=label, seconds=seconds + 1, results=(result,), calls=calls))
    return found


def with_frame(facts: dict[str, Any]) -> dict[str, Any]:
    return {
        "version": "1",
        "created": "2026-01-01T00:00:00Z",
        "command": "agentspec ab",
        "workload": {"log": ["x"]},
        **facts,
    }
