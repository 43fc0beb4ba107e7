"""The requirements of each test marker, whether this machine meets them, and how to install what is missing."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from agentspec.evals import real_models
from agentspec.evals.micro.store import redis_server

ROOT = Path(__file__).parents[2]
AGENTS = ROOT / ".venv-agents" / "bin" / "python"
FRAMEWORKS = ROOT / ".venv-frameworks" / "bin" / "python"
# Recorded sessions and the databases that they ask. They are not part of the project.
TRACES = Path(os.environ.get("AGENTSPEC_TRACES", ROOT.parent / "shared" / "data"))
DEPLOYMENT = ROOT / ".venv-deployment" / "bin"
OLD_SGLANG = ROOT / ".venv-old-sglang" / "bin" / "python"


def chromium() -> str | None:
    names = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
    return next((found for name in names if (found := shutil.which(name))), None)


def _has_gpu() -> bool:
    if find_spec("torch") is None:
        return False
    import torch

    return torch.cuda.is_available()


def _installed(*modules: str) -> Callable[[], bool]:
    return lambda: all(find_spec(module) for module in modules)


# Marker -> (whether the requirement is met, what it is, how to get it)
_NEEDS: dict[str, tuple[Callable[[], bool], str, str]] = {
    "sglang": (_installed("sglang"), "SGLang", "`make setup`"),
    "redis": (lambda: redis_server.executable() is not None, "a redis-server", "`make setup`"),
    "arctic": (_installed("arctic_inference"), "ArcticInference", "`make arctic`"),
    "deployment": ((DEPLOYMENT / "hadolint").exists, "checks of deployments in .venv-deployment", "`make deployment`"),
    "router": (_installed("smg"), "the router smg", "`make router`"),
    "frameworks": (FRAMEWORKS.exists, "agent frameworks in .venv-frameworks", "`make frameworks`"),
    "agents": (AGENTS.exists, "coding agents in .venv-agents", "`make agents`"),
    "other_release": (OLD_SGLANG.exists, "another release of SGLang in .venv-old-sglang", "`make old-sglang`"),
    "prometheus": (
        lambda: all(map(shutil.which, ("prometheus", "promtool"))),
        "prometheus and promtool",
        "`make prometheus`, or `apt-get install --no-install-recommends prometheus`",
    ),
    "browser": (
        lambda: chromium() is not None and _installed("playwright", "axe_playwright_python")(),
        "Chromium, playwright and axe-playwright-python",
        "`make test-all`",
    ),
    "real_model": (
        (ROOT / real_models.FOLDER / "qwen2.5-coder-0.5b" / "config.json").exists,
        "the folder of Qwen2.5-Coder 0.5B",
        "`make real-models`",
    ),
    "traces": ((TRACES / "README.md").exists, "recorded traces", "set AGENTSPEC_TRACES to the folder that holds them"),
    "gpu": (_has_gpu, "a CUDA GPU", "`pytest -m gpu` on a GPU host"),
}
# Requirements that even a machine that runs CI may lack.
OPTIONAL = {"gpu", "traces"}


@cache
def missing(marker: str) -> str:
    """Describes what tests of the marker need and this machine lacks; empty if nothing is missing."""
    is_there, name, command = _NEEDS.get(marker, (lambda: True, "", ""))
    return "" if is_there() else f"needs {name}: {command}"
