"""Imports point one way: agentspec <- store <- integrations; workflows stand alone; evals may import all. What runs on a
GPU knows nothing of the CPU path."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
# Modules of the core that stand by themselves.
SHARED = {"errors", "progress"}
# Folder -> parts of the import root that it may import, itself included.
ALLOWED = {
    "agentspec": {"core"},
    "agentspec/cli": {"core", "store", "integrations"},
    "store": {"core", "store"},
    "integrations": {"core", "store", "integrations"},
    # Errors and the bar of its progress apart, a workflow knows nothing but the OpenAI API.
    "workflows": {"workflows", *SHARED},
    "evals": {"core", "store", "integrations", "workflows", "evals"},
}
FOLDERS = {"store", "integrations", "workflows", "evals"}


def imported_parts(path: Path) -> set[str]:
    parts = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        for name in names:
            words = name.split(".")
            if words[0] == "agentspec":
                second = words[1] if len(words) > 1 else "core"
                parts.add(second if second in FOLDERS | SHARED else "core")
    return parts


def files(folder: str) -> list[Path]:
    # The folders linked into agentspec/ for type checkers are walked under their own names.
    return [
        path
        for path in (ROOT / folder).rglob("*.py")
        if not (folder == "agentspec" and path.parts[len(ROOT.parts) + 1] in FOLDERS | {"cli"})
    ]


@pytest.mark.parametrize("folder", ALLOWED)
def test_imports_point_one_way(folder: str) -> None:
    found = files(folder)
    assert found
    for path in found:
        allowed = ALLOWED[folder] | (SHARED if "core" in ALLOWED[folder] else set())
        assert imported_parts(path) <= allowed, path


@pytest.mark.parametrize("folder", ["agentspec", "store", "integrations/sglang"])
def test_production_code_knows_nothing_of_the_cpu_path(folder: str) -> None:
    """Not in words either, which importlib could import."""
    found = files(folder)
    assert found
    for path in found:
        assert "sglang_cpu" not in path.read_text(encoding="utf-8"), path
