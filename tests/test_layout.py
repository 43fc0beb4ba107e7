"""Where things are: which part may import which, how large folders are, and where a reader finds what."""

from __future__ import annotations

import ast
import sys
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from every import every

ROOT = Path(__file__).parents[1]
TOP = ("agentspec", "store", "integrations", "workflows", "evals")

# What messages and their blocks mean, for every reader of logs and traces.
READERS = {"agentspec/analysis/logs/account", "agentspec/analysis/logs/calls", "agentspec/analysis/logs/formats"}

# Part of the project -> parts that it may import besides itself. A part is the longest of these names that a module's
# path begins with; "agentspec" is what lies in that folder itself. The order is that of the layers.
LAYERS: dict[str, set[str]] = {
    "agentspec": set(),
    "agentspec/__main__": {"agentspec/cli"},
    "agentspec/scheduling": {"agentspec"},
    **{part: {"agentspec"} | READERS for part in sorted(READERS)},
    "agentspec/analysis/replay": {"agentspec", "agentspec/scheduling"} | READERS,
    "agentspec/analysis/corpus": {"agentspec", "agentspec/analysis/replay"},
    "agentspec/observe": {"agentspec", "agentspec/analysis/replay"} | READERS,
    "agentspec/simulation": {
        "agentspec",
        "agentspec/analysis/replay",
        "agentspec/scheduling",
    },
    "agentspec/analysis": {
        "agentspec",
        "agentspec/analysis/replay",
        "agentspec/scheduling",
        "agentspec/simulation",
    }
    | READERS,
    "store": {"agentspec", "agentspec/analysis/corpus", "agentspec/analysis/replay", "agentspec/observe"} | READERS,
    "integrations": {
        "agentspec",
        "agentspec/analysis",
        "agentspec/analysis/corpus",
        "agentspec/analysis/replay",
        "agentspec/scheduling",
        "store",
    }
    | READERS,
    # The top layer: commands import what they need, but the commands of evals are known only by name.
    "agentspec/cli": {
        "agentspec",
        "agentspec/analysis",
        "agentspec/analysis/corpus",
        "agentspec/analysis/replay",
        "agentspec/observe",
        "agentspec/scheduling",
        "agentspec/simulation",
        "integrations",
        "store",
    }
    | READERS,
    # A command with modules of its own: it starts servers, and workflows and other programs by their command lines.
    "agentspec/ab": {"agentspec", "agentspec/analysis", "agentspec/cli", "integrations", "workflows"} | READERS,
    # Apart from errors, the progress bar and files of records, a workflow uses only the OpenAI API.
    "workflows": {f"agentspec/{name}.py" for name in ("environment", "errors", "progress", "record_file")},
}
LAYERS["evals"] = set(LAYERS)

# Folder of the core -> other people's packages that its modules import when they are imported.
AT_IMPORT = {
    "agentspec": {"numpy"},
    "agentspec/ab": {"numpy", "httpx", "jinja2"},
    "agentspec/analysis/logs": {"numpy", "zstandard"},
    "agentspec/analysis/report": {"numpy", "jinja2", "markupsafe"},
    "agentspec/observe": {"numpy", "httpx"},
}
# Packages that a function may import when it needs them.
LATER = {"aiohttp", "rich", "scipy"}

# Modules that nothing outside of evals imports, but that do not belong to evals: programs, plugins and commands, which
# are found by name.
BY_NAME = {
    "agentspec/__main__.py",
    "agentspec/ab/main.py",
    "agentspec/cli",
    "store/cli",
    "store/inspection.py",
    "integrations/emulated_device/plugin.py",
    "integrations/sglang/plugin.py",
    "integrations/sglang/admin/corpus_builder.py",
    "integrations/sglang_cpu",
}

# Folders of tests of what has no folder of its own.
WITHOUT_A_FOLDER = ("integrations/frameworks", "store/faults")

MOST_MODULES = 15
# Folder -> how many modules it may have, and why.
LARGER: dict[str, int] = {}

# What a reader looks for -> where it is.
NOUNS = {
    "goodput": "agentspec/scheduling/goodput.py",
    "flags": "integrations/sglang/settings.py",
    "suffix or draft model: the decision": "agentspec/scheduling/hybrid/planner.py",
    "backoff": "store/replication/backoff.py",
    "tree mask": "agentspec/native/drafting/tree_mask.h",
    "registration": "integrations/sglang/registration.py",
    "suffix array": "agentspec/native/index/suffix_array/suffix_array.h",
    "Prometheus metrics": "integrations/sglang/metrics.py",
    "draft-model state": "integrations/sglang/drafting/draft_model_state.py",
    "eviction": "agentspec/native/index/eviction.cc",
}


