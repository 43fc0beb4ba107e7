from __future__ import annotations

import json
from pathlib import Path

import pytest

from agentspec.evals.text_to_sql import main


def test_unreachable_server_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "report.json"
    # Port 9 (discard) has no listener.
    assert main(["--base-url", "http://127.0.0.1:9/v1", "--questions", "2", "--json", str(out)]) == 1
    report = json.loads(out.read_text())
    assert report["outcomes"]["error"] == 2 and report["seed"] == 0
    assert "APIConnectionError" in report["answers"][0]["detail"]
    assert "all" in capsys.readouterr().out
