"""agentspec drafts repeated text from suffix indexes, which makes an SGLang server faster on agentic work.

Importing this package loads only numpy and the native core, not torch, SGLang or redis.
"""

from __future__ import annotations

from importlib.metadata import version

from agentspec.config import EngineConfig
from agentspec.drafts import (
    DraftBatch,
    DraftBuffers,
    DraftRow,
    Outcome,
    Source,
    TreeArrays,
    TreeBuffers,
    build_tree_arrays,
)
from agentspec.engine import Engine, EngineStats, NamespaceStats, Trials, request_hash
from agentspec.errors import (
    AgentspecError,
    ConfigError,
    DuplicateRequestError,
    InstallationError,
    RequestError,
    SegmentError,
    ServerError,
    TokenError,
    UnknownRequestError,
    UnsupportedError,
)
from agentspec.estimates import Estimates
from agentspec.installation import DISTRIBUTION, check_installation
from agentspec.snapshot import SealedSegment, Snapshot

check_installation()
__version__ = version(DISTRIBUTION)

__all__ = [
    "AgentspecError", "ConfigError", "DraftBatch", "DraftBuffers", "DraftRow", "DuplicateRequestError", "Engine",
    "EngineConfig", "EngineStats", "Estimates", "InstallationError", "NamespaceStats", "Outcome", "RequestError",
    "SealedSegment", "SegmentError", "ServerError", "Snapshot", "Source", "TokenError", "TreeArrays", "TreeBuffers",
    "Trials", "UnknownRequestError", "UnsupportedError", "build_tree_arrays", "request_hash",
]  # fmt: skip
