"""`agentspec ab` on real servers: the agents of the small model on plain SGLang and on agentspec."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from agentspec.cli import main
from agentspec.integrations.servers.server import Server

pytestmark = [pytest.mark.server, pytest.mark.sglang]


@pytest.mark.parametrize("agentspec", ["suffix"], indirect=True)
def test_the_same_agents_give_the_same_answers_in_fewer_steps(
    plain: Server, agentspec: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    work = ["--workload", "tiny-sql", "--tasks", "4", "--concurrency", "2", "--turns", "2"]
    assert main(["ab", *work, "--a", plain.url, "--b", f"{agentspec.url}/v1", "--out", str(tmp_path), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert [facts["arms"][label]["name"] for label in "ab"] == ["plain", "agentspec"]
    assert facts["answers"]["compared"] == facts["answers"]["identical"] == facts["arms"]["a"]["calls"] > 8
    assert facts["success"]["only_a"] == facts["success"]["only_b"] == 0
    figures = {row["key"]: row for row in facts["figures"]}
    # Each call is streamed, and SGLang tells the steps of the server that verifies.
    assert figures["accept"]["a"] is None and figures["accept"]["b"] > 1
    assert figures["ttft"]["a"] > 0 and figures["tpot"]["b"] > 0
    assert figures["tokens"]["a"] == figures["tokens"]["b"]
    assert figures["model"]["a"] < figures["wall"]["a"]
