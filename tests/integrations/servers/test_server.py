"""A server that another process beats to its port. Uvicorn stands for SGLang, which serves with it."""

from __future__ import annotations

import socket
import sys
from pathlib import Path

import pytest

from agentspec.evals.text_to_sql import MODEL_FOLDER
from agentspec.integrations.servers import server as servers

pytest.importorskip("uvicorn", reason="`make setup` installs it")
SERVING = """
import sys, uvicorn
async def answer(scope, receive, send):
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"well"})
uvicorn.run(answer, port=int(sys.argv[sys.argv.index("--port") + 1]), lifespan="off")
"""


def test_a_server_whose_port_was_taken_starts_on_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        # It accepts connections and never answers, as the port of torch's store does.
        taken.listen()
        ports = [taken.getsockname()[1], servers.free_port()]
        found = iter(ports)
        monkeypatch.setattr(servers, "free_port", lambda: next(found))
        made = servers.Server(MODEL_FOLDER, "none", log=tmp_path / "server.log")
        made.command = [sys.executable, "-P", "-c", SERVING, "--port", str(ports[0])]
        with made as server:
            assert server.port == ports[1] and server.get("/") == "well"
        assert not server.is_running()
