"""How many small mistakes the fast tests notice: changes one line at a time and runs the tests of its folder.

    .venv/bin/python -P .ci/mutants.py [--count 50] [--seed 1] [--base REV]

It works in a temporary checkout of REV (HEAD by default), with the native core and the libraries of the environment that
runs it, so REV's Python must fit that core. Tests that need servers, a GPU or a service are left out: what only such
tests would notice counts as missed.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import importlib
import os
import random
import re
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MUTATED = ("agentspec", "store", "integrations/sglang")
SLOW = "server or other_release or redis or arctic or agents or frameworks or browser or gpu or packaging or real_model"
# What this process has imported, pytest cannot rewrite any more.
REWRITING = "ignore::pytest.PytestAssertRewriteWarning"
CPU_SECONDS, WAIT_SECONDS = 240, 900
COMPARISONS = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
}  # fmt: skip
ARITHMETIC = {ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.FloorDiv, ast.FloorDiv: ast.Mult, ast.Div: ast.Mult}


def mutations(tree: ast.Module) -> Iterator[tuple[int, str, Callable[[], None]]]:
    """Line, description and change of everything that can be mutated; annotations and texts cannot."""
    skipped: set[int] = set()
    for node in ast.walk(tree):
        for name in ("annotation", "returns"):
            if isinstance(part := getattr(node, name, None), ast.AST):
                skipped |= {id(inner) for inner in ast.walk(part)}
        if isinstance(node, ast.JoinedStr) or (isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)):
            skipped |= {id(inner) for inner in ast.walk(node)}
    for node in ast.walk(tree):
        if id(node) in skipped:
            continue
        match node:
            case ast.Compare(ops=[op, *_]):
                yield node.lineno, "comparison", lambda n=node, o=op: n.ops.__setitem__(0, COMPARISONS[type(o)]())
            case ast.BinOp(op=op) if type(op) in ARITHMETIC and not isinstance(node.left, ast.Constant | ast.JoinedStr):
                yield node.lineno, "arithmetic", lambda n=node, o=op: setattr(n, "op", ARITHMETIC[type(o)]())
            case ast.BoolOp(op=op):
                other = ast.Or if isinstance(op, ast.And) else ast.And
                yield node.lineno, "and/or", lambda n=node, o=other: setattr(n, "op", o())
            case ast.Constant(value=bool() as value):
                yield node.lineno, "constant", lambda n=node, v=value: setattr(n, "value", not v)
            case ast.Constant(value=int() | float() as value):
                yield node.lineno, "constant", lambda n=node, v=value: setattr(n, "value", v + 1)
            case ast.Return(value=ast.AST() as value) if ast.unparse(value) != "None":
                yield node.lineno, "return", lambda n=node: setattr(n, "value", ast.Constant(None))


def chosen(tree: Path, count: int, seed: int) -> list[tuple[str, int, int, str]]:
    """Path, line, number of the mutation and its description, for random lines."""
    listed = subprocess.run(
        ["git", "-C", tree, "ls-files", *(f"{folder}/*.py" for folder in MUTATED)],
        check=True,
        capture_output=True,
        text=True,
    )
    lines: dict[tuple[str, int], list[tuple[int, str]]] = {}
    for path in listed.stdout.splitlines():
        found = mutations(ast.parse((tree / path).read_text(encoding="utf-8")))
        for number, (line, what, _) in enumerate(found):
            lines.setdefault((path, line), []).append((number, what))
    drawn = random.Random(seed)
    return [(*line, *drawn.choice(lines[line])) for line in drawn.sample(sorted(lines), count)]


def tests_of(tree: Path, path: str) -> list[str]:
    """The module's own tests, or those of its folder, or of the nearest folder above that has some."""
    own = tree / "tests" / Path(path).with_name(f"test_{Path(path).name}")
    if own.exists():
        return [str(own.relative_to(tree))]
    found = next(
        list(folder.glob("test_*.py")) for folder in (own.parent, *own.parents) if any(folder.glob("test_*.py"))
    )
    return [str(test.relative_to(tree)) for test in sorted(found)]


def import_from(tree: Path) -> None:
    """Makes the checkout, not the tree of the editable install, the source of the package, and imports what is slow."""
    for finder in sys.meta_path:
        if type(finder).__name__ == "ScikitBuildRedirectingFinder":
            sources, folders = finder.known_source_files, finder.submodule_search_locations  # type: ignore[attr-defined]
            moved = {
                str(ROOT / top): str(tree / top) for top in ("agentspec", "store", "integrations", "workflows", "evals")
            }
            for old, new in moved.items():
                sources.update({name: path.replace(old + "/", new + "/") for name, path in sources.items()})
                folders.update(
                    {n: [p.replace(old, new) if p.startswith(old) else p for p in ps] for n, ps in folders.items()}
                )
    for name in ("numpy", "scipy.optimize", "httpx", "jinja2", "pydantic", "torch"):
        with contextlib.suppress(ImportError):
            importlib.import_module(name)


def run(tree: Path, tests: list[str]) -> str:
    """Nothing if the tests pass, else the first that failed, or why they ended. They run in a fork of this process."""
    with tempfile.TemporaryFile("w+") as output:
        child = os.fork()
        if not child:
            status = 70
            try:
                os.setsid()
                # A mutant may never end: spinning is limited in CPU time, which does not depend on what else runs.
                resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS))
                os.dup2(output.fileno(), 1)
                os.dup2(output.fileno(), 2)
                os.chdir(tree)
                status = pytest.main(
                    ["-q", "-x", "-p", "no:cacheprovider", "-W", REWRITING, "-m", f"not ({SLOW})", *tests]
                )
            finally:
                # Whatever happens here, the cleaning up is the parent's.
                os._exit(status)
        end = time.monotonic() + WAIT_SECONDS
        while not (ended := os.waitpid(child, os.WNOHANG))[0]:
            time.sleep(0.1)
            if time.monotonic() > end:
                os.killpg(child, signal.SIGKILL)
        output.seek(0)
        failed = re.search(r"^(?:FAILED|ERROR) (.+?)(?: - |$)", output.read(), re.MULTILINE)
    status = os.waitstatus_to_exitcode(ended[1])
    return failed[1] if failed else "" if status in (0, 5) else f"ended with {status}"


def caught(tree: Path, mutant: tuple[str, int, int, str]) -> bool | None:
    """None: the test that failed fails without the mutation too."""
    path, line, number, what = mutant
    file = tree / path
    source = file.read_text(encoding="utf-8")
    module = ast.parse(source)
    list(mutations(module))[number][2]()
    file.write_text(ast.unparse(module), encoding="utf-8")
    try:
        failed = run(tree, tests_of(tree, path))
    finally:
        file.write_text(source, encoding="utf-8")
    verdict = None if "::" in failed and run(tree, [failed]) else bool(failed)
    print({True: "caught", False: "MISSED", None: "broken"}[verdict], f"{path}:{line} ({what})", failed, flush=True)
    return verdict


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--base", default="HEAD", metavar="REV")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "tree"
        git = ["git", "-C", str(ROOT), "worktree"]
        subprocess.run([*git, "add", "--quiet", "--detach", str(tree), options.base], check=True)
        try:
            import_from(tree)
            verdicts = [caught(tree, mutant) for mutant in chosen(tree, options.count, options.seed)]
        finally:
            subprocess.run([*git, "remove", "--force", str(tree)], check=True)
    print(f"{verdicts.count(True)} of {len(verdicts) - verdicts.count(None)} mutants caught at {options.base}")


if __name__ == "__main__":
    main()
