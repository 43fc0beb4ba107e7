"""The command `agentspec`."""

from agentspec.cli.main import main
from agentspec.installation import check_package

# The module must not need what `agentspec/__init__.py` holds, which may be the other project's file.
check_package()

__all__ = ["main"]
