"""Decode graphs: replays compute the right logits, faults of graphs are noticed, and a server's steps vary in width.

Real SGLang captures, chooses and replays its graphs here, on a CPU and without CUDA; see tests/helpers/recorded_graphs.
"""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import recorded_graphs
from server_requests import ARGUMENTS, MODEL, assert_same, chat_prompts, generate, tokens_of

from agentspec.evals.parity.servers import UNITED
from agentspec.evals.systems import EAGLE3_FOLDER, STANDALONE_FOLDER
from agentspec.integrations.servers.server import Server
from agentspec.integrations.sglang_cpu import environment

pytestmark = [pytest.mark.sglang, pytest.mark.server]

torch = pytest.importorskip("torch", reason="the plugin needs torch; `make setup` installs it")
from recorded_graphs.recording import NO_TOKEN, CaptureError, Recording, record

# The default widths of a server that captures graphs.
WIDTHS = (1, 2, 4, 8, 16, 32, 64)
# If a replay reads a wrong tensor, logits differ by more than this. Rounding causes smaller differences.
NOTICED = 1e-2


class Graphs:
    """A server with graphs, and the results of its scheduler's checks before it served."""

    def __init__(self, server: Server, checks: Path) -> None:
        self.server = server
        self.checks: dict[str, Any] = json.loads(checks.read_text())


def served(server: Server) -> str:
    """The part of the server's log after its start."""
    return server.log_text().partition("The server is fired up")[2]


@contextmanager
def serving(folder: Path, *arguments: str, **variables: str) -> Iterator[Server]:
    path = [environment()["PYTHONPATH"], str(recorded_graphs.site(folder / "site")), str(recorded_graphs.HELPERS)]
    server = Server(
        MODEL,
        "AGENTSPEC",
        log=folder / "server.log",
        arguments=(
            *ARGUMENTS,
            # Everything drafted is verified.
            *("--agentspec-baseline", f"fixed:length={WIDTHS[-1] - 1}"),
            # Batches of all other sizes are padded.
            *("--cuda-graph-bs-decode", "1", "3", "8"),
            *arguments,
        ),
        environment={
            "PYTHONPATH": os.pathsep.join(path),
            **variables,
        },
    )
    with server:
        yield server


@pytest.fixture(scope="module")
def graphs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Graphs]:
    """A server without a draft model."""
    folder = tmp_path_factory.mktemp("graphs")
    checks = folder / "checks.json"
    with serving(folder, **{recorded_graphs.CHECKS_VARIABLE: str(checks)}) as server:
        yield Graphs(server, checks)


