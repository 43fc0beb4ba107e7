"""Whether outputs stay the same: the small trained model with and without agentspec.

    parity     greedy answers, token by token, in SGLang's batch-invariant mode, in float32 and in bfloat16
    sampling   answers drawn at temperature 0.7, by Pearson's chi-square test of two rows of counts

Verification and plain decoding use different attention kernels, which add in a different order. Batch-invariant mode
makes each of them independent of the batch, but does not make both equal. In float32 this changes no answer of a
trained model. For bfloat16 the number of changed answers is reported without a goal.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import Any

from agentspec.evals.chi_square import p_value
from agentspec.evals.gpu.servers import CPU_BACKEND, device_arguments
from agentspec.evals.gpu.trip import Record, Trip
from agentspec.evals.parity.servers import CHANGING, UNITED
from agentspec.evals.research.tiny_sql.open_chat import draw_open_prompts
from agentspec.evals.research.tiny_sql.tokenizer import render
from agentspec.evals.sql_databases import link_prompts
from agentspec.evals.systems import SYSTEMS, System
from agentspec.evals.text_to_sql import MODEL_FOLDER
from agentspec.integrations.servers.server import Server
from agentspec.progress import say

SIGNIFICANCE = 1e-4
"""Of the sampling test: one run in ten thousand may fail by chance."""
TEMPERATURE = 0.7
_CHECKED = {
    "none": SYSTEMS["none"],
    "suffix": SYSTEMS["agentspec"],
    "hybrid": System("agentspec + EAGLE-3", "AGENTSPEC", (*SYSTEMS["eagle3"].arguments[:2], *CHANGING), UNITED),
}
_SAMPLED_TOKENS = 3
_PARITY_TOKENS = 64


def prompts(number: int, seed: int) -> list[str]:
    """Rendered prompts: half are agents' calls about held-out questions, half are open ones."""
    half = -(-number // 2)
    asked = link_prompts(half, seed)
    spoken = [render(list(messages)) for messages in islice(draw_open_prompts(split="heldout", seed=seed), half)]
    return [text for pair in zip(asked, spoken, strict=True) for text in pair][:number]


def check_parity(trip: Trip, on_record: Callable[[Record], object]) -> None:
    """Greedy answers of all systems beside plain decoding's, asked one at a time and many at a time."""
    number = 8 if trip.quick or trip.on_cpu else 64
    asked = prompts(number, seed=11)
    for dtype in ("float32",) if trip.on_cpu else ("float32", "bfloat16"):
        words = ["--dtype", dtype, *([] if trip.on_cpu else ["--enable-deterministic-inference"])]
        with trip.started(_servers(trip, f"parity-{dtype}", words)) as found:
            plain = found[0]
            if isinstance(plain, str):
                on_record({"part": "parity", "dtype": dtype, "system": "none", "error": plain})
                continue
            expected = _greedy(plain, asked, 1)
            for system, server in zip(_CHECKED, found, strict=True):
                record: Record = {"part": "parity", "dtype": dtype, "system": system, "backend": _backend(trip)}
                if isinstance(server, str):
                    on_record({**record, "error": server})
                    continue
                try:
                    on_record({**record, **_compared(server, asked, expected, system)})
                except OSError as error:
                    on_record({**record, "error": str(error)[:600]})


def check_sampling(trip: Trip, on_record: Callable[[Record], object]) -> None:
    """Answers drawn from all systems beside those drawn from plain decoding."""
    number = 60 if trip.quick or trip.on_cpu else 1000
    asked = prompts(2 if trip.quick or trip.on_cpu else 6, seed=12)
    with trip.started(_servers(trip, "sampling", ["--dtype", "float32"])) as found:
        plain = found[0]
        if isinstance(plain, str):
            on_record({"part": "sampling", "system": "none", "error": plain})
            return
        expected = [_drawn(plain, text, number) for text in asked]
        for system, server in zip(_CHECKED, found, strict=True):
            record: Record = {
                "part": "sampling",
                "system": system,
                "backend": _backend(trip),
                "temperature": TEMPERATURE,
                "draws": number * len(asked),
            }
            if isinstance(server, str):
                on_record({**record, "error": server})
                continue
            try:
                # Later draws are drafted from earlier ones.
                got = [_drawn(server, text, number) for text in asked]
                values = [p for p in map(p_value, got, expected) if p is not None]
                on_record({**record, "p_values": values, "met": _is_met(values), **_drafted(server, system)})
            except OSError as error:
                on_record({**record, "error": str(error)[:600]})


def _is_met(values: Sequence[float]) -> bool:
    """Whether the least p-value is no smaller than chance explains."""
    return bool(values) and min(values) > SIGNIFICANCE / len(values)


def _servers(trip: Trip, name: str, words: Sequence[str]) -> list[Server]:
    return [
        Server(
            MODEL_FOLDER,
            system.algorithm,
            log=trip.logs / f"{name}-{label}.log",
            arguments=[
                *("--context-length", "640", "--max-running-requests", "64", "--max-total-tokens", "32768"),
                *("--skip-server-warmup", "--grammar-backend", "none", *words, *system.arguments),
                *device_arguments(_backend(trip), 64),
            ],
            environment=system.variables,
            start_seconds=420.0,
        )
        for label, system in _CHECKED.items()
    ]


def _backend(trip: Trip) -> str:
    return CPU_BACKEND if trip.on_cpu else "triton"


def _greedy(server: Server, texts: Sequence[str], clients: int) -> list[list[int]]:
    bodies = [{"text": text, "sampling_params": {"temperature": 0, "max_new_tokens": _PARITY_TOKENS}} for text in texts]
    with ThreadPoolExecutor(clients) as pool:
        return list(pool.map(lambda body: server.post("/generate", body)["output_ids"], bodies))


def _compared(server: Server, texts: Sequence[str], expected: Sequence[list[int]], system: str) -> Record:
    """One at a time, then many at a time, when there is much to draft from."""
    answers = [*_greedy(server, texts, 1), *_greedy(server, texts, 16)]
    wanted = [*expected, *expected]
    differing = [pair for pair in zip(answers, wanted, strict=True) if pair[0] != pair[1]]
    return {
        "answers": len(answers),
        "tokens": sum(map(len, answers)),
        "differing": len(differing),
        "identical": not differing,
        **_drafted(server, system),
    }


def _drafted(server: Server, system: str) -> Record:
    """Counters that show that something was drafted; otherwise nothing was checked."""
    if system == "none":
        return {}
    counters: dict[str, Any] = (server.agentspec_state() or {}).get("counters", {})
    return {name: counters.get(name) for name in ("drafted_tokens", "accepted_tokens", "draft_errors")}


def _drawn(server: Server, text: str, number: int) -> Counter[tuple[int, ...]]:
    sampling = {"temperature": TEMPERATURE, "n": number, "max_new_tokens": _SAMPLED_TOKENS, "ignore_eos": True}
    try:
        replies = server.post("/generate", {"text": text, "sampling_params": sampling})
    finally:
        say(f"  {number} answers drawn")
    return Counter(tuple(reply["output_ids"]) for reply in replies)
