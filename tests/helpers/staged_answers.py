"""Answers of the staged agents to one question about the generated shop database, each in the form required of it, and a
model that gives such answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from agentspec.workflows.text_to_sql import Completion, Message
from agentspec.workflows.text_to_sql.agents.client import GREEDY, Sampling
from agentspec.workflows.text_to_sql.agents.stages import INSTRUCTIONS, STAGES

QUESTION = "How many customers live in Lisbon?"
RIGHT = "SELECT COUNT(*) FROM customers WHERE city = 'Lisbon'"
ANSWERS = {
    "classify": '{"kind": "count", "difficulty": "easy"}',
    "extract": '{"tables": ["customers"], "columns": ["customers.city"], "values": ["Lisbon"], '
    '"operations": {"filter": true, "aggregate": true}}',
    "enrich": '{"question": "number of customers whose city is Lisbon", "notes": ["customers.city = \'Lisbon\'"]}',
    "draft": RIGHT,
    "combine": RIGHT,
    "check": '{"verdict": "ok"}',
    "repair": RIGHT,
}

# stage, messages, number of earlier calls of the stage -> answer
Script = Callable[[str, Sequence[Message], int], str]


class Scripted:
    """Answers by a script, and keeps what it was asked."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.calls: list[tuple[str, Sequence[Message], Sampling]] = []

    async def complete(
        self, messages: Sequence[Message], max_tokens: int, *, sampling: Sampling = GREEDY
    ) -> Completion:
        stage = next(name for name in STAGES if messages[1]["content"].startswith(INSTRUCTIONS[name]))
        earlier = sum(name == stage for name, _, _ in self.calls)
        self.calls.append((stage, messages, sampling))
        text = self.script(stage, messages, earlier)
        return Completion(error="out of order") if text == "DOWN" else Completion(text, 5, 3, "stop")

    def counts(self) -> dict[str, int]:
        return {stage: n for stage in STAGES if (n := sum(name == stage for name, _, _ in self.calls))}
