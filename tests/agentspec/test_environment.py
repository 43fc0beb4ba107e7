"""The environment: what is recorded of it, other packages of the same name, fingerprints of tokenizers, and progress."""

from __future__ import annotations

import hashlib
import sys
import types
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest

import agentspec
from agentspec import InstallationError
from agentspec.environment import describe
from agentspec.fingerprint import fingerprint, identity
from agentspec.installation import check_installation, check_package
from agentspec.progress import Progress, waiting


@pytest.mark.parametrize(
    ("started", "recorded"),
    [
        ("agentspec.evals.run.coding_agents", "python -m agentspec.evals.run.coding_agents"),
        ("agentspec.workflows.swe.__main__", "python -m agentspec.workflows.swe"),
        ("agentspec.__main__", "agentspec"),
        (None, "agentspec"),
    ],
)
def test_a_recorded_command_can_be_run_again(
    started: str | None, recorded: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = ModuleSpec(started, None) if started else None
    monkeypatch.setattr(sys.modules["__main__"], "__spec__", spec)
    monkeypatch.setattr(sys, "argv", ["program", "--out", "/somewhere/out.json"])
    assert " ".join(describe(())["command"]) == f"{recorded} --out out.json"


@pytest.fixture
def other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder on the import path in which the other project is installed."""
    info = tmp_path / "agentspec-9.9.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: agentspec\nVersion: 9.9\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def test_the_other_project_in_the_same_folder_is_refused(other: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agentspec, "__path__", [*agentspec.__path__, str(other / "agentspec")])
    with pytest.raises(InstallationError, match=r"agentspec 9\.9.*pip uninstall -y agentspec sglang-agentspec"):
        check_installation()


def test_the_other_project_in_another_folder_does_no_harm(other: Path) -> None:
    check_package()


@pytest.mark.parametrize("file", [None, "agentspec/__init__.py"])
def test_a_package_that_is_not_ours_is_refused(
    file: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = types.ModuleType("agentspec")
    package.__path__ = [str(tmp_path)]
    package.__file__ = file
    monkeypatch.setitem(sys.modules, "agentspec", package)
    with pytest.raises(InstallationError, match="missing" if file is None else "another one"):
        check_package()


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def test_a_file_is_named_by_its_content(tmp_path: Path) -> None:
    for name in ("a.json", "b.json"):
        (tmp_path / name).write_bytes(b"{}")
    assert fingerprint(tmp_path / "a.json") == fingerprint(str(tmp_path / "b.json")) == sha256(b"{}")


@pytest.mark.parametrize(
    ("names", "taken"),
    [
        (["tokenizer.json", "tekken.json", "x.tiktoken"], "tokenizer.json"),
        (["tekken.json", "tokenizer.model", "config.json"], "tekken.json"),
        (["tokenizer.model", "a.tiktoken"], "tokenizer.model"),
        (["b.tiktoken", "a.tiktoken", "model.safetensors"], "a.tiktoken"),
    ],
)
def test_a_model_s_folder_is_named_by_its_tokenizer(tmp_path: Path, names: list[str], taken: str) -> None:
    for name in names:
        (tmp_path / name).write_text(name)
    assert fingerprint(tmp_path) == sha256(taken.encode()) == fingerprint(tmp_path / taken)


def test_where_there_is_no_tokenizer_there_is_no_name(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "tokenizer.json").mkdir()
    assert fingerprint(tmp_path) == fingerprint(tmp_path / "none") == ""


def test_an_identity_is_the_hash_itself_or_a_hash_of_the_name() -> None:
    digest = sha256(b"x")
    assert identity(digest) == bytes.fromhex(digest) == hashlib.sha256(b"x").digest()
    # This name is hexadecimal but not a SHA-256 hash.
    assert identity("abcd") == hashlib.sha256(b"abcd").digest()
    assert identity("qwen") == hashlib.sha256(b"qwen").digest()
    assert identity("") == hashlib.sha256(b"").digest()


@pytest.mark.parametrize(
    ("terminal", "shown"),
    [
        (False, "tests: 5/10 two left\n"),
        (
            True,
            "\r\x1b[Ktests [############............] 5/10 two left\r\x1b[K\r  waiting 3 s\r",
        ),
    ],
)
def test_progress(
    terminal: bool,
    shown: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal)
    monkeypatch.setattr("time.monotonic", iter([0.0, 0.05, 60.0]).__next__)
    with Progress("tests", 10) as progress:
        progress.update(2)
        progress.update(5, "two left")
    waiting(3.0)
    monkeypatch.undo()
    assert capsys.readouterr().err == shown
