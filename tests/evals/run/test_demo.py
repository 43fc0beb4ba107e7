"""The demo: a preset of `agentspec eval`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from agentspec.cli import main


@pytest.mark.sglang
@pytest.mark.server
def test_the_demo_asks_servers_in_turns_and_compares_outputs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "demo.json"
    assert main(["demo", "--questions", "4", "--system", "hybrid", "--json", str(file)]) == 0
    assert "identical" in capsys.readouterr().out
    records = {(each["system"], each["pass"]): each for each in json.loads(file.read_text())["records"]}
    assert {system for system, _ in records} == {"none", "hybrid"}
    for name in ("cold", "warm"):
        plain, ours = records["none", name], records["hybrid", name]
        assert plain["tokens"] == ours["tokens"] > 0 and plain["requests"] == ours["requests"]
        assert ours["identical"] and ours["verify_steps"] < plain["verify_steps"] and ours["accept_length"] > 1.0


def test_a_folder_without_a_model_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "--model", str(tmp_path)]) == 2
    assert "config.json" in capsys.readouterr().err
