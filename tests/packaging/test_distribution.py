"""The distribution: what it holds, that it works in an empty environment, and what another project of its name does to it."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest
from byte_tokenizer import write_byte_tokenizer
from logs import sql_sessions, write_lines

pytestmark = pytest.mark.packaging

ROOT = Path(__file__).parents[2]
FOLDERS = ("agentspec", "store", "integrations", "workflows", "evals")
NATIVE = (".cc", ".h", ".so")


@dataclass(frozen=True, slots=True)
class Environment:
    """A virtual environment with nothing in it but pip."""

    folder: Path

    def run(self, *words: str | Path) -> subprocess.CompletedProcess[str]:
        """Runs a program of the environment in its own folder, without this process's Python variables."""
        variables = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
        command = [self.folder / "bin" / words[0], *words[1:]]
        return subprocess.run(
            command, check=False, cwd=self.folder, env=variables, capture_output=True, text=True, timeout=600
        )

    def output(self, *words: str | Path) -> str:
        result = self.run(*words)
        assert result.returncode == 0, result.stdout + result.stderr
        return result.stdout

    def pip(self, *words: str | Path) -> None:
        self.output("python", "-m", "pip", "--disable-pip-version-check", "--quiet", *words)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the source distribution and a wheel.

    The wheel is made in this environment, where the native code is compiled already; installing the source distribution
    compiles it again.
    """
    folder = tmp_path_factory.mktemp("dist")
    for words in (["--sdist"], ["--wheel", "--no-isolation"]):
        command = [sys.executable, "-P", "-m", "build", *words, "--outdir", str(folder), str(ROOT)]
        result = subprocess.run(command, check=False, cwd=folder, capture_output=True, text=True, timeout=600)
        assert result.returncode == 0, result.stdout + result.stderr
    return folder


@pytest.fixture(scope="module")
def wheel(built: Path) -> Path:
    [wheel] = built.glob("sglang_agentspec-*.whl")
    return wheel


@pytest.fixture
def empty(tmp_path: Path) -> Environment:
    folder = tmp_path / "environment"
    venv.create(folder, with_pip=True, symlinks=True)
    return Environment(folder)


def test_the_wheel_holds_the_packages_and_neither_figures_nor_native_sources(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    expected = {
        f"{'' if folder == 'agentspec' else 'agentspec/'}{path.relative_to(ROOT).as_posix()}"
        for folder in FOLDERS
        for path in (ROOT / folder).rglob("*")
        if path.is_file()
        and path.suffix not in NATIVE
        and path.name != "CMakeLists.txt"
        and not {"__pycache__", "results"} & set(path.relative_to(ROOT).parts)
        # Editors and type checkers see the other folders through links in agentspec/.
        and (folder != "agentspec" or path.relative_to(ROOT).parts[1] not in FOLDERS)
    }
    assert expected <= names
    unexpected = {name for name in names - expected if ".dist-info/" not in name and not name.endswith(".so")}
    assert not unexpected
    assert "agentspec/py.typed" in names
    assert [name for name in names if name.startswith("agentspec/_core.") and name.endswith(".so")]


@pytest.mark.parametrize("kind", ["*.whl", "*.tar.gz"])
def test_it_works_in_an_empty_environment(kind: str, built: Path, empty: Environment, tmp_path: Path) -> None:
    [file] = built.glob(kind)
    # tiktoken reads the tokenizer below.
    empty.pip("install", file, "tiktoken")
    loaded = empty.output("python", "-c", "import sys, agentspec; print(*sys.modules)").split()
    assert not {"torch", "sglang", "redis"} & set(loaded)
    assert "report" in empty.output("agentspec", "--help")
    log = write_lines(tmp_path / "log.jsonl", sql_sessions(25, seed=0))
    page = tmp_path / "report.html"
    empty.output("agentspec", "report", log, "--tokenizer", write_byte_tokenizer(tmp_path), "--out", page)
    assert "--speculative-algorithm AGENTSPEC" in page.read_text()
    # What needs more says so, as one line.
    without = empty.run("agentspec", "demo")
    assert without.returncode == 2
    assert without.stderr.splitlines()[-1] == (
        "agentspec demo: the Python package torch must be installed, and it is not"
    )


def _wheel_of_the_other_project(folder: Path) -> Path:
    """A wheel of the name that another project has on PyPI, with modules of the same names as ours."""
    info = "agentspec-9.9.dist-info"
    files = {
        "agentspec/__init__.py": '__version__ = "9.9"\n',
        "agentspec/cli.py": "def app() -> None:\n    print('the other command')\n",
        f"{info}/METADATA": "Metadata-Version: 2.1\nName: agentspec\nVersion: 9.9\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/entry_points.txt": "[console_scripts]\nagentspec = agentspec.cli:app\n",
    }
    files[f"{info}/RECORD"] = "".join(f"{name},,\n" for name in [*files, f"{info}/RECORD"])
    path = folder / "agentspec-9.9-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return path


def test_the_other_project_of_the_same_name_is_noticed(wheel: Path, empty: Environment, tmp_path: Path) -> None:
    other = _wheel_of_the_other_project(tmp_path)
    registers = ("python", "-c", "from agentspec.integrations.sglang import plugin; plugin.register()")
    is_refused = "InstallationError: the files of sglang-agentspec must be the only ones in "
    advice = "`pip uninstall -y agentspec sglang-agentspec`, then install sglang-agentspec again"

    def assert_refused(message: str, *commands: tuple[str, ...]) -> None:
        for command in commands:
            result = empty.run(*command)
            assert result.returncode != 0
            last = result.stderr.splitlines()[-1]
            assert message in last and advice in last, result.stderr

    empty.pip("install", wheel)
    # The other one came last: its __init__.py and its command have overwritten ours.
    empty.pip("install", "--no-index", other)
    assert_refused(is_refused, ("agentspec", "--help"), ("python", "-m", "agentspec", "--help"), registers)
    # Its removal took both away.
    empty.pip("uninstall", "--yes", "agentspec")
    assert_refused("but it is missing", ("python", "-m", "agentspec", "--help"), registers)
    # Ours came last.
    empty.pip("install", "--no-index", other)
    empty.pip("install", "--no-index", "--no-deps", "--force-reinstall", wheel)
    assert_refused(is_refused, ("agentspec", "--help"), ("python", "-c", "import agentspec"), registers)
    # The advice helps.
    empty.pip("uninstall", "--yes", "agentspec", "sglang-agentspec")
    empty.pip("install", "--no-index", wheel)
    assert "report" in empty.output("agentspec", "--help")
