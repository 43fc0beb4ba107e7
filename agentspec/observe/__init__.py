"""Reads `/server_info` of a running server, and turns it into figures for people and into findings.

ServerClient ──> ServerState ──> Summary, from one reading or from the difference of two
                             └─> Finding, what is wrong and what to do
"""

from agentspec.observe.client import ServerClient, ServerState
from agentspec.observe.counts import Change, change
from agentspec.observe.findings import Finding, Severity
from agentspec.observe.server_checks import check_rank, check_server
from agentspec.observe.summary import Summary, summarise

__all__ = [
    "Change", "Finding", "ServerClient", "ServerState", "Severity", "Summary", "change", "check_rank",
    "check_server", "summarise",
]  # fmt: skip
