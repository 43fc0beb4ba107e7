"""Tests that run only when what they test has changed, because their requirements take long to install.

Each is a marker of pyproject.toml. `.ci/passed.json` has a hash of the files that the marker's tests check, as they were
when these tests last passed. A clone knows from it, without its history, which of these tests it must run.

    .ci/rare.py due              prints the markers whose files have changed
    .ci/rare.py skipped          prints the other markers
    .ci/rare.py passed MARKER …  notes that the tests of these markers pass, unless what they need is missing here, so that
                                 they were skipped; needs .venv
"""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
PASSED = ROOT / ".ci" / "passed.json"

# What all of these tests depend on: releases, and how they are installed. Of pyproject.toml, these tables.
COMMON = (".ci/environments.mk", ".ci/install.py")
TABLES = ("build-system", "project")
# Marker -> files and folders that its tests check. The test files with the marker count too.
INPUTS = {
    "agents": ("workflows/swe", "tests/workflows/swe", "integrations/sglang/replay", "tests/helpers/replay_clients.py"),
    "arctic": ("evals/peers", "agentspec/analysis/replay", "evals/micro/engine.py", "evals/micro/engine_sides.py"),
    "browser": (
        "agentspec/analysis/report", "agentspec/ab", "tests/helpers/page_facts.py", "tests/helpers/ab_turns.py",
    ),
    "deployment": ("integrations/docker", "integrations/kubernetes", "integrations/prometheus", "integrations/grafana"),
    "frameworks": ("docs/agents/frameworks.md", "tests/integrations/frameworks", "tests/helpers/chat_server.py"),
    "other_release": ("integrations/sglang", "integrations/sglang_cpu", "evals/gpu", "tests/helpers/releases.py"),
    "packaging": (
        "agentspec/__init__.py", "agentspec/__main__.py", "agentspec/installation.py", "agentspec/cli/__init__.py",
        "agentspec/native/CMakeLists.txt", "integrations/sglang/plugin.py",
    ),
    "prometheus": ("integrations/prometheus", "integrations/grafana", "integrations/sglang/metrics.py"),
    "router": ("evals/fleet", "store/redis", "store/replication", "integrations/sglang/store_setup.py"),
}  # fmt: skip


def git_files(*words: str) -> list[str]:
    command = ["git", "-C", str(ROOT), *words]
    return subprocess.run(command, check=False, capture_output=True, text=True).stdout.splitlines()


def hash_of(marker: str) -> str:
    """The hash of the names and the contents of all files that count for a marker."""
    tests = [name for name in git_files("ls-files", "tests") if name.endswith(".py")]
    marked = re.compile(rf"\bmark\.{marker}\b")
    names = {name for name in tests if (ROOT / name).exists() and marked.search((ROOT / name).read_text())}
    names |= set(git_files("ls-files", "--cached", "--others", "--exclude-standard", *COMMON, *INPUTS[marker]))
    tables = tomllib.loads((ROOT / "pyproject.toml").read_text())
    found = hashlib.sha256(repr([tables[name] for name in TABLES] + [tables["tool"]["scikit-build"]]).encode())
    for name in sorted(names):
        if (ROOT / name).exists():
            found.update(f"{name}\0{hashlib.sha256((ROOT / name).read_bytes()).hexdigest()}\n".encode())
    return found.hexdigest()


def main() -> None:
    command, *markers = sys.argv[1:]
    passed: dict[str, str] = json.loads(PASSED.read_text()) if PASSED.exists() else {}
    if command == "passed":
        sys.path.append(str(ROOT / "tests" / "helpers"))
        import needs

        passed |= {marker: hash_of(marker) for marker in markers if not needs.missing(marker)}
        PASSED.write_text(json.dumps(passed, indent=2, sort_keys=True) + "\n")
        return
    due = {marker: passed.get(marker) != hash_of(marker) for marker in INPUTS}
    print(*(marker for marker in INPUTS if due[marker] == (command == "due")))


main()
