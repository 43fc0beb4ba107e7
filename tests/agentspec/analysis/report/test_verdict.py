"""Which verdict follows from what was measured."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from every import every

from agentspec.analysis.report.verdict import Evidence, best_width, budget_mb, drafter_gain, verdict
from agentspec.simulation import find_profile

SPARE = find_profile("smartspec-a100-7b")


def speedup(high: float) -> dict[str, Any]:
    return {"profile": "p", "concurrency": 1, "low": 1.0, "high": high, "controller": "goodput"}


def judged(**changes: Any) -> dict[str, Any]:
    values: dict[str, Any] = {
        "num_outputs": 200,
        "num_sessions": 50,
        "lost_share": 0.0,
        "cold": 2.0,
        "warm": 4.0,
        "alone": 1.5,
        "entropy": 1.5,
        "draft_share": 0.5,
        "speedups": [speedup(2.0)],
        "rows": [],
        "profile": SPARE,
        "concurrency": (1,),
        "context": 1000.0,
        "budget_mb": 256,
        "model": "MODEL",
    }
    return verdict(Evidence(**{**values, **changes}))


@pytest.mark.parametrize(
    ("changes", "kind", "said"),
    [
        ({}, "suffix", "as the replay does"),
        ({"entropy": 3.0, "warm": 4.0}, "model", "repeats are longer than the 4 tokens"),
        ({"entropy": 3.0, "warm": 4.0, "alone": 3.0}, "model", "copied from a request's own prompt"),
        ({"warm": 1.5}, "suffix", "repeats end soon"),
        ({"warm": 4.0, "concurrency": (1024,), "speedups": [speedup(1.0)]}, "suffix", "weighs the time of steps"),
    ],
)
def test_the_entropy_alone_says_something_too(changes: dict[str, Any], kind: str, said: str) -> None:
    found = judged(**changes)["by_entropy"]
    assert found["kind"] == kind and said in found["text"]
    assert found["accept_length"]["low"] < found["accept_length"]["mean"] < found["accept_length"]["high"]
    assert (found["kind"] == judged(**changes)["kind"]) is (said == "as the replay does")


def test_without_entropy_or_verdict_nothing_is_said_of_it() -> None:
    assert judged(entropy=None)["by_entropy"] is None
    assert judged(num_outputs=5)["by_entropy"] is None


@every(
    ("changes", "kind"),
    [
        ({}, "suffix"),
        ({"warm": 2.4}, "hybrid"),
        ({"warm": None, "cold": 2.4}, "hybrid"),
        ({"warm": 1.3}, "model"),
        ({"warm": 1.3, "concurrency": (1024,), "speedups": [speedup(1.0)]}, "none"),
        ({"warm": 2.4, "concurrency": (1024,), "speedups": [speedup(1.2)]}, "suffix"),
        ({"num_outputs": 5}, "unknown"),
        ({"num_sessions": 2}, "unknown"),
        ({"lost_share": 0.5}, "unknown"),
        ({"warm": None, "cold": None}, "unknown"),
    ],
)
def test_kinds(changes: dict[str, Any], kind: str) -> None:
    found = judged(**changes)
    assert found["kind"] == kind
    assert found["headline"].endswith(".") and found["would_change"]
    # No advice without a verdict.
    assert bool(found["command"]) is (kind != "unknown") and bool(found["flags"]) is (kind not in ("none", "unknown"))


def test_flags_are_those_of_the_command() -> None:
    rows = [
        {"tau": 0.0, "width": w, "accept_length_warm": length, "accept_length_cold": 1.0}
        for w, length in ((16, 3.0), (64, 4.0), (128, 5.0))
    ]
    found = judged(warm=2.5, rows=rows, budget_mb=512, model="/models/m")
    assert found["command"].endswith(" ".join(found["flags"]))
    assert found["flags"][:6] == [
        "--speculative-algorithm",
        "AGENTSPEC",
        "--speculative-num-draft-tokens",
        "128",
        "--agentspec-budget-mb",
        "512",
    ]
    assert "--speculative-draft-model-path" in found["flags"]
    assert judged(concurrency=(1024,), warm=1.2, speedups=[speedup(1.0)])["flags"] == []


@every(("graphs", "default"), [("captured", 64), ("not stated", 64), ("none", 16)])
@every("width", [8, 16, 32, 64, 128])
def test_a_width_up_to_the_default_of_the_device_needs_no_flag(graphs: str, default: int, width: int) -> None:
    row = {"tau": 0.0, "width": width, "accept_length_warm": 4.0, "accept_length_cold": 1.0}
    found = judged(rows=[row], profile=replace(SPARE, key=replace(SPARE.key, device="box", graphs=graphs)))
    assert ("--speculative-num-draft-tokens" in found["flags"]) == (width > default)
    (reason,) = (reason for reason in found["reasons"] if "box" in reason)
    assert f"up to {default} tokens" in reason and ("without" in reason) == (graphs == "none")


@pytest.mark.sglang
def test_the_default_widths_are_those_of_servers() -> None:
    from agentspec.analysis.report import verdict as module
    from agentspec.integrations.sglang.widths import graph_sizes

    assert (module._WIDTH_WITH_GRAPHS, module._WIDTH_WITHOUT_GRAPHS) == (
        graph_sizes.DEFAULT_WIDTHS[0],
        graph_sizes.DEFAULT_WIDTH,
    )


def test_the_smallest_width_that_loses_little_is_taken() -> None:
    def row(width: int, length: float) -> dict[str, Any]:
        return {
            "tau": 0.0,
            "width": width,
            "accept_length_warm": None,
            "accept_length_cold": length,
        }

    assert best_width([row(4, 3.0), row(8, 3.0), row(16, 3.05), row(32, 3.05)]) == 8
    assert best_width([]) == 16


def test_a_drafter_gains_less_in_larger_batches() -> None:
    gains = [drafter_gain(SPARE, rows, 500.0) for rows in (1, 16, 256)]
    assert gains[0] > gains[1] > gains[2]


@pytest.mark.parametrize(("megabytes", "budget"), [(0, 256), (100, 256), (200, 512), (600, 2048)])
def test_budgets_hold_the_index_twice(megabytes: int, budget: int) -> None:
    assert budget_mb(megabytes * 2**20) == budget
