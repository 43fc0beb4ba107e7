"""A server that another process beats to its port, with real SGLang."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from server_requests import ARGUMENTS, MODEL

from agentspec.integrations.servers import server as servers

pytestmark = [pytest.mark.sglang, pytest.mark.server]


def test_a_server_whose_port_was_taken_starts_on_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        # It accepts connections and never answers, as the port of torch's store does.
        taken.listen()
        ports = [taken.getsockname()[1], servers.free_port()]
        found = iter(ports)
        monkeypatch.setattr(servers, "free_port", lambda: next(found))
        with servers.Server(MODEL, "none", log=tmp_path / "server.log", arguments=ARGUMENTS) as server:
            assert server.port == ports[1]
            assert server.get("/server_info")["port"] == ports[1]
