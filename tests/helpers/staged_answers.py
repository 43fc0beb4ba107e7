"""Answers of the staged agents to one question about the generated shop database, each in the form required of it."""

from __future__ import annotations

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
