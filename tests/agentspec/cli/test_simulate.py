from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from agentspec.cli import main
from agentspec.cli.simulate import plain_service_rate
from agentspec.scheduling import ServingCosts, StepCost
from agentspec.simulation import ServerConfig, acceptance_at_rate, find_profile
from agentspec.simulation.acceptance import walk
from agentspec.simulation.inputs import measured_table

SMALL = ["simulate", "--acceptance", "0.7", "--output-tokens", "16", "--max-draft-tokens", "7", "--requests", "12"]


def test_the_command_writes_what_it_shows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "out.json"
    arrivals = ["--arrivals", "poisson:0.1x,1x", "--arrivals", "phases:2:0.1:1:1"]
    controllers = ["--controller", "goodput,fixed:0,smartspec:tree", "--controller", "batch-table"]
    assert main([*SMALL, *arrivals, *controllers, "--seed", "1,2", "--json", str(file)]) == 0
    shown = capsys.readouterr().out.splitlines()
    content = json.loads(file.read_text())
    rows = content["rows"]
    assert len(rows) == 3 * 4 * 2 == len(shown) - 2
    assert {row["seed"] for row in rows} == {1, 2}
    assert content["head"]["plain_service_rate"] > 0
    assert str(tmp_path) not in file.read_text()
    assert [len(row["phases"]) for row in rows if "phases" in row] == [2] * 8
    plain = [row for row in rows if row["controller"] == "fixed:0"]
    assert all(row["width_mean"] == 1 and row["accept_length"] == 1 for row in plain)


def test_the_same_command_gives_the_same_figures(tmp_path: Path) -> None:
    contents = []
    for name in ("a", "b"):
        assert main([*SMALL, "--arrivals", "gamma:0.1:2", "--json", str(tmp_path / name)]) == 0
        contents.append(json.loads((tmp_path / name).read_text())["rows"])
    assert contents[0] == contents[1]


def test_what_serving_takes_is_in_the_latency(tmp_path: Path) -> None:
    serving = ServingCosts(request_seconds=1.0, prefill=StepCost(0, 0, 2.0), step=StepCost(0, 0, 0.5))
    profile = find_profile("smartspec-a100-7b")
    plain = replace(serving, step=StepCost(0, 0, 0.25))
    replace(profile, speculative=serving, plain=plain).save(tmp_path / "profile.json")
    words = ["--profile", str(tmp_path / "profile.json"), "--json", str(tmp_path / "out.json")]
    assert main([*SMALL, "--arrivals", "closed:1", *words, "--controller", "plain,fixed:0"]) == 0
    without, ours = json.loads((tmp_path / "out.json").read_text())["rows"]
    # Answers have 16 tokens; a verification of the profile takes milliseconds.
    assert without["latency_mean"] == pytest.approx(1 + 2 + 15 * 0.25)
    assert 0 < ours["latency_mean"] - (1 + 2 + 15 * 0.5) < 15 * 0.02


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--arrivals", "poisson:0"], "got 0 in"),
        (["--arrivals", "poisson:1,-2"], "got -2"),
        (["--arrivals", "poisson:1", "--controller", "best"], "batch-table"),
        (["--arrivals", "poisson:1", "--controller", "fixed"], "fixed:4"),
        (["--arrivals", "poisson:1", "--controller", "goodput:best"], "ahead, run, step"),
        (["--arrivals", "poisson:1", "--profile", "mine"], "smartspec-a100-7b"),
        (["--arrivals", "poisson:1", "--max-running", "300"], "up to 300, measured were 1 to 256"),
        (["--arrivals", "poisson:1", "--prompt-tokens", "70000"], "measured were 0 to 65536"),
        (["--arrivals", "poisson:1", "--widths", "2,4"], "ascend from 1"),
        (["--arrivals", "poisson:1", "--kv-tokens", "100"], "got 100"),
        (["--arrivals", "poisson:1", "--requests", "0"], "at least 1, got 0"),
        (["--arrivals", "poisson:1", "--acceptance", "1.5"], "got 1.5"),
        (["--arrivals", "poisson:1", "--acceptance", "none.jsonl"], "none.jsonl"),
    ],
)
def test_bad_input_is_one_line(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*SMALL, *words]) == 2
    captured = capsys.readouterr().err.strip().splitlines()
    assert len(captured) == 1 and message in captured[0]


def test_a_service_rate_is_that_of_full_batches() -> None:
    profile, config = find_profile("su-rtx3090-opt-6.7b"), ServerConfig(max_running=4)
    acceptance = acceptance_at_rate("0.5", 1, 8, 65, 1, 0)
    # Four rows take 64 steps and a prefill.
    seconds = 64 * profile.target.seconds(0, 4) + profile.target.seconds(0, 32)
    rate = plain_service_rate(acceptance, profile, config, 400, 0)
    assert rate == pytest.approx(4 / seconds, rel=0.03)


def test_a_measured_table_has_the_best_lengths() -> None:
    acceptance = acceptance_at_rate("0.8", 60, 8, 100, 7, 0)
    assert walk(acceptance, 1, 0.0).length == 1
    assert walk(acceptance, 3, 0.0).length == pytest.approx(1 + 0.8 + 0.64, rel=0.05)
    profile = find_profile("su-rtx3090-opt-6.7b")
    lengths = [length for _, length in measured_table(profile, acceptance).lengths]
    assert lengths == sorted(lengths, reverse=True) and lengths[0] > lengths[-1]
    assert {length for _, length in measured_table(profile, acceptance, (1, 4)).lengths} <= {0, 3}
    assert np.all(np.array(lengths) <= 7)
