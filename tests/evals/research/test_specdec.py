"""`agentspec bench specdec`: its rows, tables and curves."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch", reason="the drafters need torch; `make setup` installs it")

from agentspec.cli import main
from agentspec.evals.research import specdec as bench_specdec
from agentspec.evals.research.specdec import FIXED, THRESHOLDS, Rule, rows_of
from agentspec.integrations.sglang.drafting.acceptance_head import AcceptanceConfig, AcceptanceHead
from agentspec.scheduling import MeasuredRange, Profile, ProfileKey, StepCost

SEER = Rule("shipped", 1, 6.0, 0.5)


def foreseen(rng: np.random.Generator, texts: int = 20) -> dict[Rule, list[bench_specdec.Walk]]:
    """Random texts, with a head that foresees every rejection and with a confidence that is always 0.8."""
    seen, blind = [], []
    for _ in range(texts):
        right = rng.random(60) < 0.8
        matches = np.array([int(np.argmin(np.append(right[start:], False))) for start in range(60)])
        p = (np.arange(20) < matches[:, None]).astype(np.float32)
        seen.append((matches, p))
        blind.append((matches, np.full_like(p, 0.8)))
    return {Rule("confidence"): blind, SEER: seen}


@pytest.fixture(scope="module")
def rows() -> list[dict[str, object]]:
    walks = foreseen(np.random.default_rng(0))
    return rows_of("standalone", walks, {"measured": (5.0, 1.0, 0.5), "paper": (5.0, 1.0, 0.0)})


def test_rows_of_all_rules(rows: list[dict[str, object]]) -> None:
    fixed = [row for row in rows if row["rule"] == "fixed"]
    assert [row["length"] for row in fixed] == [1, *FIXED, 20]
    # Theorem 3.1 asks for h = 1 - 1.5 / 5 and 1 - 1 / 5, of which the grid has both.
    assert len(rows) == len(fixed) + 1 + 2 * len(THRESHOLDS)
    assert {(row["h"], *row["theorem_h"]) for row in rows if row.get("theorem_h")} == {
        (0.7, "measured"),
        (0.8, "paper"),
    }
    assert sum(bool(row.get("own_h")) for row in rows) == 1
    discards = [row["discard_rate"] for row in fixed]
    assert discards == sorted(discards)


def test_never_stopping_is_the_longest_fixed_draft(rows: list[dict[str, object]]) -> None:
    longest = next(row for row in rows if row.get("length") == 20)
    never = next(row for row in rows if row["rule"] == "confidence" and row["h"] == 1)
    assert all(never[key] == longest[key] for key in ("target_forwards", "draft_forwards", "discarded"))


def test_nobody_is_faster_than_the_oracle(rows: list[dict[str, object]]) -> None:
    (oracle,) = (row for row in rows if row["rule"] == "oracle")
    assert oracle["discarded"] == 0
    # A head that foresees every rejection drafts one token more, which it judges.
    seer = next(row for row in rows if row["rule"] == "shipped" and row["h"] == 0.5)
    assert seer["target_forwards"] == oracle["target_forwards"]
    speeds = [row["tokens_per_second"]["paper"] for row in rows]  # type: ignore[index]
    assert max(speeds) == oracle["tokens_per_second"]["paper"]  # type: ignore[index]


def test_the_heads_own_time_is_paid_for(rows: list[dict[str, object]]) -> None:
    for row in rows:
        speeds = row["tokens_per_second"]
        assert isinstance(speeds, dict)
        assert (speeds["measured"] < speeds["paper"]) == (row["rule"] == "shipped")


def test_the_command_on_the_shipped_drafters(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, size in (("standalone", 128), ("eagle3", 256)):
        AcceptanceHead(AcceptanceConfig(size, 1)).save(tmp_path / "heads" / name / "d1-w1", {})
    files = {name: tmp_path / name for name in ("json", "table", "plot")}
    words = [word for name, file in files.items() for word in (f"--{name}", str(file))]
    times = Profile(
        key=ProfileKey(model="m", device="d", engine="e", graphs="none"),
        target=StepCost(0.0, 5e-4, 8e-3),
        drafter=StepCost(0.0, 0.0, 1e-3),
        measured=MeasuredRange(batch_sizes=(1, 4), context_lengths=(0, 400), widths=(1, 11)),
        widths=(1, 11),
    )
    times.save(tmp_path / "profile.json")
    words += ["--profile", str(tmp_path / "profile.json"), "--rows", "2"]
    arguments = ["bench", "specdec", "--heads", str(tmp_path / "heads"), "--texts", "4", "--timed", "2", *words]
    assert main(arguments) == 0
    report = json.loads(files["json"].read_text())
    assert report["head"]["texts"] == 4 and report["head"]["seed"] == 0
    assert {(row["drafter"], row["rule"]) for row in report["rows"]} >= {
        (drafter, rule) for drafter in ("standalone", "eagle3") for rule in ("fixed", "head", "confidence")
    }
    # The same tokens are written, whichever drafter is used.
    assert len({row["tokens"] for row in report["rows"]}) == 1
    batches = report["batches"]
    assert {(row["drafter"], row["rule"]) for row in batches} >= {("standalone", "shipped"), ("eagle3", "confidence")}
    for row in batches:
        assert row["tokens"] == report["rows"][0]["tokens"]
        assert (
            row["verified"]["by_row"] / row["steps"]["by_row"] <= row["verified"]["together"] / row["steps"]["together"]
        )
        assert row["tokens_per_second"]["by_row"] >= row["tokens_per_second"]["by_row_padded"]
    assert files["table"].read_text() in capsys.readouterr().out
    ET.fromstring(files["plot"].read_text())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--texts", "0"], "at least 1"),
        (["--target", "/nowhere"], "checkpoint"),
        (["--heads", "/nowhere", "--texts", "1"], "folder standalone"),
        (["--unknown"], "unknown arguments"),
    ],
)
def test_bad_arguments_are_refused(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "specdec", *arguments]) != 0
    assert message in capsys.readouterr().err
