"""What a server that is started for a measurement gets from the environment of the measurement."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentspec.errors import ServerError
from agentspec.evals.text_to_sql import MODEL_FOLDER
from agentspec.integrations.servers.server import Server


def told(folder: Path, **environment: str) -> list[str]:
    """The variables of a started server, in place of which a script prints them and ends."""
    python = folder / "python"
    python.write_text("#!/bin/sh\nenv\n")
    python.chmod(0o755)
    server = Server(MODEL_FOLDER, "none", log=folder / "log", python=str(python), environment=environment)
    with pytest.raises(ServerError, match="ended while starting"), server:
        pass
    return server.log_text().splitlines()


def test_the_shell_s_store_is_not_that_of_a_measurement(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENTSPEC_STORE", "redis://production")
    assert "AGENTSPEC_STORE=memory://" in told(tmp_path)
    assert "AGENTSPEC_STORE=redis://measured" in told(tmp_path, AGENTSPEC_STORE="redis://measured")
