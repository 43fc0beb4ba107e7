"""`agentspec tune --draft-model`."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from server_requests import chat_prompts

from agentspec.cli import main
from agentspec.cli.tuned_threshold import ThresholdReport
from agentspec.evals.systems import STANDALONE_FOLDER
from agentspec.evals.text_to_sql import MODEL_FOLDER
from agentspec.scheduling import MeasuredRange, Profile, ProfileKey, StepCost
from agentspec.scheduling.baselines.threshold_search import (
    DraftedChains,
    StepPrices,
    fixed_outcomes,
    threshold_outcomes,
)


def profile(*, drafter: StepCost | None) -> Profile:
    return Profile(
        key=ProfileKey(model="m", device="d", engine="e", graphs="none"),
        target=StepCost(1e-6, 5e-4, 8e-3),
        drafter=drafter,
        measured=MeasuredRange(batch_sizes=(1, 4), context_lengths=(0, 400), widths=(1, 11)),
        widths=(1, 11),
    )


def report(probabilities: np.ndarray, accepted: np.ndarray) -> ThresholdReport:
    prices = StepPrices(StepCost(0, 0, 0.01), StepCost(0, 0, 0.002), 0.001, 1, 100, graphs=False)
    chains = DraftedChains(probabilities, accepted)
    return ThresholdReport(threshold_outcomes(chains, prices), fixed_outcomes(chains, prices), len(accepted), prices)


def test_a_report_names_the_setting_that_is_fastest() -> None:
    # Half of the chains are certain and right, the other half doubtful and wrong.
    sure = np.array([[0.99] * 6, [0.2] * 6] * 10)
    found = report(sure, np.array([6, 0] * 10))
    assert found.best.threshold is not None and 0.05 <= found.best.threshold < 0.8
    assert f"AGENTSPEC_STOP_THRESHOLD={found.best.threshold:g}" in found.shown()
    assert found.figures()["stop_threshold"] == found.best.threshold and found.figures()["chains"] == 20
    # The probabilities say nothing, and three tokens are right each time.
    misled = report(np.array([[0.9, 0.2, 0.9, 0.9, 0.1, 0.9], [0.1, 0.9, 0.9, 0.9, 0.9, 0.9]] * 10), np.full(20, 3))
    assert misled.best_length.length == 3
    assert "--speculative-num-steps 3 and AGENTSPEC_STOP_THRESHOLD=1" in misled.shown()


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ([], "--draft-model needs --model"),
        (["--model", "m", "--out", "e.json"], "--draft-model fits no estimates"),
        (["more.jsonl", "--model", "m"], "--draft-model takes one log"),
        (["--model", "m", "--steps", "1"], "--steps must be at least 2"),
        (["--model", "m", "--rows", "0"], "--rows at least 1"),
        (["--model", "m", "--profile", "profile.json"], "times of a draft model, got profile.json"),
    ],
)
def test_bad_arguments_are_named_before_a_server_starts(
    words: list[str], named: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    profile(drafter=None).save(tmp_path / "profile.json")
    (tmp_path / "log.jsonl").write_text(
        json.dumps({"messages": [{"role": "user", "content": "one"}], "output": "two"}) + "\n"
    )
    assert main(["tune", "log.jsonl", *words, "--draft-model", "d"]) == 2
    assert named in capsys.readouterr().err


@pytest.mark.sglang
@pytest.mark.server
def test_the_threshold_of_the_small_draft_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log, times, figures = tmp_path / "log.jsonl", tmp_path / "profile.json", tmp_path / "figures.json"
    requests = [{"messages": [{"role": "user", "content": text}], "output": "x"} for text in chat_prompts(24, seed=7)]
    log.write_text("".join(json.dumps(request) + "\n" for request in requests))
    profile(drafter=StepCost(0, 0, 2e-3)).save(times)
    words = ["--model", str(MODEL_FOLDER), "--draft-model", str(STANDALONE_FOLDER), "--steps", "6", "--rows", "2"]
    assert main(["tune", str(log), *words, "--profile", str(times), "--json", str(figures)]) == 0
    found = json.loads(figures.read_text())
    assert found["chains"] >= 50 and found["prices"]["rest"] > 0
    never = found["thresholds"][-1]
    assert never["threshold"] == 1 and never["length"] == 6
    # Drafts that end early discard less and accept less.
    early = next(outcome for outcome in found["thresholds"] if outcome["threshold"] == 0.3)
    assert early["discard_rate"] < never["discard_rate"] and 1 < early["accept_length"] < never["accept_length"]
    assert f"{found['stop_threshold']:g}" in capsys.readouterr().out.splitlines()[-1]
