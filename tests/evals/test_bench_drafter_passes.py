"""The bench of a drafter's passes, once with little to do, and its refusals."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="drafters need torch; `make setup` installs it")

from agentspec.cli import main
from agentspec.errors import AgentspecError
from agentspec.evals import bench_drafter_passes


def test_each_kind_of_work_is_timed_both_ways(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "passes.json"
    arguments = ["--rows", "1,3", "--threads", "1,2", "--repeats", "1", "--json", str(file)]
    assert main(["bench", "drafter-passes", *arguments]) == 0
    rows = json.loads(file.read_text())["rows"]
    assert len({(row["drafter"], row["rows"], row["work"], row["threads"]) for row in rows}) == len(rows) == 16
    assert all(row["torch_us"] > 0 and row["native_us"] > 0 for row in rows)
    assert len(capsys.readouterr().out.splitlines()) == 16


def test_ways_that_differ_are_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    from agentspec.integrations.sglang.native_drafting import NativeDrafting

    read = NativeDrafting.read

    def wrong(self: Any, *args: Any) -> Any:
        found = read(self, *args)
        assert found is not None
        return found[0] + 0.1, found[1]

    monkeypatch.setattr(NativeDrafting, "read", wrong)
    with pytest.raises(AgentspecError, match="reading in native code gives other results"):
        bench_drafter_passes._works(bench_drafter_passes._SHAPES["standalone"], 1)


@pytest.mark.parametrize(
    "arguments", [["--repeats", "0"], ["--rows", "0"], ["--rows", "99"], ["--threads", "0"], ["--nonsense"]]
)
def test_bad_arguments_end_with_one_clear_line(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "drafter-passes", *arguments]) == 2
    assert arguments[0] in capsys.readouterr().err
