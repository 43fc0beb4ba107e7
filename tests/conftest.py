"""Hooks and fixtures of all tests: environment of servers, groups of tests for workers, parity counts, databases."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import hypothesis
import needs
import pytest
from parity import compared

WITHOUT_SERVERS = "TEST_WITHOUT_SERVERS"

FORKING = Path(__file__).parent / "helpers" / "forking"


def pytest_configure(config: pytest.Config) -> None:
    """Sets the environment that all processes started by tests inherit, directly or through commands.

    Servers fork their processes; see helpers/forking. Each runs on one thread, because other tests run at the same
    time. Servers overlap scheduling and forwards, as they do on a GPU. Drawn examples may take any time, because a busy
    machine is no fault.
    """
    hypothesis.settings.register_profile("agentspec", deadline=None)
    hypothesis.settings.load_profile("agentspec")
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("SGLANG_CPU_OVERLAP", "on")
    os.environ["PYTHONPATH"] = os.pathsep.join([str(FORKING), os.environ.get("PYTHONPATH", "")]).strip(os.pathsep)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skips a test whose requirements are missing. If CI is set, the test fails instead.

    Tests without the marker `server` cannot start servers. Otherwise `make test` would take as long as `make test-all`.
    """
    if item.get_closest_marker("server"):
        os.environ.pop(WITHOUT_SERVERS, None)
    else:
        os.environ[WITHOUT_SERVERS] = "1"
    for marker in item.iter_markers():
        if reason := needs.missing(marker.name):
            if os.environ.get("CI") and marker.name not in needs.OPTIONAL:
                pytest.fail(f"{reason}; CI must not skip this test")
            pytest.skip(reason)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Groups the tests that must run on the same xdist worker. xdist reads the groups in its own hook, which runs
    later.

    Tests that use the same of the session's agentspec servers form one group, so that the server is started once. All
    other tests of a file form a group. Each worker that needs the session's plain server starts one.
    """
    if not config.pluginmanager.hasplugin("xdist"):
        return
    for item in items:
        # xdist would join several groups of one test into a new group.
        if not item.get_closest_marker("xdist_group"):
            item.add_marker(pytest.mark.xdist_group(_group(item)))


def _group(item: pytest.Item) -> str:
    callspec = getattr(item, "callspec", None)
    if callspec is not None and "agentspec" in callspec.params:
        return f"server {callspec.params['agentspec']}"
    return item.nodeid.partition("::")[0]


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Sends the worker's parity counts to the main process."""
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["compared"] = compared


@pytest.fixture(scope="session")
def databases(tmp_path_factory: pytest.TempPathFactory) -> dict[Any, Path]:
    """The path of each text-to-SQL database. Tests must only read them."""
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
