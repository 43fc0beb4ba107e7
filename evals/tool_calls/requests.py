"""Requests that a person makes of an assistant with tools, in words."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from agentspec.evals.tool_calls.calls import Call

MOST_TOOLS = 3
WAYS = ("format", "required", "format", "auto")
"""How requests ask for a call, in turns.

    format     the answer must be a call in the format of Qwen's template, by a regular expression, and the server's parser reads it
    required   `tool_choice: required`: SGLang has the model write a JSON array, which it reads itself
    auto       the model decides what it writes
"""
_CITIES = ("Oslo", "Lima", "Zürich", "São Paulo", "Nairobi", "Osaka", "Rome", "Porto")
_CUSTOMERS = ("Meyer GmbH", "Nordwind AS", "Atelier Blanc", "O'Neill & Sons", "Kato Ltd")
_NOTES = (
    "buy milk and bread",
    "call Anna about the invoice of May",
    "the server room needs a second key",
    "ask for two quotes, then compare them",
    "move the review to Thursday at 10",
)


@dataclass(frozen=True)
class ToolRequest:
    """A chat, its tools, and the call that answers it."""

    messages: tuple[dict[str, Any], ...]
    tools: tuple[dict[str, Any], ...]
    expected: Call
    way: str
    """One of WAYS."""

    def body(self) -> dict[str, Any]:
        """The request as the chat API has it."""
        asked: dict[str, Any] = {"messages": list(self.messages), "tools": list(self.tools), "temperature": 0}
        if self.way == "required":
            asked["tool_choice"] = "required"
        if self.way == "format":
            names = "|".join(tool["function"]["name"] for tool in self.tools)
            asked["regex"] = rf'<tool_call>\n\{{"name": "({names})", "arguments": \{{[^\n]*\}}\}}\n</tool_call>'
        return asked


def draw_requests(number: int, seed: int) -> list[ToolRequest]:
    """Requests with 1 to MOST_TOOLS tools each. In half of them, an earlier call stands in the chat."""
    rng = random.Random(f"tool requests/{seed}")
    return [
        _draw(rng, WAYS[index % len(WAYS)], has_earlier_call=bool(index // len(WAYS) % 2)) for index in range(number)
    ]


def _draw(rng: random.Random, way: str, *, has_earlier_call: bool) -> ToolRequest:
    chosen = rng.sample(list(_DRAWN), rng.randint(1, MOST_TOOLS))
    asked = rng.choice(chosen)
    question, call = _DRAWN[asked](rng)
    messages: list[dict[str, Any]] = []
    if has_earlier_call:
        earlier, done = _DRAWN[asked](rng)
        function = {"name": done.name, "arguments": json.dumps(done.arguments, ensure_ascii=False)}
        messages = [
            {"role": "user", "content": earlier},
            {"role": "assistant", "content": "", "tool_calls": [{"id": "1", "type": "function", "function": function}]},
            {"role": "tool", "tool_call_id": "1", "content": '{"status": "ok"}'},
            {"role": "assistant", "content": "That is done."},
        ]
    return ToolRequest((*messages, {"role": "user", "content": question}), tuple(map(_tool, chosen)), call, way)


def _weather(rng: random.Random) -> tuple[str, Call]:
    city, days = rng.choice(_CITIES), rng.randint(2, 7)
    return f"What is the weather in {city} for the next {days} days?", Call("get_weather", {"city": city, "days": days})


def _orders(rng: random.Random) -> tuple[str, Call]:
    customer, limit = rng.choice(_CUSTOMERS), rng.randint(2, 20)
    arguments = {"customer": customer, "limit": limit}
    return f"Find the last {limit} orders of {customer}.", Call("search_orders", arguments)


def _note(rng: random.Random) -> tuple[str, Call]:
    path, content = f"notes/day-{rng.randint(1, 31)}.txt", rng.choice(_NOTES)
    arguments = {"path": path, "content": content}
    return f'Write a file {path} with this content: "{content}"', Call("write_file", arguments)


_DRAWN: dict[str, Callable[[random.Random], tuple[str, Call]]] = {
    "get_weather": _weather,
    "search_orders": _orders,
    "write_file": _note,
}
_DESCRIPTIONS = {
    "get_weather": ("Weather forecast of a city", {"city": "string", "days": "integer"}),
    "search_orders": ("Searches the latest orders of a customer", {"customer": "string", "limit": "integer"}),
    "write_file": ("Writes a text file", {"path": "string", "content": "string"}),
}


def _tool(name: str) -> dict[str, Any]:
    description, fields = _DESCRIPTIONS[name]
    parameters = {
        "type": "object",
        "properties": {field: {"type": kind} for field, kind in fields.items()},
        "required": list(fields),
    }
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}
