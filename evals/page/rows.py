"""The rows of each topic of results. Every topic is a folder of evals/results."""

from __future__ import annotations

from agentspec.evals.page import offline_rows, served_rows
from agentspec.evals.page.row import Files, Row

TITLES = {
    "eval": "Tasks end to end on real servers",
    "emulated": "Emulated H200",
    "hybrid": "Suffix drafts beside a draft model",
    "load": "More and more clients",
    "engine": "The engine beside its peers",
    "store": "The store",
    "control": "What deciding costs",
    "drafter-state": "A draft model after suffix steps",
    "report": "The report's figures",
    "fidelity": "Simulated and real latencies",
    "simulation": "Simulated serving",
    "specdec": "SpecDec++ offline",
    "text-to-sql": "Staged text-to-SQL agents",
}
"""In the order of the page."""

_READERS = {**served_rows.READERS, **offline_rows.READERS}


def topic_rows(topic: str, files: Files) -> list[Row]:
    """The rows of a topic; none of one that nobody reads."""
    reader = _READERS.get(topic)
    return reader(files) if reader and files else []
