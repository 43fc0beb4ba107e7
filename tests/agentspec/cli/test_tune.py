"""The command `agentspec tune`, with and without `--draft-model`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from byte_tokenizer import write_byte_tokenizer

from agentspec import Estimates, _core
from agentspec.cli import main

pytest.importorskip("tiktoken", reason="`make setup` installs tiktoken")
pytest.importorskip("scipy", reason="`make setup` installs scipy")
import numpy as np
from server_requests import chat_prompts

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


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    return write_trace(tmp_path, 8)


def write_trace(folder: Path, num_sessions: int) -> Path:
    """Writes a trace of sessions with much the same text."""
    lines = []
    for session in range(num_sessions):
        text = f"one two three {'four' if session % 3 else 'five'} one two three four " * 2
        messages = [{"role": "user", "content": "count"}, {"role": "assistant", "content": text}]
        lines.append(json.dumps({"session": session, "messages": messages}) + "\n")
    path = folder / "count.jsonl"
    path.write_text("".join(lines))
    return path


def tune(trace: Path, *words: str) -> int:
    return main(["tune", str(trace), *words, "--tokenizer", str(write_byte_tokenizer(trace.parent))])


def test_estimates_are_written_and_measured(trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, report = tmp_path / "estimates.json", tmp_path / "report.json"
    assert tune(trace, "--out", str(out), "--json", str(report), "--max-draft-tokens", "4") == 0
    fitted = Estimates.load(out)
    assert fitted.note == "fitted on count, every 4th session kept out"
    assert (fitted.weights != Estimates.default().weights).any()

    content = json.loads(report.read_text())
    head, rows = content["head"], content["rows"]
    assert [row["variant"] for row in rows][:2] == ["before", "0.02"]
    assert len(rows) == 8
    for row in rows:
        assert row["set"] == "count"
        # 2 of 8 sessions are measured.
        assert 0 < row["steps"] <= 2 * 80
        assert 0 <= row["accepted_per_step"] <= row["drafted_per_step"] <= 4
        assert 0 <= row["calibration_error"] <= 1
    worth = {row["min_token_prob"]: row["accepted_per_step"] - 0.05 * row["drafted_per_step"] for row in rows[1:]}
    assert worth[head["min_token_prob"]] == max(worth.values())
    assert head["tokenizer"].startswith("bytes.tiktoken ")
    assert head["versions"]["scipy"]

    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(rows) + 1
    assert lines[-1].startswith(f"wrote {out}; serve with --agentspec-estimates {out} --agentspec-min-token-prob ")


def test_weights_of_corpora_are_fitted(trace: Path, tmp_path: Path) -> None:
    text, corpus, out = tmp_path / "known.txt", tmp_path / "known.corpus", tmp_path / "estimates.json"
    text.write_text("one two three four one two three four one two three four")
    words = [str(text), "--out", str(corpus), "--tokenizer", str(write_byte_tokenizer(tmp_path))]
    assert main(["corpus", "build", *words]) == 0
    of_corpora = slice(_core.CORPUS_SLOT, None)
    functions = {}
    for name, more in (("without", []), ("with", ["--corpus", str(corpus)])):
        assert tune(trace, "--out", str(out), *more) == 0
        weights = Estimates.load(out).weights[_core.NUM_BIASES :]
        functions[name] = weights.reshape(_core.NUM_SLOTS, -1)[of_corpora]
    shipped = Estimates.default().weights[_core.NUM_BIASES :].reshape(_core.NUM_SLOTS, -1)[of_corpora]
    assert abs(functions["without"] - shipped).max() < 0.001, "nothing was learnt of corpora"
    assert abs(functions["with"] - shipped).max() > 0.01


def test_the_estimates_to_begin_with_may_be_chosen(trace: Path, tmp_path: Path) -> None:
    out = tmp_path / "estimates.json"
    assert tune(trace, "--out", str(out)) == 0
    first = Estimates.load(out)
    assert tune(trace, "--start", str(out), "--out", str(out)) == 0
    again = Estimates.load(out)
    # A second fit to the same trace starts where the first one ended, and changes the weights less.
    change = abs(again.weights - first.weights).max()
    assert change < abs(first.weights - Estimates.default().weights).max()


def test_something_to_write_must_be_named(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert tune(trace) == 2
    assert "--out or --draft-model must be given, got none" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["--holdout", "9"], "--holdout must be at most the number of sessions, 8, got 9"),
        (["--holdout", "1"], "--holdout must be at least 2, got 1"),
        (["--max-draft-tokens", "0"], "max_draft_tokens must be an integer in [1, 65536], got 0"),
        (["--start", "{folder}/none.json"], "none.json"),
        (["--out", "{folder}/no/e.json"], "--out must lie in a folder that exists, got {folder}/no/e.json"),
    ],
)
def test_bad_arguments_are_named_before_any_work(
    trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], named: str
) -> None:
    out = tmp_path / "estimates.json"
    words = [word.format(folder=tmp_path) for word in words]
    assert tune(trace, "--out", str(out), *words) == 2
    shown = capsys.readouterr()
    assert named.format(folder=tmp_path) in shown.err
    assert not shown.out and not out.exists()


def test_without_scipy_nothing_is_begun(
    trace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "scipy"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "scipy", None)
    assert tune(trace, "--out", str(tmp_path / "e.json")) == 2
    assert "fitting needs the package scipy" in capsys.readouterr().err


def test_traces_that_do_not_repeat_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "once.jsonl"
    alphabet = "abcdefghijklmnopqrstuvwxyz"
    sessions = [{"session": i, "calls": [{"stage": "\n", "output": alphabet[i]}]} for i in range(4)]
    path.write_text("".join(json.dumps(session) + "\n" for session in sessions))
    assert tune(path, "--out", str(tmp_path / "e.json")) == 2
    assert "there is nothing to fit on" in capsys.readouterr().err


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
