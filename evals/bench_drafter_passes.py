"""`agentspec bench drafter-passes`: what a model drafter's draft takes on a CPU, in native code beside plain torch.

Dataset: weights drawn at random, of the shapes of the shipped drafters; texts of 220 tokens in a cache.
Metric: microseconds for a draft (trees of up to 15 nodes, two branches, 8 tokens deep) and for reading the last 6 tokens
of each text, what a drafter does behind a step, on one thread and on several.
Pattern: both ways in turns, medians; what they compute is compared before it is timed.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from types import SimpleNamespace
from typing import Any

from agentspec.errors import AgentspecError, ConfigError
from agentspec.evals.environment import describe
from agentspec.integrations.sglang_cpu import environment

_SHAPES: dict[str, dict[str, Any]] = {
    "eagle3": {"hidden": 256, "mlp": 512, "heads": 4, "kv_heads": 2, "outputs": 640, "is_head": True},
    "standalone": {"hidden": 128, "mlp": 352, "heads": 2, "kv_heads": 1, "layers": 2, "is_head": False},
}
_VOCABULARY, _SLOTS, _TEXT, _READ, _TOPK = 1536, 4096, 220, 6, 2
_CALLS = 5
"""Timed together."""


def _numbers(text: str) -> list[int]:
    return [int(word) for word in text.split(",")]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--rows",
        type=_numbers,
        default=[1, 2, 4, 8],
        metavar="LIST",
        help="texts drafted for at once (default 1,2,4,8)",
    )
    parser.add_argument(
        "--threads",
        type=_numbers,
        metavar="LIST",
        help="threads that either way may use (default: 1, and as many as torch uses here)",
    )
    parser.add_argument("--repeats", type=int, default=25, help="times that each is measured (default %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the weights and texts (default %(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures to FILE")


def run(args: argparse.Namespace, rest: Sequence[str]) -> int:
    """Runs the bench and prints a line for each drafter, number of rows and kind of work.

    Raises:
        ConfigError: an argument is out of range or unknown.
        AgentspecError: the two ways do not compute the same.
    """
    if rest:
        raise ConfigError(f"unknown arguments {' '.join(rest)}; see agentspec bench drafter-passes --help")
    if args.repeats < 1 or not args.rows or not 1 <= min(args.rows) <= max(args.rows) <= _SLOTS // _TEXT:
        raise ConfigError(
            f"--repeats must be at least 1 and --rows from 1 to {_SLOTS // _TEXT}, got {args.repeats} and {args.rows}"
        )
    if args.threads is not None and (not args.threads or min(args.threads) < 1):
        raise ConfigError(f"--threads must be at least 1, got {args.threads}")
    # Read when torch is imported: its threads are not to wait as they do by default, which takes the others' time.
    os.environ.update({name: value for name, value in environment().items() if "OMP_" in name})
    import torch

    from agentspec.integrations.sglang_cpu.threads import limit_threads, most_threads

    torch.manual_seed(args.seed)
    most = most_threads()
    found = []
    try:
        for threads in args.threads or sorted({1, most}):
            limit_threads(threads)
            found += _rows(args.rows, threads, args.repeats)
    finally:
        limit_threads(most)
    if args.json:
        context = {**describe(("agentspec", "torch")), "repeats": args.repeats, "seed": args.seed}
        args.json.write_text(json.dumps({"rows": found, **context}, indent=1) + "\n", encoding="utf-8")
    return 0


def _rows(numbers: Sequence[int], threads: int, repeats: int) -> list[dict[str, Any]]:
    """Figures of both drafters, each printed as it is found."""
    found = []
    for drafter, shape in _SHAPES.items():
        for rows in numbers:
            for work, ways in _works(shape, rows).items():
                plain, native = _timed(ways, repeats)
                what = {"drafter": drafter, "rows": rows, "work": work, "threads": threads}
                found.append({**what, "torch_us": plain, "native_us": native})
                print(
                    f"{drafter}, {rows} rows, {threads} threads, {work}: torch {plain:.0f} us, native {native:.0f} us, "
                    f"{plain / native:.1f}x"
                )
    return found


def _works(shape: dict[str, Any], rows: int) -> dict[str, list[Callable[[], Any]]]:
    """Of each kind of work how torch and native code do it, once they were found to do the same."""
    import torch

    from agentspec.integrations.sglang.native_drafting import NativeDrafting
    from agentspec.integrations.sglang.plain_drafting import PlainDrafting
    from agentspec.integrations.sglang_cpu.drafter.model import native_llama

    worker = _worker(shape)
    plain = PlainDrafting(worker)
    model = native_llama(worker.draft_runner.model, plain.keys, plain.values)
    assert model is not None
    ways: list[PlainDrafting | NativeDrafting] = [plain, NativeDrafting(worker, model)]
    slots = torch.randperm(_SLOTS, dtype=torch.int32)[: rows * _TEXT].view(rows, _TEXT).unbind()
    missing = torch.cat([row[-_READ:] for row in slots]).long()
    tokens = torch.randint(0, _VOCABULARY, (rows, _READ)).tolist()
    states = torch.randn(rows * _READ, 3 * shape["hidden"]) if shape["is_head"] else None

    def read(way: PlainDrafting | NativeDrafting) -> Any:
        return way.read(slots, missing, [_TEXT - _READ] * rows, tokens, states)

    logits, hidden = read(ways[0])
    _same("reading", [logits], [read(ways[1])[0]])
    likeliest = torch.softmax(logits, -1).topk(_TOPK, dim=-1)

    def draft(way: PlainDrafting | NativeDrafting) -> Any:
        return way.draft(slots, likeliest.values, likeliest.indices, hidden if shape["is_head"] else None)

    drafts = [draft(way) for way in ways]
    _same("drafting", *[[each.tokens, each.estimates] for each in drafts])
    return {
        f"reading {_READ} tokens": [lambda way=way: read(way) for way in ways],  # type: ignore[misc]
        "drafting": [lambda way=way: draft(way) for way in ways],  # type: ignore[misc]
    }


def _worker(shape: dict[str, Any]) -> Any:
    """What drafting needs of SGLang's draft worker."""
    import torch

    from agentspec.evals.drawn_llama import drawn_llama
    from agentspec.integrations.sglang.draft_stop import DraftStop

    caches = [
        [
            torch.randn(_SLOTS, shape["kv_heads"], shape["hidden"] // shape["heads"])
            for _ in range(shape.get("layers", 1))
        ]
        for _ in range(2)
    ]
    pool = SimpleNamespace(start_layer=0, get_key_buffer=caches[0].__getitem__, get_value_buffer=caches[1].__getitem__)
    model = drawn_llama(vocabulary=_VOCABULARY, positions=2 * _TEXT, **shape)
    return SimpleNamespace(
        draft_runner=SimpleNamespace(model=model, token_to_kv_pool=pool),
        speculative_num_steps=8,
        hot_token_id=None,
        acceptance=None,
        stop=DraftStop(),
        max_nodes=15,
    )


def _same(what: str, one: Sequence[Any], other: Sequence[Any]) -> None:
    import torch

    for mine, theirs in zip(one, other, strict=True):
        if not torch.allclose(torch.as_tensor(mine).float(), torch.as_tensor(theirs).float(), rtol=1e-3, atol=1e-4):
            raise AgentspecError(f"{what} in native code gives other results than in torch, so that times mean nothing")


def _timed(ways: Sequence[Callable[[], Any]], repeats: int) -> list[float]:
    """Microseconds of a call of each."""
    seconds: list[list[float]] = [[] for _ in ways]
    for _ in range(repeats):
        for way, taken in zip(ways, seconds, strict=True):
            started = time.perf_counter()
            for _ in range(_CALLS):
                way()
            taken.append((time.perf_counter() - started) / _CALLS)
    return [median(taken) * 1e6 for taken in seconds]