@pytest.fixture(scope="module", params=[EAGLE3_FOLDER, STANDALONE_FOLDER], ids=["eagle3", "standalone"])
def hybrid(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with a draft model, computed by SGLang's code. It drafts for rows whose suffix drafts promise at most
    one token."""
    folder = tmp_path_factory.mktemp("hybrid_graphs")
    arguments = ("--speculative-draft-model-path", str(request.param), "--agentspec-tau", "1")
    with serving(folder, *arguments, SGLANG_CPU_DRAFTER="off", **UNITED) as server:
        yield server


@pytest.fixture(scope="module")
def bounded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with a draft model and a low limit of tokens per captured step."""
    arguments = ("--speculative-draft-model-path", str(EAGLE3_FOLDER), "--agentspec-tau", "1")
    variables = {**UNITED, "SGLANG_CPU_DRAFTER": "off", recorded_graphs.TOKENS_VARIABLE: "100"}
    with serving(tmp_path_factory.mktemp("bounded_graphs"), *arguments, **variables) as server:
        yield server


@pytest.mark.parametrize("when", ["every width", "every width again"])
def test_a_replay_computes_what_a_forward_without_graphs_does(graphs: Graphs, when: str) -> None:
    """It is checked before and after the faults below, so that faults are known to leave nothing behind."""
    found = graphs.checks[when]
    assert len(found) == 3 * len(WIDTHS)
    assert {name for name, difference in found.items() if difference > 1e-4} == set()


@pytest.mark.parametrize(
    ("fault", "told"),
    [
        ("an input's buffer is replaced", None),
        ("the mask's buffer is replaced", None),
        ("a weight is replaced", None),
        ("rows of another width", "no graph was replayed"),
        ("rows of another width, unasked", "must match the size"),
        ("a tier is missing", "KeyError: 4"),
        ("an attention backend of another width", "Error"),
        ("an attention backend is set up again", None),
        ("a capture reads a tensor", "was called in a capture"),
    ],
)
def test_a_fault_around_graphs_is_noticed(graphs: Graphs, fault: str, told: str | None) -> None:
    found = graphs.checks[fault]
    if told is None:
        assert found > NOTICED
    else:
        assert told in found


@pytest.mark.parametrize("at_once", [1, 2, 5])
def test_greedy_tokens_equal_plain_decoding(plain: Server, graphs: Graphs, at_once: int) -> None:
    assert graphs.server.get("/server_info")["disable_overlap_schedule"] is False
    requests = [
        {"text": text, "sampling_params": {"temperature": 0, "max_new_tokens": length, "ignore_eos": length < 20}}
        for text, length in zip(chat_prompts(6, seed=at_once), [90, 7, 48] * 2, strict=True)
    ]
    expected = tokens_of(generate(plain, requests, at_once))
    for _ in range(2):
        assert_same(tokens_of(generate(graphs.server, requests, at_once)), expected)


def test_each_step_replayed_a_graph_of_its_width(graphs: Graphs) -> None:
    state = graphs.server.agentspec_state()
    assert state is not None
    assert state["control"]["widths_captured"] == list(WIDTHS)
    assert state["counters"]["draft_errors"] == state["counters"]["control_errors"] == 0
    log = served(graphs.server)
    assert recorded_graphs.EAGER not in log
    counts = recorded_graphs.replays(log)
    assert sum(counts.values()) == state["counters"]["steps"] > 0
    used = {width for kind, width in counts if kind == "TARGET_VERIFY"}
    assert len(used) >= 4 and used <= set(WIDTHS) and max(used) > 16


def test_a_draft_model_s_graphs_are_of_the_width_that_is_verified(plain: Server, hybrid: Server) -> None:
    requests = [
        {"text": text, "sampling_params": {"temperature": 0, "max_new_tokens": length}}
        for text, length in zip(chat_prompts(6, seed=7), [64, 9, 40] * 2, strict=True)
    ]
    expected = tokens_of(generate(plain, requests, 3))
    for at_once in (3, 1):
        assert_same(tokens_of(generate(hybrid, requests, at_once)), expected)
    state = hybrid.agentspec_state()
    assert state is not None
    assert state["control"]["widths_captured"] == list(WIDTHS)
    # A CPU runs no functions of the host in stream order, so the host unites.
    assert state["drafter"]["drafts_united_on"] == "host"
    assert state["counters"]["draft_errors"] == state["counters"]["control_errors"] == 0
    log = served(hybrid)
    assert recorded_graphs.EAGER not in log
    counts = recorded_graphs.replays(log)
    of_kind = {kind: Counter({w: n for (k, w), n in counts.items() if k == kind}) for kind, _ in counts}
    assert of_kind["TARGET_VERIFY"].total() == state["counters"]["steps"]
    assert of_kind["DRAFT_EXTEND_V2"] == of_kind["TARGET_VERIFY"]
    assert len(of_kind["TARGET_VERIFY"]) >= 3
    # The draft model's passes are captured once for the branches of a draft, independent of the width.
    assert of_kind["DECODE"] == {state["drafter"]["topk"]: state["counters"]["drafter_steps"]}


def test_wide_steps_have_graphs_for_few_rows(plain: Server, bounded: Server) -> None:
    state = bounded.agentspec_state()
    assert state is not None
    assert state["num_draft_tokens"] == WIDTHS[-1]
    assert [tier["width"] for tier in state["graphs"]] == list(WIDTHS)
    # Captured steps have 1, 3 or 8 rows, for verification and for draft-extend, and at most 100 tokens except at the
    # narrowest width.
    assert [tier["most_rows"] for tier in state["graphs"]] == [8, 8, 8, 8, 3, 3, 1]
    assert [tier["num_graphs"] for tier in state["graphs"]] == [6, 6, 6, 6, 4, 4, 2]
    requests = [
        {"text": text, "sampling_params": {"temperature": 0, "max_new_tokens": length}}
        for text, length in zip(chat_prompts(6, seed=8), [64, 9, 40] * 2, strict=True)
    ]
    expected = tokens_of(generate(plain, requests, 3))
    for at_once in (6, 1):
        assert_same(tokens_of(generate(bounded, requests, at_once)), expected)
    state = bounded.agentspec_state()
    assert state is not None and state["counters"]["draft_errors"] == state["counters"]["control_errors"] == 0
    sizes = {
        (int(width), int(size))
        for width, size in re.findall(r"TARGET_VERIFY width (\d+), \d+ rows of (\d+)", served(bounded))
    }
    assert sizes and all(width * size <= 100 for width, size in sizes)
    assert recorded_graphs.EAGER not in served(bounded)


def test_a_replay_runs_the_same_operations_on_the_same_tensors() -> None:
    given, kept = torch.arange(6.0), torch.zeros(6)

    def compute() -> Any:
        view = given.view(2, 3)
        kept.add_(given)
        return {"sums": view.sum(1), "rows": [view.t() * 2]}

    recorded, output = record(compute)
    given.copy_(torch.full((6,), 3.0))
    recorded.replay()
    assert output["sums"].tolist() == [9.0, 9.0]
    assert output["rows"][0].tolist() == [[6.0, 6.0]] * 3
    assert kept.tolist() == [3.0, 4.0, 5.0, 6.0, 7.0, 8.0]


def test_what_python_decided_or_replaced_is_not_seen() -> None:
    held = {"given": torch.ones(2), "factor": 2}
    recorded, output = record(lambda: held["given"] * held["factor"])
    held["given"], held["factor"] = torch.full((2,), 7.0), 5
    recorded.replay()
    assert output.tolist() == [2.0, 2.0]


def test_memory_that_a_capture_fills_is_filled_by_each_replay() -> None:
    def count() -> Any:
        counts = torch.zeros(2)
        counts.add_(1)
        return counts

    recorded, output = record(count)
    recorded.replay()
    recorded.replay()
    assert output.tolist() == [1.0, 1.0]


def test_another_replay_overwrites_outputs() -> None:
    first, floats = record(lambda: torch.ones(2) * 2)
    second, integers = record(lambda: torch.arange(3) + 1)
    first.replay()
    assert floats.tolist() == [2.0, 2.0]
    assert integers.tolist() == [NO_TOKEN] * 3
    second.replay()
    assert integers.tolist() == [1, 2, 3]
    assert torch.isnan(floats).all()


def test_memory_from_outside_is_not_overwritten() -> None:
    shared = torch.zeros(2)
    recorded, output = record(lambda: shared.fill_(4))
    recorded.replay()
    record(lambda: torch.ones(2) + 1)[0].replay()
    assert output.tolist() == [4.0, 4.0]


READS: dict[str, Callable[[Any], Any]] = {
    "item": lambda x: x.sum().item(),
    "tolist": lambda x: x.tolist(),
    "bool": lambda x: bool(x.sum() > 1),
    "int": lambda x: int(x[0]),
    "numpy": lambda x: x.numpy(),
    "asarray": lambda x: np.asarray(x),
    "cpu": lambda x: x.cpu(),
    "nonzero": lambda x: x.nonzero(),
    "where": lambda x: torch.where(x > 1),
    "mask": lambda x: x[x > 1],
    "masked_select": lambda x: x.masked_select(x > 1),
    "equal": lambda x: torch.equal(x, x),
    "unique": lambda x: x.unique(),
    "repeat_interleave": lambda x: torch.arange(4).repeat_interleave(x),
    "range": lambda x: range(x[1]),
}


@pytest.mark.parametrize("read", READS)
def test_a_capture_refuses_what_cuda_refuses(read: str) -> None:
    given = torch.arange(4)
    with pytest.raises(CaptureError, match="in a capture"):
        record(lambda: READS[read](given))


def test_a_capture_takes_what_cuda_takes() -> None:
    given = torch.arange(4)

    def compute() -> Any:
        written = given.clone()
        written[given > 1] = 9
        return (
            written,
            torch.where(given > 1, given, 0),
            given.repeat_interleave(torch.tensor([1, 1, 1, 1]), output_size=4),
        )

    recorded, (written, chosen, repeated) = record(compute)
    given.add_(1)
    recorded.replay()
    assert isinstance(recorded, Recording) and len(recorded) > 3
    assert written.tolist() == [1, 9, 9, 9]
    assert chosen.tolist() == [0, 2, 3, 4]
    assert repeated.tolist() == [1, 2, 3, 4]
