"""`agentspec eval papers`: every command can be run, and the page is that of the list."""

from __future__ import annotations

import argparse
import importlib
import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from every import every

from agentspec.cli import main
from agentspec.cli.main import COMMANDS
from agentspec.evals.papers.experiments import EXPERIMENTS, PAPERS
from agentspec.evals.papers.run import page, words_of

DOCS = Path(__file__).resolve().parents[3] / "docs"
RUN = [experiment for experiment in EXPERIMENTS if experiment.commands]


def test_the_list_names_every_experiment_once(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    out = tmp_path / "list.json"
    assert main(["eval", "papers", "--list", "--json", str(out)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == [experiment.name for experiment in EXPERIMENTS]
    assert len({*(experiment.name for experiment in EXPERIMENTS)}) == len(EXPERIMENTS)
    assert {experiment.paper for experiment in EXPERIMENTS} == {*PAPERS}
    assert len(json.loads(out.read_text())["experiments"]) == len(EXPERIMENTS)


@every("experiment", EXPERIMENTS)
def test_what_is_had_has_a_command_and_a_figure(experiment) -> None:  # type: ignore[no-untyped-def]
    is_had = experiment.state != "not here"
    assert bool(experiment.commands) == bool(experiment.ours) == is_had
    assert experiment.theirs and experiment.shows and experiment.differs
    assert not experiment.ours.isupper(), "a place for a figure was not filled in"


@pytest.mark.parametrize("experiment", RUN, ids=lambda experiment: experiment.name)
def test_commands_are_valid(experiment, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    for command in experiment.commands:
        name, *words = words_of(command, tmp_path / "data", tmp_path)
        parser = argparse.ArgumentParser(exit_on_error=False)
        importlib.import_module(COMMANDS[name][0]).add_arguments(parser)
        _, rest = parser.parse_known_args(words)
        assert not rest, f"{command}: {rest}"


def test_an_experiment_runs_its_commands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ran: list[Sequence[str]] = []

    def run(words: Sequence[str]) -> int:
        ran.append(words)
        return len(ran) - 1

    monkeypatch.setattr("agentspec.evals.run.eval.main", run)
    out = tmp_path / "out.json"
    assert main(["eval", "papers", "su-fig2", "--data", str(tmp_path), "--json", str(out)]) == 1
    assert [words[0] for words in ran] == ["replay", "replay"]
    assert str(tmp_path / "sql_intercode_spider.jsonl.xz@0:200") in ran[0]
    assert [one["status"] for one in json.loads(out.read_text())["runs"]] == [0, 1]
    assert "0.9 s^0.548" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["su-fig7"], "papers must be one of"),
        (["su-fig2"], "su-fig2 needs --data"),
        (["sssd-fig3"], "cannot be run here"),
    ],
)
def test_bad_names(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["eval", "papers", *words]) == 2
    assert message in capsys.readouterr().err


def test_the_page_is_that_of_the_list() -> None:
    written = (DOCS / "papers.md").read_text(encoding="utf-8")
    assert written == page() + "\n", "write it with `agentspec eval papers --markdown docs/papers.md`"
