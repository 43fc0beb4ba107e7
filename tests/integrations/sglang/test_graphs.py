"""Decode graphs: replays compute the right logits, and a server's steps vary in width.

Real SGLang captures, chooses and replays its graphs here, on a CPU and without CUDA; see tests/helpers/recorded_graphs.
"""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import recorded_graphs
from server_requests import (
    ARGUMENTS,
    MODEL,
    assert_same,
    chat_prompts,
    counters_of,
    generate,
    greedy_requests,
    state_of,
    tokens_of,
)

from agentspec.evals.parity.servers import UNITED
from agentspec.evals.systems import EAGLE3_FOLDER, STANDALONE_FOLDER
from agentspec.integrations.servers.server import Server
from agentspec.integrations.sglang_cpu import environment

pytestmark = [pytest.mark.sglang, pytest.mark.server]

# The default widths of a server that captures graphs.
WIDTHS = (1, 2, 4, 8, 16, 20, 32, 64)
"""Of the widths between powers of two, only 20 has graphs: for 8 rows."""


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
        environment={"PYTHONPATH": os.pathsep.join(path), **variables},
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
    with serving(folder, *arguments, **UNITED) as server:
        yield server


@pytest.fixture(scope="module")
def bounded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with a draft model and a low limit of tokens per captured step."""
    arguments = ("--speculative-draft-model-path", str(EAGLE3_FOLDER), "--agentspec-tau", "1")
    variables = {**UNITED, recorded_graphs.TOKENS_VARIABLE: "100"}
    with serving(tmp_path_factory.mktemp("bounded_graphs"), *arguments, **variables) as server:
        yield server


def test_a_replay_computes_what_a_forward_without_graphs_does(graphs: Graphs) -> None:
    assert len(graphs.checks) == 3 * len(WIDTHS)
    assert {name for name, difference in graphs.checks.items() if difference > 1e-4} == set()


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
    state = state_of(graphs.server)
    assert state["control"]["widths_captured"] == list(WIDTHS)
    assert state["counters"]["draft_errors"] == state["counters"]["control_errors"] == 0
    log = served(graphs.server)
    assert recorded_graphs.EAGER not in log
    counts = recorded_graphs.replays(log)
    assert sum(counts.values()) == state["counters"]["steps"] > 0
    used = {width for kind, width in counts if kind == "TARGET_VERIFY"}
    assert len(used) >= 4 and used <= set(WIDTHS) and max(used) > 16


def test_a_draft_model_s_graphs_are_of_the_width_that_is_verified(plain: Server, hybrid: Server) -> None:
    requests = greedy_requests(6, 7, 64, 9, 40)
    expected = tokens_of(generate(plain, requests, 3))
    for at_once in (3, 1):
        assert_same(tokens_of(generate(hybrid, requests, at_once)), expected)
    state = state_of(hybrid)
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
    state = state_of(bounded)
    assert state["num_draft_tokens"] == WIDTHS[-1]
    assert [tier["width"] for tier in state["graphs"]] == [width for width in WIDTHS if width != 20]
    # Captured steps have 1, 3 or 8 rows, for verification and for draft-extend, and at most 100 tokens except at the
    # narrowest width.
    assert [tier["most_rows"] for tier in state["graphs"]] == [8, 8, 8, 8, 3, 3, 1]
    assert [tier["num_graphs"] for tier in state["graphs"]] == [6, 6, 6, 6, 4, 4, 2]
    requests = greedy_requests(6, 8, 64, 9, 40)
    expected = tokens_of(generate(plain, requests, 3))
    for at_once in (6, 1):
        assert_same(tokens_of(generate(bounded, requests, at_once)), expected)
    counters = counters_of(bounded)
    assert counters["draft_errors"] == counters["control_errors"] == 0
    sizes = {
        (int(width), int(size))
        for width, size in re.findall(r"TARGET_VERIFY width (\d+), \d+ rows of (\d+)", served(bounded))
    }
    assert sizes and all(width * size <= 100 for width, size in sizes)
    assert recorded_graphs.EAGER not in served(bounded)
