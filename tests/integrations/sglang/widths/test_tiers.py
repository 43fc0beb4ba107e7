"""The choice of widths that have graphs. A step runs with the graphs of its width."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
from every import every

pytest.importorskip("torch", reason="the plugin needs torch; `make setup` installs it")

from agentspec.errors import ConfigError
from agentspec.integrations.sglang import arguments, compat
from agentspec.integrations.sglang.widths import tiers as width_tiers
from agentspec.integrations.sglang.widths.tiers import WidthTiers, parse_widths, tier_widths


@every(
    ("text", "most", "expected"),
    [
        ("auto", 32, (1, 2, 3, 4, 5, 8, 10, 16, 20, 32)),
        ("auto", 12, (1, 2, 3, 4, 5, 8, 10, 12)),
        ("auto", 2, (1, 2)),
        ("one", 16, (16,)),
        ("8,1,8", 16, (1, 8, 16)),
        ("16", 16, (16,)),
    ],
)
def test_widths_of_a_setting(text: str, most: int, expected: tuple[int, ...]) -> None:
    assert tier_widths(text, most) == expected


@every(
    ("steps", "expected"),
    [(5, (1, 2, 3, 4, 5, 6, 8)), (3, (1, 2, 3, 4, 5, 8)), (7, (1, 2, 3, 4, 5, 8)), (6, (1, 2, 3, 4, 5, 7, 8))],
)
def test_a_chain_of_the_draft_model_has_a_width_of_its_own(steps: int, expected: tuple[int, ...]) -> None:
    assert tier_widths("auto", 8, steps) == expected
    assert tier_widths("2,16", 16, steps) == (2, 16), "a list is taken as it is"


@every("text", ["", "two", "1,x", "0,4", "-1"])
def test_what_names_no_widths_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="widths must be"):
        parse_widths(text)


def test_a_width_beyond_the_greatest_is_refused() -> None:
    with pytest.raises(ConfigError, match="at most"):
        tier_widths("4,32", 16)


class VerifyMode:
    def is_target_verify(self) -> bool:
        return True


@dataclass(eq=False)
class Graphs:
    """The part of SGLang's graph runner that is used."""

    name: str
    capture_bs: list[int] = field(default_factory=lambda: [1, 2, 4])
    capture_forward_mode: VerifyMode = field(default_factory=VerifyMode)

    def __str__(self) -> str:
        return self.name


@dataclass
class Runner:
    """The part of SGLang's model runner that is used."""

    attn_backend: Any = "backend of 8"
    decode_cuda_graph_runner: Any = field(default_factory=lambda: Graphs("graphs of 8"))
    lora_manager: Any = None
    server_args: Any = field(default_factory=lambda: SimpleNamespace(attention_backend="triton"))
    captured: list[int] = field(default_factory=list)
    as_chains: list[int] = field(default_factory=list)
    graph_memory_usage: dict[str, float] = field(default_factory=lambda: {"target_verify": 3.0})
    graph_time_usage: dict[str, float] = field(default_factory=lambda: {"target_verify": 1.5})
    free: float = 100.0

    @property
    def held(self) -> tuple[str, str]:
        return self.attn_backend, str(self.decode_cuda_graph_runner)


@dataclass
class DraftWorker:
    """The part of SGLang's draft worker that is used."""

    speculative_num_draft_tokens: int = 8
    draft_extend_attn_backend: Any = "extend backend of 8"
    cuda_graph_runner_for_draft_extend: Any = field(default_factory=lambda: Graphs("extend graphs of 8"))
    draft_runner: Any = field(default_factory=lambda: Runner(attn_backend="extend backend of 8"))
    captured: list[int] = field(default_factory=list)

    @property
    def held(self) -> tuple[int, str, str, str]:
        return (
            self.speculative_num_draft_tokens,
            self.draft_extend_attn_backend,
            self.draft_runner.attn_backend,
            str(self.cuda_graph_runner_for_draft_extend),
        )


class Ranks:
    """A group of two ranks. The other rank gives the opposite answer when it is asked for the nth time."""

    def __init__(self, *apart: int) -> None:
        self._apart = apart
        self.asked = 0

    def all_gather_object(self, value: bool) -> list[bool]:
        self.asked += 1
        return [value, not value if self.asked in self._apart else value]


