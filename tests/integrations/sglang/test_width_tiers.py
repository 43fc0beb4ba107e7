"""Which widths have graphs, and that a step runs with those of its width."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

import pytest

pytest.importorskip("torch", reason="the plugin needs torch; `make setup` installs it")

from agentspec.errors import ConfigError
from agentspec.integrations.sglang import compat
from agentspec.integrations.sglang.width_tiers import WidthTiers, padded_width, parse_widths, tier_widths


@pytest.mark.parametrize(
    ("text", "most", "expected"),
    [
        ("auto", 32, (1, 2, 4, 8, 16, 32)),
        ("auto", 12, (1, 2, 4, 8, 12)),
        ("auto", 2, (1, 2)),
        ("one", 16, (16,)),
        ("8,1,8", 16, (1, 8, 16)),
        ("16", 16, (16,)),
    ],
)
def test_widths_of_a_setting(text: str, most: int, expected: tuple[int, ...]) -> None:
    assert tier_widths(text, most) == expected


@pytest.mark.parametrize("text", ["", "two", "1,x", "0,4", "-1"])
def test_what_names_no_widths_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="widths must be"):
        parse_widths(text)


def test_a_width_beyond_the_greatest_is_refused() -> None:
    with pytest.raises(ConfigError, match="at most"):
        tier_widths("4,32", 16)


def test_a_step_gets_the_least_width_that_holds_it() -> None:
    rng = random.Random(0)
    for _ in range(200):
        widths = tuple(sorted(rng.sample(range(1, 65), rng.randint(1, 8))))
        width = rng.randint(1, widths[-1])
        assert padded_width(width, widths) == min(w for w in widths if w >= width)
    assert padded_width(7, ()) == 7


@dataclass
class Runner:
    """What is used of SGLang's model runner."""

    attn_backend: Any = "backend of 8"
    decode_cuda_graph_runner: Any = "graphs of 8"
    captured: list[int] = field(default_factory=list)


def captured(fails_at: int | None = None) -> Any:
    def capture(runner: Runner, width: int) -> tuple[str, str]:
        if width == fails_at:
            raise RuntimeError("CUDA out of memory, made up by a test")
        runner.captured.append(width)
        return f"backend of {width}", f"graphs of {width}"

    return capture


def test_each_step_runs_with_graphs_of_its_width(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compat, "capture_verify_graphs", captured())
    runner = Runner()
    tiers = WidthTiers(runner)
    assert tiers.capture((1, 2, 4, 8), may_fail=True) == (1, 2, 4, 8)
    # The widest is SGLang's own, and the wider ones of the rest come first, for they need the most memory.
    assert runner.captured == [4, 2, 1]
    assert runner.attn_backend == "backend of 8"
    for width in (1, 8, 2, 4, 8):
        tiers.use(width)
        assert (runner.attn_backend, runner.decode_cuda_graph_runner) == (f"backend of {width}", f"graphs of {width}")


def test_a_server_without_memory_for_all_graphs_goes_on_with_some(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compat, "capture_verify_graphs", captured(fails_at=2))
    assert WidthTiers(Runner()).capture((1, 2, 4, 8), may_fail=True) == (4, 8)
    # Other ranks would not know which are left.
    with pytest.raises(RuntimeError, match="out of memory"):
        WidthTiers(Runner()).capture((1, 2, 4, 8), may_fail=False)


def test_nothing_changes_where_nothing_was_captured() -> None:
    runner = Runner(decode_cuda_graph_runner=None)
    tiers = WidthTiers(runner)
    assert tiers.capture((1, 2, 4, 8), may_fail=True) == ()
    tiers.use(4)
    assert runner == Runner(decode_cuda_graph_runner=None)
