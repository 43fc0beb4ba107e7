"""The other project named agentspec is noticed where its files lie among ours. tests/packaging installs a wheel of it."""

from __future__ import annotations

import sys
import types
from pathlib import Path

import pytest

import agentspec
from agentspec import InstallationError
from agentspec.installation import check_installation, check_package


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
