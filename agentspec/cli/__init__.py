"""The command `agentspec`."""

from agentspec.cli.main import main

__all__ = ["main"]
