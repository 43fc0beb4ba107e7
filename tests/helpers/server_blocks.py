"""Made-up `agentspec` blocks of /server_info, and a server for them. They describe a healthy server by default."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from http_server import Handler, listening

BLOCK: dict[str, Any] = {
    "active": True,
    "version": "1.2.3",
    "started": 1000.0,
    "uptime_seconds": 100.0,
    "min_token_prob": 0.045,
    "settings": {"mode": "tree", "budget_mb": 256, "namespace_from": "auto", "store": "sqlite:///x"},
    "scope": {"model": "m", "tokenizer": "ab" * 32, "id": "cd" * 16},
    "counters": {"drafted_tokens": 4000, "accepted_tokens": 2000, "verify_steps": 1000, "steps": 500,
     "drafter_steps": 100, "drafter_paused_steps": 50, "draft_errors": 0, "control_errors": 0, "verified_tokens": 6000,
     "drafting_seconds": 0.5, "by_source": {"verify_steps": {"none": 200, "request": 300, "global": 500},
     "drafted_tokens": {"request": 1000, "global": 3000}, "accepted_tokens": {"none": 0, "request": 500,
     "global": 1500}}},
    "rows_without_draft": {"no_match": 150, "no_room": 50},
    "requests": {"kept": 40},
    "carriage_returns": {"prompts": 0, "outputs": 0},
    "control": {"controller": "goodput", "last_step": {"width": 8, "budget": 12, "reason": "best"},
     "plans": {"best": 450, "held": 50}, "widths": {"1": 20, "8": 480}, "measured_steps": 500, "predicted_seconds": 5.0,
     "observed_seconds": 5.5, "predicted_tokens": 3100.0, "observed_tokens": 3000},
    "breaker": {"open": False, "openings": 0},
    "engine": {"open_requests": 2, "request_bytes": 1000, "conversation_bytes": 2000, "global_bytes": 3000,
     "namespaces": 3, "outputs": 40, "output_tokens": 4000, "evicted_outputs": 0, "spared_tokens": 0},
    "store": {"url": "sqlite:///x", "ready": True, "connected": True, "queued_outputs": 0, "delivered_outputs": 40,
     "received_outputs": 5, "dropped_outputs": 0, "skipped_records": 0, "broken_logs": 0, "lag_seconds": {"p50": 0.01,
     "p99": 0.05, "max": 0.06}, "last_error": None},
}  # fmt: skip


def block(**changes: Any) -> dict[str, Any]:
    """Makes a block with changed values: `counters__steps=3` sets block["counters"]["steps"] = 3."""
    made = copy.deepcopy(BLOCK)
    for path, value in changes.items():
        *parents, last = path.split("__")
        place = made
        for parent in parents:
            place = place[parent]
        place[last] = value
    return made


@contextmanager
def served(pages: dict[str, Any]) -> Iterator[str]:
    """Yields the URL of a server with these pages.

    A string is sent as it is, an int as an HTTP status, and the values of a list one after another, with the last one
    repeated. Any other value is sent as JSON.
    """

    class Pages(Handler):
        def do_GET(self) -> None:
            page = pages.get(self.path, 404)
            if isinstance(page, list):
                page = page.pop(0) if len(page) > 1 else page[0]
            self.reply(page if isinstance(page, int) else 200, page.encode() if isinstance(page, str) else page)

    with listening(Pages) as url:
        yield url


def info(*blocks: dict[str, Any] | None) -> dict[str, Any]:
    """Makes a /server_info with one block for each rank. None is a rank without agentspec."""
    states = [{"x": 1} if one is None else {"x": 1, "agentspec": one} for one in blocks]
    return {"version": "0.5.23", "speculative_algorithm": "NGRAM", "internal_states": states}
