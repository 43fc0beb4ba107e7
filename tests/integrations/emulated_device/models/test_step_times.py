"""Step times: the roofline of published models, files, and what is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from agentspec.errors import ConfigError
from agentspec.integrations.emulated_device.models.forward_times import ForwardTime
from agentspec.integrations.emulated_device.models.step_times import DEVICES, LLAMA_8B, QWEN_32B, StepTimes


def test_parameter_counts_are_those_published() -> None:
    assert LLAMA_8B.parameters == pytest.approx(8.03e9, rel=1e-3)
    assert QWEN_32B.parameters == pytest.approx(32.76e9, rel=1e-3)


@pytest.mark.parametrize(("rows", "width", "low", "high"), [(1, 1, 4, 5), (1, 16, 4, 5), (16, 4, 4, 7), (64, 4, 9, 12)])
def test_steps_of_an_8b_take_4_to_12_ms(rows: int, width: int, low: float, high: float) -> None:
    seconds = DEVICES["h200-8b"].target(rows, rows * width, rows * 2000)
    assert low <= 1e3 * seconds <= high


def test_linear_layers_and_attention_take_the_longer_of_bytes_and_operations() -> None:
    time = ForwardTime(fixed=1.0, weights=10.0, per_token=1.0, per_context=0.1, per_pair=0.01, per_row=2.0)
    assert time.seconds(1, 1, 10) == pytest.approx(1 + 2 + 10 + 1)
    assert time.seconds(1, 20, 10) == pytest.approx(1 + 2 + 20 + 2)
    assert time.seconds(2, 20, 10) == pytest.approx(1 + 4 + 20 + 1)


@pytest.mark.parametrize("name", DEVICES)
def test_more_work_never_takes_less(name: str) -> None:
    times = DEVICES[name]
    for less, more in (
        (times.target(1, 1, 100), times.target(4, 4, 400)),
        (times.target(4, 4, 400), times.target(4, 256, 400)),
        (times.prefill(100, 100), times.prefill(2000, 2000)),
        (times.prefill(2000, 2000), times.prefill(2000, 20000)),
        (times.draft_pass(1, 100), times.draft_pass(64, 64000)),
        (times.draft_extend(4, 100), times.draft_extend(4000, 4000)),
        (times.kernel(), times.kernel(1 << 20)),
        (times.copy(8), times.copy(1 << 20)),
    ):
        assert 0 < less < more


def test_a_file_gives_what_was_saved(tmp_path: Path) -> None:
    times = replace(DEVICES["h200-8b"], name="mine", blocking=True)
    times.save(tmp_path / "times.json")
    assert StepTimes.load(tmp_path / "times.json") == times
    assert StepTimes.load("h200-8b") is DEVICES["h200-8b"]


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"version": 2}, "agentspec-step-times 1"),
        ({"host_launch": -1.0}, "host_launch"),
        ({"blocking": "yes"}, "blocking"),
        ({"name": ""}, "name"),
        ({"draft": {"fixed": float("inf")}}, "fixed"),
        ({"draft": {}}, "some time"),
        ({"draft": {"speed": 1.0}}, "speed"),
        ({"more": 1.0}, "more"),
    ],
)
def test_files_with_wrong_values_are_refused(changed: dict[str, object], named: str, tmp_path: Path) -> None:
    path = tmp_path / "times.json"
    path.write_text(json.dumps({**DEVICES["h200-8b"].to_json(), **changed}), encoding="utf-8")
    with pytest.raises(ConfigError, match=named):
        StepTimes.load(path)


def test_what_is_neither_name_nor_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="h200-8b, h200-32b"):
        StepTimes.load(tmp_path / "none.json")
    (tmp_path / "text.json").write_text("no JSON", encoding="utf-8")
    with pytest.raises(ConfigError, match="no step times"):
        StepTimes.load(tmp_path / "text.json")


def test_scaled_parts_take_longer_and_nothing_else_changes() -> None:
    times = DEVICES["h200-8b"]
    scaled = times.scaled("slow-memory", {"memory": 2.0, "launches": 0.5})
    # One row reads weights and context, and computes little.
    fixed = times.target_pass.fixed
    assert scaled.target(1, 1, 1000) - fixed == pytest.approx(2 * (times.target(1, 1, 1000) - fixed))
    # A long prefill computes, and reads its weights meanwhile.
    assert scaled.prefill(8000, 8000) == pytest.approx(times.prefill(8000, 8000))
    assert scaled.host_launch == times.host_launch / 2 and scaled.copy(8) == times.copy(8)
    assert (scaled.name, scaled.model) == ("slow-memory", "h200-8b")
    assert "memory x 2, launches x 0.5" in scaled.note


@pytest.mark.parametrize("factors", [{"speed": 2.0}, {"memory": 0.0}, {"memory": float("inf")}])
def test_other_parts_and_factors_are_refused(factors: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match="memory, arithmetic"):
        DEVICES["h200-8b"].scaled("x", factors)
