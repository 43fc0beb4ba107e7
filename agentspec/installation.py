"""Detects files of another project in the folder of this package.

PyPI has a distribution named `agentspec`, which is not this project but installs a module of the same name. This
project is the distribution `sglang-agentspec`. If both are installed into one folder, the later one overwrites files of
the earlier one, and neither pip nor Python reports it.
"""

from __future__ import annotations

import sys
from importlib import metadata
from pathlib import Path

from agentspec.errors import InstallationError

DISTRIBUTION = "sglang-agentspec"

_OTHER = "agentspec"
_REPAIR = f"Run `pip uninstall -y {_OTHER} {DISTRIBUTION}`, then install {DISTRIBUTION} again"


def check_installation() -> None:
    """Checks that no other distribution has put files into the folder of this package. Raises InstallationError if the
    distribution `agentspec` is installed there."""
    folders = {Path(folder).resolve() for folder in sys.modules["agentspec"].__path__}
    for other in metadata.distributions(name=_OTHER):
        folder = Path(str(other.locate_file("agentspec"))).resolve()
        if folder in folders:
            raise InstallationError(
                f"the files of {DISTRIBUTION} must be the only ones in {folder}, but {_OTHER} {other.version}, another "
                f"project whose module is named agentspec too, is installed there. {_REPAIR}; {_OTHER} needs an "
                "environment of its own"
            )


def check_package() -> None:
    """Does check_installation(), and checks that `import agentspec` ran this project's `__init__.py`.

    The entry modules of commands and plugins call this. They run even if another distribution has overwritten that
    file, or has removed it when it was uninstalled. Raises InstallationError if another or no `__init__.py` ran, or the
    distribution `agentspec` is installed there too.
    """
    check_installation()
    package = sys.modules["agentspec"]
    if "Engine" not in getattr(package, "__all__", ()):
        raise InstallationError(
            f"agentspec/__init__.py must be the file that {DISTRIBUTION} installs, but it is "
            f"{'another one' if getattr(package, '__file__', None) else 'missing'}: another distribution that has a module "
            f"named agentspec was installed into {', '.join(package.__path__)}. {_REPAIR}"
        )
