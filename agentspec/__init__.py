"""agentspec drafts repeats from suffix indexes, to make an SGLang server faster on agentic work.

Importing it loads numpy and the native core only: no torch, no SGLang, no redis.
"""

from __future__ import annotations

from importlib.metadata import version

from agentspec.config import EngineConfig
from agentspec.draft_tree import DraftBatch, DraftRow, Source, TreeArrays, build_tree_arrays
from agentspec.engine import Engine, EngineStats
from agentspec.errors import (
    AgentspecError,
    ConfigError,
    DuplicateRequestError,
    RequestError,
    ServerError,
    TokenError,
    UnknownRequestError,
    UnsupportedError,
)

__version__ = version("agentspec")

__all__ = [
    "AgentspecError",
    "ConfigError",
    "DraftBatch",
    "DraftRow",
    "DuplicateRequestError",
    "Engine",
    "EngineConfig",
    "EngineStats",
    "RequestError",
    "ServerError",
    "Source",
    "TokenError",
    "TreeArrays",
    "UnknownRequestError",
    "UnsupportedError",
    "build_tree_arrays",
]
