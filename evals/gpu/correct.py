"""Whether outputs stay the same: the small trained model with and without agentspec, in float32.

    smoke      what runs on CUDA only, in a process of its own, while the servers start
    parity     greedy answers, token by token, asked one at a time and many at a time
    sampling   answers drawn at temperature 0.7, by Pearson's chi-square test of two rows of counts

Verification and plain decoding use different attention kernels, which add in a different order. In float32 this changes no
answer of a trained model. Triton multiplies float32 matrices in TF32 unless TRITON_F32_DEFAULT says `ieee`.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import islice
from typing import Any

from agentspec.errors import AgentspecError
from agentspec.evals.chi_square import p_value
from agentspec.evals.gpu.records import Record
from agentspec.evals.gpu.run import Run
from agentspec.evals.gpu.servers import START_SECONDS, WAITING, WAITS, device_arguments, plugin_variables
from agentspec.evals.parity.servers import CHANGING, UNITED
from agentspec.evals.sql_databases import link_prompts, render
from agentspec.evals.systems import SYSTEMS, System
from agentspec.evals.text_to_sql import MODEL_FOLDER
from agentspec.evals.workloads.open_chat import draw_open_prompts
from agentspec.integrations.servers.server import Server
from agentspec.progress import say

SIGNIFICANCE = 1e-4
"""Of the sampling test: one run in ten thousand may fail by chance."""
TEMPERATURE = 0.7
# Few widths, so that their graphs are captured soon.
_NARROW, _FEW = ("--speculative-num-draft-tokens", "16"), {"AGENTSPEC_WIDTHS": "1,4,16"}
_HYBRID = System(
    "agentspec + EAGLE-3", "AGENTSPEC", (*SYSTEMS["eagle3"].arguments[:2], *CHANGING, *_NARROW), {**UNITED, **_FEW}
)
_CHECKED = {
    "none": SYSTEMS["none"],
    "suffix": replace(SYSTEMS["agentspec"], arguments=_NARROW, variables=_FEW),
    "hybrid": _HYBRID,
    f"hybrid{WAITING}": replace(_HYBRID, variables={**_HYBRID.variables, **WAITS}),
}
_SAMPLED_TOKENS = 3
_PARITY_TOKENS = 64


def prompts(number: int, seed: int) -> list[str]:
    """Rendered prompts: half are agents' calls about held-out questions, half are open ones."""
    half = -(-number // 2)
    asked = link_prompts(half, seed)
    spoken = [render(list(messages)) for messages in islice(draw_open_prompts(seed=seed), half)]
    return [text for pair in zip(asked, spoken, strict=True) for text in pair][:number]


class CheckFailedError(AgentspecError):
    """What was checked is wrong; the records say what."""


def check_right(run: Run, limits: Mapping[str, float]) -> None:
    """The phases smoke, which has begun, parity and sampling, on the same servers. The caller notes the last one's end.

    Args:
        run: The run.
        limits: When each phase must have ended, by time.monotonic().

    Raises:
        CheckFailedError: Something is wrong; the records say what.
        OutOfTimeError: A deadline came first.
    """
    results = run.results
    run = run.until(limits["smoke"])
    with run.starting(_servers(run)) as wait:
        if not run.on_cpu:
            _smoke(run)
        started = dict(zip(_CHECKED, wait(run.deadline), strict=True))
        for system, server in started.items():
            said = {"error": server} if isinstance(server, str) else {"start_seconds": round(server.start_seconds, 1)}
            results.add({"part": "smoke", "check": "start", "system": system, **said})
        servers = {system: server for system, server in started.items() if isinstance(server, Server)}
        smoke = [r for r in results.records if r["part"] == "smoke"]
        if any("error" in r or not r.get("met", True) for r in smoke):
            raise CheckFailedError("something does not run; see the records and the logs")
        results.end()
        results.begin("parity")
        _check(run.until(limits["parity"]), servers, _compare_greedy)
        results.end()
        results.begin("sampling")
        _check(run.until(limits["sampling"]), servers, _compare_sampled)


def _smoke(run: Run) -> None:
    command = [sys.executable, "-P", "-m", "agentspec.evals.gpu.smoke"]
    with (run.logs / "smoke.log").open("wb") as log:
        done = subprocess.run(
            command, stdout=subprocess.PIPE, stderr=log, timeout=max(run.seconds_left(), 1.0), check=False
        )
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith(b"{")]
    for record in lines:
        run.results.add(record)
        say(f"  {record['check']}: {'met' if record['met'] else 'FAILED'}")
    if done.returncode and all(record["met"] for record in lines):
        run.results.add({"part": "smoke", "check": "process", "met": False, "error": f"exit status {done.returncode}"})


