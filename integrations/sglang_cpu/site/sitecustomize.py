"""Python runs this at the start of every process whose PYTHONPATH names this folder.

Installs the import hooks of `agentspec.integrations.sglang_cpu` (see there for why), then runs the `sitecustomize`
that this one hides, if there is any. Loads no torch and no SGLang, so an unrelated Python child starts as fast as ever.
"""

from __future__ import annotations

import importlib.util
import sys
from importlib.machinery import PathFinder
from pathlib import Path

_SITE = Path(__file__).resolve().parent


def _install_hooks() -> None:
    # By path, not by name: at this point agentspec may not be importable yet.
    spec = importlib.util.spec_from_file_location("_agentspec_sglang_cpu_imports", _SITE.parent / "imports.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    module.install()


def _run_hidden_sitecustomize() -> None:
    spec = PathFinder.find_spec("sitecustomize", [path for path in sys.path if Path(path).resolve() != _SITE])
    if spec is None or spec.loader is None:
        return
    module = importlib.util.module_from_spec(spec)
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


_install_hooks()
_run_hidden_sitecustomize()
