from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from byte_tokenizer import write_byte_tokenizer

from agentspec.analysis.corpus import build_corpus
from agentspec.cli import main

pytest.importorskip("tiktoken", reason="`make setup` installs tiktoken")


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """A trace of four sessions with the same messages."""
    messages = [{"role": "user", "content": "count"}, {"role": "assistant", "content": "one two three four five"}]
    path = tmp_path / "count.jsonl"
    path.write_text("".join(json.dumps({"session": i, "messages": messages}) + "\n" for i in range(4)) + "{\n")
    return path


def command(trace: Path, *words: str) -> list[str]:
    return ["replay", *words, "--tokenizer", str(write_byte_tokenizer(trace.parent))]


def rows_of(trace: Path, *words: str) -> list[dict[str, Any]]:
    report = trace.parent / "report.json"
    assert main(command(trace, *words, "--json", str(report))) == 0
    rows: list[dict[str, Any]] = json.loads(report.read_text())["rows"]
    return rows


def test_rows_and_head(trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = tmp_path / "report.json"
    words = ["--system", "agentspec", "--system", "suffixdecoding"]
    words += ["--max-draft-tokens", "4", "--max-draft-tokens", "8", "--json", str(report)]
    assert main(command(trace, str(trace), *words)) == 0
    content = json.loads(report.read_text())
    rows = content["rows"]
    assert [(row["system"], row["max_draft_tokens"]) for row in rows] == [
        (system, limit) for system in ("agentspec", "suffixdecoding") for limit in (4, 8)
    ]
    for row in rows:
        assert (row["set"], row["pass"], row["calls"]) == ("count", "cold", 4)
        # The output has 23 characters and the end of the turn. Its first token comes from the prefill.
        assert row["accept_length"] == pytest.approx(4 * 23 / row["steps"], abs=1e-3)
        assert row["accept_length"] == pytest.approx(row["accepted_per_step"] + 1)
        assert row["accepted_per_step"] <= row["drafted_per_step"] <= row["max_draft_tokens"]
        assert row["draft_us_per_step"] > 0
        assert row["open_us_per_call"] > 0
    head = content["head"]
    assert head["traces"]["count"] == {
        "sessions": 4, "calls": 4, "output_tokens": 96, "bad_lines": 1, "not_understood": "",
    }  # fmt: skip
    assert head["tokenizer"].startswith("bytes.tiktoken ")
    assert head["versions"]["agentspec"]
    shown = capsys.readouterr()
    assert len(shown.out.splitlines()) == 1 + len(rows)
    assert "1 bad lines skipped: count.jsonl:5" in shown.err


def test_a_lower_threshold_drafts_more(trace: Path) -> None:
    drafted = []
    for threshold in ("0.9", "0"):
        (row,) = rows_of(trace, str(trace), "--min-token-prob", threshold)
        assert row["setting"] == f"p >= {threshold}"
        drafted.append(row["drafted_per_step"])
    assert drafted[0] < drafted[1]


def test_each_source_can_be_measured_alone(trace: Path, tmp_path: Path) -> None:
    text, corpus = tmp_path / "known.txt", tmp_path / "known.corpus"
    text.write_text("five four three two one")
    tokenizer = ["--tokenizer", str(write_byte_tokenizer(tmp_path))]
    assert main(["corpus", "build", str(text), "--out", str(corpus), *tokenizer]) == 0
    words = ["--corpus", str(corpus), "--min-token-prob", "0"]
    for sources in ("own", "outputs", "corpora", "own,outputs", "own,outputs,corpora"):
        words += ["--sources", sources]
    own, outputs, corpora, both, everything = rows_of(trace, str(trace), *words)
    # The four sessions write the same, and no word of it occurs twice in one of them.
    assert 0 < own["accepted_per_step"] < outputs["accepted_per_step"] <= both["accepted_per_step"]
    assert 0 < corpora["accepted_per_step"] < everything["accepted_per_step"]
    assert own["setting"].startswith("own only") and "only" not in everything["setting"]


def test_a_corpus_of_another_tokenizer_is_refused(trace: Path, tmp_path: Path) -> None:
    corpus = tmp_path / "other.corpus"
    build_corpus(corpus, [np.array([1, 2, 3], np.int32)], tokenizer="other")
    assert main(command(trace, str(trace), "--corpus", str(corpus))) != 0


def test_warm_traces_are_learnt_and_not_measured(trace: Path) -> None:
    systems = ["--system", "agentspec", "--system", "suffixdecoding"]
    of_cold = rows_of(trace, f"{trace}@3:", *systems)
    of_warm = rows_of(trace, f"{trace}@3:", "--warm", f"{trace}@:2", f"{trace}@2:3", *systems)
    for cold, warm in zip(of_cold, of_warm, strict=True):
        assert (cold["pass"], warm["pass"]) == ("cold", "warm")
        assert cold["calls"] == warm["calls"] == 1
        assert warm["accepted_per_step"] > cold["accepted_per_step"]


def test_sessions_that_run_together_draft_from_each_other(tmp_path: Path) -> None:
    """Two trials write the same, one of them after a longer call. It is behind then, and follows the other."""
    answer = "one two three four five six seven eight nine ten"
    lines = [
        {"session": f"s{run}", "task": "count", "run": run, "messages": [
            {"role": "user", "content": "count to ten, please, in words, and slowly; do not stop before you are at the end"},
            {"role": "assistant", "content": f"{'0123456789' * run} {answer}"},
        ]}
        for run in range(2)
    ]  # fmt: skip
    path = tmp_path / "trials.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    accepted = []
    together_words = ["--concurrency", "2", "--name-groups"]
    for words in ([], together_words, [*together_words, "--siblings", "0"]):
        (row,) = rows_of(path, str(path), *words)
        assert row["calls"] == 2 and row["concurrency"] == (2 if words else 1)
        accepted.append(row["accepted_per_step"])
    one_after_another, together, by_finished_outputs = accepted
    assert by_finished_outputs < together
    assert by_finished_outputs < one_after_another


def test_a_curve_names_the_settings_that_nothing_beats(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = rows_of(trace, str(trace), "--curve", "--system", "agentspec", "--system", "suffixdecoding")
    assert {row["max_draft_tokens"] for row in rows} == {4, 8, 16, 32, 64}
    assert len({row["setting"] for row in rows if row["system"] == "agentspec"}) == 7
    named = [line for line in capsys.readouterr().out.splitlines() if line.startswith("unbeaten: ")]
    assert len(named) == sum(row["frontier"] for row in rows) > 0
    for row in rows:
        beaten = any(
            other["accepted_per_step"] >= row["accepted_per_step"]
            and other["drafted_per_step"] < row["drafted_per_step"]
            for other in rows
        )
        assert not (beaten and row["frontier"])


def test_limit_counts_calls(trace: Path) -> None:
    assert rows_of(trace, str(trace), "--limit", "3")[0]["calls"] == 3


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--curve", "--min-token-prob", "0.1"], "--curve sweeps the threshold"),
        (["--sources", "others"], "--sources must be some of own, outputs, corpora"),
        (["--concurrency", "0"], "--concurrency"),
        (["--concurrency", "2", "--system", "ngram"], "agentspec or suffixdecoding"),
        (["--limit", "0"], "--limit must be at least 1"),
        (["--max-draft-tokens", "0"], "--max-draft-tokens must be in [1, 65536]"),
    ],
)
def test_bad_arguments(trace: Path, capsys: pytest.CaptureFixture[str], words: list[str], message: str) -> None:
    assert main(command(trace, str(trace), *words)) == 2
    assert message in capsys.readouterr().err


def test_a_bad_list_says_what_it_takes(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(command(trace, str(trace), "--max-draft-tokens", "4;8"))
    assert "must be whole numbers with commas, such as 1,8,64, got '4;8'" in capsys.readouterr().err