def _check(run: Run, servers: Mapping[str, Server], compare: Callable[..., list[Record]]) -> None:
    try:
        records = compare(run, servers)
    except OSError as error:
        tails = "\n".join(f"{name}: {server.log_tail()}" for name, server in servers.items())
        raise CheckFailedError(f"a server failed: {error}\n{tails}"[-6000:]) from error
    for record in records:
        run.results.add(record)
        say(f"  {record['part']} {record['system']}: {'met' if record['met'] else 'MISSED'}")
    if not all(record["met"] for record in records):
        raise CheckFailedError(f"{records[0]['part']} was missed; see the records and the logs")


def _compare_greedy(run: Run, servers: Mapping[str, Server]) -> list[Record]:
    """Greedy answers of all systems beside plain decoding's."""
    asked = prompts(8 if run.on_cpu else 24, seed=11)
    expected = _greedy(servers["none"], asked, 1)
    records = []
    for system, server in servers.items():
        run.check_time()
        answers = [*_greedy(server, asked, 1), *_greedy(server, asked, 16)]
        differing = [pair for pair in zip(answers, [*expected, *expected], strict=True) if pair[0] != pair[1]]
        drafted = _drafted(server, system)
        records.append(
            {
                "part": "parity",
                "dtype": "float32",
                "system": system,
                "backend": run.backend,
                "answers": len(answers),
                "tokens": sum(map(len, answers)),
                "differing": len(differing),
                "examples": differing[:2],
                **drafted,
                "met": not differing and drafted.get("draft_errors", 0) == 0 and drafted.get("accepted_tokens", 1) > 0,
            }
        )
    return records


def _compare_sampled(run: Run, servers: Mapping[str, Server]) -> list[Record]:
    """Answers drawn from all systems beside those drawn from plain decoding."""
    number = 60 if run.on_cpu else 512
    asked = prompts(2, seed=12)
    expected = [_drawn(servers["none"], text, number) for text in asked]
    records = []
    for system, server in servers.items():
        if system == "none":
            continue
        run.check_time()
        # Later draws are drafted from earlier ones.
        got = [_drawn(server, text, number) for text in asked]
        values = [p for p in map(p_value, got, expected) if p is not None]
        records.append(
            {
                "part": "sampling",
                "system": system,
                "backend": run.backend,
                "temperature": TEMPERATURE,
                "draws": number * len(asked),
                "p_values": values,
                # The least p-value is no smaller than chance explains.
                "met": bool(values) and min(values) > SIGNIFICANCE / len(values),
                **_drafted(server, system),
            }
        )
    return records


def _servers(run: Run) -> list[Server]:
    return [
        Server(
            MODEL_FOLDER,
            system.algorithm,
            log=run.logs / f"right-{label}.log",
            arguments=[
                *("--context-length", "640", "--max-running-requests", "16", "--max-total-tokens", "16384"),
                *("--skip-server-warmup", "--grammar-backend", "none", "--dtype", "float32"),
                "--disable-prefill-cuda-graph",
                *system.arguments,
                *device_arguments(run.backend, 16),
            ],
            environment={
                **system.variables,
                "TRITON_F32_DEFAULT": "ieee",
                # Kernels compiled for exact float32 are kept apart: Triton does not tell them from others.
                "TRITON_CACHE_DIR": str(run.data.parent / "triton-ieee"),
                **plugin_variables(run.logs),
            },
            start_seconds=START_SECONDS[run.backend],
        )
        for label, system in _CHECKED.items()
    ]


def _greedy(server: Server, texts: Sequence[str], clients: int) -> list[list[int]]:
    bodies = [{"text": text, "sampling_params": {"temperature": 0, "max_new_tokens": _PARITY_TOKENS}} for text in texts]
    with ThreadPoolExecutor(clients) as pool:
        return list(pool.map(lambda body: server.post("/generate", body)["output_ids"], bodies))


def _drafted(server: Server, system: str) -> Record:
    """Counters that show that something was drafted; otherwise nothing was checked."""
    if system == "none":
        return {}
    state = server.agentspec_state() or {}
    counters: dict[str, Any] = state.get("counters", {})
    return {
        **{name: counters.get(name) for name in ("drafted_tokens", "accepted_tokens", "draft_errors")},
        "stream_order": state.get("stream_order") is not None,
    }


def _drawn(server: Server, text: str, number: int) -> Counter[tuple[int, ...]]:
    sampling = {"temperature": TEMPERATURE, "n": number, "max_new_tokens": _SAMPLED_TOKENS, "ignore_eos": True}
    replies = server.post("/generate", {"text": text, "sampling_params": sampling})
    return Counter(tuple(reply["output_ids"]) for reply in replies)
