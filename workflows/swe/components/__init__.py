"""The modules that task repositories are built from, each with the bugs that it may have."""

from __future__ import annotations

from agentspec.workflows.swe.components.base import Bug, Component
from agentspec.workflows.swe.components.catalogue import CATALOGUE
from agentspec.workflows.swe.components.intervals import INTERVALS
from agentspec.workflows.swe.components.paging import PAGING
from agentspec.workflows.swe.components.pricing import PRICING
from agentspec.workflows.swe.components.records import RECORDS
from agentspec.workflows.swe.components.service import SERVICE
from agentspec.workflows.swe.components.summary import SUMMARY
from agentspec.workflows.swe.components.tables import TABLES

CORE = (RECORDS, CATALOGUE, PAGING, SERVICE)
"""The modules of every repository. The service imports the other three."""
OPTIONAL = (INTERVALS, PRICING, SUMMARY, TABLES)

__all__ = ["CORE", "OPTIONAL", "Bug", "Component"]
