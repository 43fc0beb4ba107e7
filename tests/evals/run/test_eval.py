"""`agentspec eval` from its command line, with stand-ins for servers; and the demo, a preset of it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from agentspec.cli import main
from agentspec.errors import ServerError
from agentspec.evals.clients.client import Reply
from agentspec.evals.run import runner as eval_run
from agentspec.evals.run.calls import CellResult, Counts, Turn
from agentspec.evals.run.cells import Cell
from agentspec.evals.systems import System


def test_the_listing_names_tasks_and_systems(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["eval", "--list"]) == 0
    told = capsys.readouterr().out
    for name in (
        *("text_to_sql", "open_chat", "swe_mini_agent", "sql_rsl_bird", "sql_intercode_spider", "tools_tau_airline"),
        *("chat_mt_bench", "math_gsm8k", "none", "ngram", "standalone", "eagle3", "suffix", "hybrid", "eagle3-5"),
    ):
        assert f"  {name} " in told


class StandIns:
    """Stands in for servers: notes what was started and asked, and lets one system fail at a cell."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked: list[tuple[str, Any]] = []
        self.started: list[tuple[str, bool, int]] = []
        self.systems: dict[str, System] = {}
        self.fails_at: tuple[str, Any] | None = None
        monkeypatch.setattr(eval_run.Servers, "start", self._start)
        monkeypatch.setattr(eval_run, "ask_cells", self._ask)

    def _start(self, stack: Any, name: str, system: System, *, is_replay: bool, repeat: int) -> str:
        self.started.append((name, is_replay, repeat))
        self.systems[name] = system
        return name

    def _ask(self, server: str, system: System, cells: Sequence[Cell], asking: Any) -> Iterator[Turn]:
        for cell in cells:
            yield Turn(cell=cell, tokens=20, seconds=1.0, result=None)
            if self.fails_at == (server, cell.key):
                raise ServerError("the server ended\nIndexError: deep inside\n/secret/folder/log")
            self.asked.append((server, cell.key))
            tokens = 40 if server == "suffix" else 20
            replies = (Reply(began=0.0, first=0.1, ended=1.0, tokens=tokens, steps=5, drafted=9, accepted=3),)
            result = CellResult(
                cell=cell, replies=replies, outputs="same", counts=Counts(), seconds=1.0, cpu_seconds=1.0,
                prompt_tokens_cut=0, accuracy=None, exact_answers=None,
            )  # fmt: skip
            yield Turn(cell=cell, tokens=tokens, seconds=1.0, result=result)


WORDS = [
    *("eval", "open_chat", "--system", "none", "--system", "suffix", "--concurrency", "1,2", "--repeat", "2"),
    *("--requests", "2", "--learn", "2"),
]


def test_servers_are_asked_in_turns_and_every_record_tells_what_it_depends_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    servers, out = StandIns(monkeypatch), tmp_path / "out.json"
    words = [*WORDS, "--in-turns", "--json", str(out)]
    assert main(words) == 0
    records = json.loads(out.read_text())["records"]
    assert len(records) == 2 * 2 * 2 * 2
    # Both systems are asked a cell before either is asked the next one.
    assert all({servers.asked[i][0], servers.asked[i + 1][0]} == {"none", "suffix"} for i in range(0, 16, 2))
    for one in records:
        assert {"command", "seed", "versions", "hardware", "baseline", "server_arguments", "model"} <= set(one)
        assert one["identical"] is True and one["speedup_over_none"] == (2.0 if one["system"] == "suffix" else 1.0)
    assert str(tmp_path) not in out.read_text()
    # Nothing is left to measure.
    asked = len(servers.asked)
    assert main([*words, "--resume"]) == 0 and len(servers.asked) == asked
    assert "nothing is measured" in capsys.readouterr().err
    assert main([*words, "--resume", "--seed", "1"]) == 2


def test_a_file_that_cannot_be_written_is_refused_before_any_server_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    servers = StandIns(monkeypatch)
    assert main([*WORDS, "--json", str(tmp_path / "no folder" / "out.json")]) == 2 and not servers.started
    assert "--json must be a file in a folder that exists" in capsys.readouterr().err


def test_a_server_that_fails_is_recorded_and_measured_again_on_resuming(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    servers, out = StandIns(monkeypatch), tmp_path / "out.json"
    servers.fails_at = ("suffix", ("open_chat", "warm", 1, 0))
    words = [*WORDS, "--one-at-a-time", "--json", str(out)]
    assert main(words) == 1
    records = json.loads(out.read_text())["records"]
    failed = [one for one in records if one.get("error")]
    assert [(one["pass"], one["concurrency"], one["repeat"]) for one in failed] == [("warm", 1, 0), ("warm", 2, 0)]
    assert "IndexError: deep inside" in failed[0]["error"] and "/secret" not in out.read_text()
    assert len(records) == 16 and {name for name, _ in servers.asked[:4]} == {"none"}
    servers.fails_at, asked = None, len(servers.asked)
    assert main([*words, "--resume"]) == 0
    assert servers.asked[asked:] == [("suffix", ("open_chat", "warm", n, 0)) for n in (1, 2)]
    assert not any(one.get("error") for one in json.loads(out.read_text())["records"])
    assert "suffix failed" in capsys.readouterr().err


def test_no_server_learns_from_another_through_the_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Mapping[str, str]] = []

    @contextmanager
    def server(*args: Any, environment: Mapping[str, str], **rest: Any) -> Iterator[Any]:
        made.append(environment)
        yield SimpleNamespace(start_seconds=0.0)

    monkeypatch.setattr(eval_run, "Server", server)
    servers = eval_run.Servers(
        model=tmp_path,
        max_running=1,
        request_tokens=8,
        logs=tmp_path,
        on_cpu=True,
        store="redis://localhost:1",
        corpora=(tmp_path / "a.seg", tmp_path / "b.seg"),
    )
    with ExitStack() as stack:
        for name in ("none", "suffix", "suffix"):
            servers.start(stack, name, eval_run.EVALUATED[name], is_replay=False, repeat=0)
    assert "AGENTSPEC_STORE" not in made[0]
    assert {found["AGENTSPEC_STORE"] for found in made[1:]} == {"redis://localhost:1"}
    assert "AGENTSPEC_CORPORA" not in made[0]
    assert made[1]["AGENTSPEC_CORPORA"] == f"{tmp_path / 'a.seg'}:{tmp_path / 'b.seg'}"
    assert made[1]["AGENTSPEC_STORE_MODEL"] != made[2]["AGENTSPEC_STORE_MODEL"]


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
        assert 0 < ours["draft_share"] < 1 and 0 < ours["acceptance_rate"] <= 1 == plain["accept_length"]
        for one in (plain, ours):
            assert one["failed"] == 0 and one["accuracy"] is not None
            assert 0 < one["ttft_ms_p50"] < 1e3 * one["latency_p99_s"] and one["tokens_per_second"] > one["goodput"] > 0


def test_a_folder_without_a_model_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "--model", str(tmp_path)]) == 2
    assert "config.json" in capsys.readouterr().err