@cache
def modules() -> dict[str, ast.Module]:
    """Path -> syntax tree. The folders linked into agentspec/ for type checkers are walked under their own names."""
    found = {}
    for top in TOP:
        for path in sorted((ROOT / top).rglob("*.py")):
            name = path.relative_to(ROOT).as_posix()
            if not any(name.startswith(f"agentspec/{other}/") for other in TOP):
                found[name] = ast.parse(path.read_text(encoding="utf-8"))
    return found


def path_of(dotted: str) -> str | None:
    """The file of a module of the project, or of the module that defines the name; None for anything else."""
    parts = dotted.split(".")
    if parts[0] != "agentspec":
        return None
    if len(parts) > 1 and parts[1] in TOP:
        del parts[0]
    for count in range(len(parts), 0, -1):
        stem = "/".join(parts[:count])
        for path in (f"{stem}.py", f"{stem}/__init__.py"):
            if path in modules():
                return path
    return None


def imports(tree: ast.AST, *, only_at_import: bool = False) -> Iterator[str]:
    """The dotted names that are imported; `only_at_import` leaves out those in functions and for type checkers."""
    for node in ast.iter_child_nodes(tree):
        if only_at_import and isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if only_at_import and isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"a relative import: {ast.unparse(node)}"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        else:
            yield from imports(node, only_at_import=only_at_import)


def part_of(path: str) -> str:
    found = [part for part in LAYERS if path.startswith(f"{part}/") or path == f"{part}.py"]
    return max(found, key=len)


@every("part", LAYERS)
def test_imports_point_one_way(part: str) -> None:
    own = [path for path in modules() if part_of(path) == part]
    assert own
    for path in own:
        used = {found for name in imports(modules()[path]) if (found := path_of(name))}
        allowed = LAYERS[part] | {part}
        wrong = {other for other in used if part_of(other) not in allowed and other not in allowed}
        assert not wrong, path


def test_the_core_loads_numpy_only() -> None:
    known = sys.stdlib_module_names | {"agentspec"}
    for path, tree in modules().items():
        if not path.startswith("agentspec/"):
            continue
        folder = max((folder for folder in AT_IMPORT if path.startswith(f"{folder}/")), key=len)
        at_import = {name.partition(".")[0] for name in imports(tree, only_at_import=True)}
        assert at_import <= known | AT_IMPORT[folder], path
        ever = {name.partition(".")[0] for name in imports(tree)}
        assert ever <= known | AT_IMPORT[folder] | LATER, path


@pytest.mark.parametrize("folder", ["agentspec", "store", "integrations/sglang"])
def test_production_code_knows_nothing_of_the_cpu_path(folder: str) -> None:
    """The name may not even appear as text, which importlib could import."""
    for path in modules():
        if path.startswith(f"{folder}/"):
            assert "sglang_cpu" not in (ROOT / path).read_text(encoding="utf-8"), path


def test_what_only_evals_use_is_theirs() -> None:
    users = defaultdict(set)
    for path, tree in modules().items():
        for name in imports(tree):
            if (used := path_of(name)) and used != path:
                users[used].add(path)
    for path in modules():
        if path.startswith(("evals/", "workflows/")) or path.endswith("__init__.py"):
            continue
        if any(path == known or path.startswith(f"{known}/") for known in BY_NAME):
            continue
        assert any(not user.startswith("evals/") for user in users[path]), f"only evals import {path}"


def test_folders_are_small() -> None:
    """A header and its source count as one module, and an __init__.py does not count."""
    stems = defaultdict(set)
    for top in TOP:
        for path in (ROOT / top).rglob("*"):
            name = path.relative_to(ROOT)
            is_linked = top == "agentspec" and len(name.parts) > 2 and name.parts[1] in TOP
            if path.suffix in (".py", ".cc", ".h") and path.stem != "__init__" and not is_linked:
                stems[name.parent.as_posix()].add(path.stem)
    for folder, names in stems.items():
        assert len(names) <= LARGER.get(folder, MOST_MODULES), f"{folder} has {len(names)} modules"
    for folder, most in LARGER.items():
        assert len(stems[folder]) == most, f"{folder} has {len(stems[folder])} modules, not {most}"


@every("noun", NOUNS)
def test_a_noun_is_where_a_reader_looks(noun: str) -> None:
    assert (ROOT / NOUNS[noun]).is_file()


def test_tests_mirror_the_tree() -> None:
    for path in (ROOT / "tests").rglob("test_*.py"):
        folder = path.relative_to(ROOT / "tests").parent
        is_theirs = folder.parts and folder.parts[0] in TOP
        assert not is_theirs or (ROOT / folder).is_dir() or folder.as_posix() in WITHOUT_A_FOLDER, path