@pytest.fixture
def captures(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """Replaces SGLang's captures.

    The settings are the width at which a capture fails, the GB that each capture takes, the ranks, the maximum number
    of tokens of a captured step, their minimum at some widths, and the launcher's notes.
    """
    settings: dict[str, Any] = {
        "fails_at": None,
        "takes": 1.0,
        "ranks": None,
        "tokens": 1000,
        "limits": None,
        "least": {},
    }

    def sizes(runner: Runner, width: int) -> tuple[int, ...]:
        least = settings["least"].get(width, 0)
        return tuple(size for size in (1, 2, 4) if least <= size * width <= settings["tokens"])

    def verify(runner: Runner, width: int, *, topk: int | None) -> tuple[str, Graphs]:
        if width == settings["fails_at"]:
            raise RuntimeError("CUDA out of memory, made up by a test")
        runner.captured.append(width)
        runner.as_chains += [width] if topk == 1 else []
        runner.free -= settings["takes"]
        return f"backend of {width}", Graphs(f"graphs of {width}", list(sizes(runner, width)))

    def extend(draft: DraftWorker, width: int) -> tuple[str, Graphs]:
        draft.captured.append(width)
        return f"extend backend of {width}", Graphs(f"extend graphs of {width}", list(sizes(Runner(), width)))

    monkeypatch.setattr(compat, "capture_verify_graphs", verify)
    monkeypatch.setattr(compat, "capture_draft_extend", extend)
    monkeypatch.setattr(compat, "batch_sizes_to_capture", sizes)
    monkeypatch.setattr(arguments, "graph_limits", lambda server_args: settings["limits"])
    monkeypatch.setattr(compat, "free_memory", lambda runner: runner.free)
    monkeypatch.setattr(compat, "tensor_parallel_group", lambda: settings["ranks"])
    yield settings


@every(("backend", "expected"), [("fa3", [1, 2]), ("fa4", [1, 2]), ("triton", []), ("flashinfer", [])])
def test_rows_that_cannot_branch_are_captured_as_chains_where_these_cost_less(
    captures: dict[str, Any], backend: str, expected: list[int]
) -> None:
    runner = Runner(server_args=SimpleNamespace(attention_backend=backend))
    assert WidthTiers(runner).capture((1, 2, 4, 8)) == (1, 2, 4, 8)
    assert sorted(runner.as_chains) == expected


def test_draft_extend_reads_rows_of_the_width_that_was_verified(captures: dict[str, Any]) -> None:
    runner, draft = Runner(), DraftWorker()
    tiers = WidthTiers(runner, draft)
    assert tiers.capture((1, 4, 8)) == (1, 4, 8)
    assert draft.captured == [1, 4]
    for width in (8, 1, 4, 8):
        tiers.use(width)
        extend = f"extend backend of {width}"
        assert draft.held == (width, extend, extend, f"extend graphs of {width}")
        assert runner.held == (f"backend of {width}", f"graphs of {width}")


def test_widths_are_captured_again_after_sglang_has_captured_its_graphs_again(captures: dict[str, Any]) -> None:
    """SGLang does that after new weights, if the request says so. Older graphs may read memory of the old weights."""
    runner = Runner()
    tiers = WidthTiers(runner)
    assert tiers.capture((1, 4, 8)) == (1, 4, 8) and not tiers.are_outdated
    tiers.use(1)
    tiers.use(8)
    assert not tiers.are_outdated
    runner.decode_cuda_graph_runner = again = Graphs("new graphs of 8")
    runner.captured.clear()
    assert tiers.are_outdated
    assert tiers.capture((1, 4, 8)) == (1, 4, 8) and not tiers.are_outdated
    assert sorted(runner.captured) == [1, 4]
    tiers.use(8)
    assert runner.decode_cuda_graph_runner is again


def test_a_draft_extend_that_sglang_did_not_capture_is_told_its_width_alone(captures: dict[str, Any]) -> None:
    draft = DraftWorker(cuda_graph_runner_for_draft_extend=None)
    tiers = WidthTiers(Runner(), draft)
    assert tiers.capture((1, 8)) == (1, 8)
    tiers.use(1)
    assert draft.captured == []
    assert draft.held == (1, "extend backend of 8", "extend backend of 8", "None")


def test_a_server_without_memory_for_all_graphs_goes_on_with_some(captures: dict[str, Any]) -> None:
    captures["fails_at"] = 4
    runner = Runner()
    tiers = WidthTiers(runner)
    assert tiers.capture((1, 2, 4, 8)) == (1, 8)
    assert runner.held == ("backend of 8", "graphs of 8")
    tiers.use(1)
    assert runner.held == ("backend of 1", "graphs of 1")


@pytest.mark.parametrize(
    ("free", "takes", "expected", "captured"),
    [
        # SGLang's own graphs took 3 GB. Each later capture is expected to take as much as the one before it.
        (2.9, 0.1, (8,), []),
        (3.0, 2.0, (1, 8), [1]),
        (3.0, 1.0, (1, 2, 4, 8), [1, 4, 2]),
        (6.0, 2.0, (1, 2, 4, 8), [1, 4, 2]),
    ],
)
def test_no_capture_begins_that_may_run_out_of_memory(
    captures: dict[str, Any],
    caplog: pytest.LogCaptureFixture,
    free: float,
    takes: float,
    expected: tuple[int, ...],
    captured: list[int],
) -> None:
    captures["takes"] = takes
    runner = Runner(free=free)
    assert WidthTiers(runner).capture((1, 2, 4, 8)) == expected
    assert runner.captured == captured
    assert ("lower --mem-fraction-static" in caplog.text) is (len(expected) < 4)


def test_half_of_what_sglang_leaves_free_stays_free_but_for_the_narrowest_width(captures: dict[str, Any]) -> None:
    captures["limits"] = arguments.GraphLimits(tokens=2048, attention_bytes=0, spare_gb=10.0)
    for free, expected in ((4.0, (1, 8)), (7.0, (1, 4, 8)), (8.0, (1, 2, 4, 8))):
        assert WidthTiers(Runner(free=free)).capture((1, 2, 4, 8)) == expected


def test_attention_buffers_count_by_the_tokens_of_the_largest_step(captures: dict[str, Any]) -> None:
    """A width whose buffers would not fit is skipped. Narrower widths, which need less, are captured."""
    captures.update(limits=arguments.GraphLimits(tokens=32, attention_bytes=10**8, spare_gb=0.0), takes=0.5)
    runner = Runner(free=2.0)
    # Four rows of four tokens take 1.6 GB, four rows of one token 0.4 GB, and four rows of two tokens 0.8 GB.
    assert WidthTiers(runner).capture((1, 2, 4, 8)) == (1, 2, 8)
    assert runner.captured == [1, 2]


@every("widths", [(1, 2, 4, 8, 16, 32, 64), (1, 2, 4, 8, 16), (4, 12, 64), (1, 2), (7,)])
def test_whatever_is_left_out_the_others_are_spread(widths: tuple[int, ...]) -> None:
    order = width_tiers._capture_order(widths)
    assert sorted([*order, widths[-1]]) == list(widths)
    if widths == (1, 2, 4, 8, 16, 32, 64):
        assert order == [1, 8, 4, 32, 2, 16]


def test_a_step_is_as_wide_as_its_batch_has_graphs_for(captures: dict[str, Any]) -> None:
    captures["tokens"] = 16
    runner = Runner(decode_cuda_graph_runner=Graphs("graphs of 8", [1, 2]))
    tiers = WidthTiers(runner)
    assert tiers.capture((1, 4, 8)) == (1, 4, 8)
    assert {rows: tiers.widths_for(rows) for rows in (1, 2, 3, 4)} == {1: (1, 4, 8), 2: (1, 4, 8), 3: (1, 4), 4: (1, 4)}
    # A batch without graphs verifies at most as many tokens as the largest captured step.
    assert tiers.widths_for(5) == (1,)
    assert tiers.widths_for(17) == (1,)
    found = [{**tier, "seconds": 0.0} for tier in tiers.describe()]
    assert found == [
        {"width": 1, "most_rows": 4, "num_graphs": 3, "seconds": 0.0, "gigabytes": 1.0},
        {"width": 4, "most_rows": 4, "num_graphs": 3, "seconds": 0.0, "gigabytes": 1.0},
        {"width": 8, "most_rows": 2, "num_graphs": 2, "seconds": 0.0, "gigabytes": 3.0},
    ]


def test_a_small_batch_does_not_run_in_the_graphs_of_a_larger_one(captures: dict[str, Any]) -> None:
    captures.update(least={3: 6}, tokens=12)
    tiers = WidthTiers(Runner(decode_cuda_graph_runner=Graphs("graphs of 8", [1])))
    assert tiers.capture((1, 3, 8)) == (1, 3, 8)
    found = {rows: tiers.widths_for(rows) for rows in (1, 2, 4)}
    assert found == {1: (1, 8), 2: (1, 3), 4: (1, 3)}
    captures.update(least={3: 13})
    assert WidthTiers(Runner()).capture((1, 3, 8)) == (1, 8), "no batch has graphs of 3"


@pytest.mark.parametrize(
    ("apart", "expected", "captured"),
    [
        # The ranks agree twice per width: before its capture and on the result.
        ((), (1, 2, 4, 8), [1, 4, 2]),
        ((1,), (2, 4, 8), [4, 2]),
        ((2,), (8,), [1]),
        ((5,), (1, 4, 8), [1, 4]),
        ((6,), (1, 4, 8), [1, 4, 2]),
    ],
)
def test_ranks_have_the_same_tiers(
    captures: dict[str, Any], apart: tuple[int, ...], expected: tuple[int, ...], captured: list[int]
) -> None:
    captures["ranks"] = ranks = Ranks(*apart)
    runner = Runner()
    tiers = WidthTiers(runner)
    assert tiers.capture((1, 2, 4, 8)) == expected
    assert runner.captured == captured
    # All ranks must ask equally often, since a rank that asks more often waits forever. After a width that does not fit
    # they continue with the next one; after a failed capture they stop.
    assert ranks.asked == {(): 6, (1,): 5, (2,): 2, (5,): 5, (6,): 6}[apart]
    assert runner.held == ("backend of 8", "graphs of 8")


def test_a_capture_that_fails_here_is_told_to_the_other_ranks(captures: dict[str, Any]) -> None:
    captures.update(fails_at=1, ranks=(ranks := Ranks()))
    assert WidthTiers(Runner()).capture((1, 2, 4, 8)) == (8,)
    assert ranks.asked == 2


def test_adapters_leave_one_width(captures: dict[str, Any], caplog: pytest.LogCaptureFixture) -> None:
    """SGLang's adapters read buffers of the graph runner that was made last, so a second width would read wrong
    ones."""
    runner = Runner(lora_manager="a manager")
    with caplog.at_level("INFO", logger="agentspec"):
        tiers = WidthTiers(runner)
        assert tiers.capture((1, 2, 4, 8)) == (8,)
    assert tiers.has_graphs
    assert runner.captured == []
    assert "LoRA" in caplog.text
    tiers.use(8)
    assert runner.held == ("backend of 8", "graphs of 8")


@pytest.mark.parametrize(("any_width", "expected"), [(True, ()), (False, (8,))])
def test_without_graphs_the_attention_backend_says_whether_widths_may_differ(
    captures: dict[str, Any], monkeypatch: pytest.MonkeyPatch, any_width: bool, expected: tuple[int, ...]
) -> None:
    monkeypatch.setattr(width_tiers, "takes_any_width", lambda server_args: any_width)
    runner = Runner(decode_cuda_graph_runner=None)
    tiers = WidthTiers(runner)
    assert tiers.capture((1, 2, 4, 8)) == expected
    assert not tiers.has_graphs
    assert tiers.widths_for(3) == expected and tiers.describe() == []
    assert runner.captured == []


@pytest.mark.parametrize("graphs", [None, "a runner that captures no verify steps"])
def test_nothing_changes_where_no_verify_step_was_captured(
    captures: dict[str, Any], monkeypatch: pytest.MonkeyPatch, graphs: Any
) -> None:
    monkeypatch.setattr(width_tiers, "takes_any_width", lambda server_args: True)
    runner, draft = Runner(decode_cuda_graph_runner=graphs), DraftWorker()
    tiers = WidthTiers(runner, draft)
    assert tiers.capture((1, 2, 4, 8)) == ()
    tiers.use(4)
    assert (runner.held, runner.captured) == (("backend of 8", str(graphs)), [])
    # Draft-extend must still know the width of the step.
    assert draft.held == (4, "extend backend of 8", "extend backend of 8", "extend graphs of 8")
