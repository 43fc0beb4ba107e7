"""The modules that task repositories are built from, each with the bugs that it may have."""

from __future__ import annotations

from agentspec.workflows.swe.components.base import Bug, Component
from agentspec.workflows.swe.components.catalogue import CATALOGUE
from agentspec.workflows.swe.components.paging import PAGING
from agentspec.workflows.swe.components.records import RECORDS
from agentspec.workflows.swe.components.service import SERVICE

COMPONENTS = (RECORDS, CATALOGUE, PAGING, SERVICE)
"""The modules of every repository. The service imports the other three."""

__all__ = ["COMPONENTS", "Bug", "Component"]
