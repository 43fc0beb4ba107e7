"""Compares servers under test with plain SGLang, using the code of `agentspec bench parity`."""

from __future__ import annotations

import os
import time
from pathlib import Path

from parity import compared
from server_aborts import AbortReport, abort_storm

from agentspec.evals.parity.bench import compare
from agentspec.evals.parity.client import Answer
from agentspec.evals.parity.requests import Round
from agentspec.evals.parity.rows import Compared, is_right, row_of
from agentspec.integrations.servers.server import RunningServer
from agentspec.integrations.sglang_cpu import environment

TOKENS = 10_000
"""Number of tokens compared for a server that many tests share; `agentspec bench parity` compares ten times as many."""
FEW_TOKENS = 3_000
"""Number of tokens compared for each server that is started for one variant alone: two ranks, pages, no overlap."""
GPU_WAYS = Path(__file__).parent / "gpu_ways"
"""The plugin that makes a server on a CPU behave like servers on a GPU."""
ALL_GPU_WAYS = "no-host-lengths,reused-outputs,fixed-relay,checked-relay"
Reference = tuple[list[Round], list[list[Answer]]]
"""Rounds of requests, and plain SGLang's answers."""


def python_path(*more: Path, fork: bool = True) -> str:
    """PYTHONPATH with folders of SGLang plugins after its first entry, which patches SGLang for a CPU. `fork`: whether the
    server forks its processes."""
    first, *others = environment()["PYTHONPATH"].split(os.pathsep)
    return os.pathsep.join([first, *map(str, more), *(path for path in others if fork or Path(path).name != "forking")])


def retracting(every: int) -> dict[str, str]:
    """Variables with which SGLang retracts requests after this number of scheduler passes, again and again."""
    return {"SGLANG_TEST_RETRACT": "1", "SGLANG_TEST_RETRACT_INTERVAL": str(every)}


def assert_parity(server: RunningServer, reference: Reference) -> Compared:
    """Checks that a server answers the reference's requests as plain SGLang did; counts the compared answers."""
    found = compare(server, *reference, seed=0)
    row = row_of(found)
    assert is_right(row), row["first_differences"][:3] or row["p_values"]
    assert found.cached_tokens and found.stopped, "prefixes were to be found in the cache, and stops in answers"
    assert found.accepted_tokens, "nothing was drafted, so nothing was shown"
    compared["answers"] += found.answers
    compared["tokens"] += found.tokens
    return found


def assert_survives_aborts(server: RunningServer, reference: Reference, number: int) -> AbortReport:
    """Checks that a server survives requests that are mostly aborted, and then answers as plain SGLang did."""
    report = abort_storm(server, *reference, number)
    assert not report.first_difference
    assert report.cut_short and report.whole
    return report


def steps_of_ranks(folder: Path) -> tuple[list[str], list[str]]:
    """The forwards of both ranks that GPU_WAYS_STEPS records, read once the server is idle and both have recorded them."""
    last: tuple[list[str], list[str]] | None = None
    for _ in range(100):
        first, second = ((folder / f"rank-{rank}.txt").read_text().splitlines() for rank in range(2))
        if (first, second) == last and len(first) == len(second):
            break
        last = first, second
        time.sleep(0.2)
    return first, second
