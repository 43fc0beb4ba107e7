"""What all tests share: how the servers that they start start, how workers share them, what was compared, databases."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from parity import compared

# Fixtures of tests/integrations/sglang.
SESSION_SERVERS = {"plain", "agentspec"}

FORKING = Path(__file__).parent / "helpers" / "forking"


def pytest_configure(config: pytest.Config) -> None:
    """Servers fork; see the folder. It is inherited by every process that tests start, also by way of commands. They run
    on one thread each, as others run beside them."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ["PYTHONPATH"] = os.pathsep.join([str(FORKING), os.environ.get("PYTHONPATH", "")]).strip(os.pathsep)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Where several workers share the tests, a file's go to the same one, and all that use the session's servers, so that
    each server is started once: xdist reads these groups in its own hook, which comes later. Servers of their own that are compared with a reference get a plain server beside that
    of the session: both groups take a while."""
    if config.pluginmanager.hasplugin("xdist"):
        for item in items:
            names = set(getattr(item, "fixturenames", ()))
            group = "servers" if SESSION_SERVERS & names else item.nodeid.partition("::")[0]
            if {"reference", "short_reference"} & names and "agentspec" not in names:
                group = "servers of their own"
            item.add_marker(pytest.mark.xdist_group(group))


def pytest_sessionfinish(session: pytest.Session) -> None:
    """A worker tells what it compared."""
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["compared"] = compared


@pytest.fixture(scope="session")
def databases(tmp_path_factory: pytest.TempPathFactory) -> dict[Any, Path]:
    """The path of each database of text-to-SQL. Only read."""
    from agentspec.workflows.text_to_sql import DATABASES, create_all

    paths = create_all(DATABASES, tmp_path_factory.mktemp("databases"))
    return {database: paths[database.name] for database in DATABASES}


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    for name, count in getattr(node, "workeroutput", {}).get("compared", {}).items():
        compared[name] += count


def pytest_terminal_summary(terminalreporter: Any) -> None:
    if compared["answers"]:
        terminalreporter.write_line(
            f"parity: {compared['answers']} answers of {compared['tokens']} tokens compared with plain SGLang's, "
            "those of passed comparisons without a difference"
        )
