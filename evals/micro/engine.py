"""`agentspec bench engine`: the engine's time and memory beside its peers', on real tokens, in one run.

Dataset: recorded calls and the Python source installed here (see texts.py).
Metric: see engine_cases.py; a ratio above 1 is in our favour.
Pattern: all sides get the same texts and requests and take turns.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from typing import Any

from agentspec.analysis.replay import Call, load_tokenizer, read_trace
from agentspec.environment import describe
from agentspec.errors import ConfigError
from agentspec.evals.files import write_json
from agentspec.evals.micro.engine_cases import (
    ACCEPTED,
    BATCHES,
    MAX_DRAFT_TOKENS,
    STEPS,
    GlobalIndexes,
    Row,
    draft_rows,
    insert_rows,
    memory_rows,
)
from agentspec.evals.micro.engine_sides import PEERS, Ours, engine
from agentspec.evals.micro.texts import Texts, gather_texts
from agentspec.evals.options import Options
from agentspec.progress import Progress

_UNITS = {"k": 1000, "m": 1_000_000}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options = Options(parser)
    options.choices("--peer", list(PEERS), "compare with this peer (default: all)")
    sizes = "sizes of the global index in tokens, ascending; with 10m the peers take minutes and up to 8 GB"
    options.text("--sizes", "100k,1m", sizes)
    options.add("--tokens", nargs="+", default=[], metavar="TRACE", help="recorded calls to take texts from")
    options.file("--tokenizer", "as in agentspec replay")
    options.file("--json", "write the figures to FILE")


def run(args: argparse.Namespace) -> int:
    """Runs all cases and prints a row for each.

    Raises:
        ConfigError: An argument is out of range, a file cannot be read, or a peer is not installed.
        UnsupportedError: Memory cannot be counted here.
    """
    sizes = parse_sizes(args.sizes)
    tokenizer = load_tokenizer(args.tokenizer)
    calls: list[Call] = [call for path in args.tokens for call in read_trace(path, tokenizer).calls]
    texts = gather_texts(
        calls,
        tokenizer,
        output_tokens=max(sizes.values()),
        num_requests=max(BATCHES),
        request_tokens=1 + STEPS * ACCEPTED,
    )
    rows: list[dict[str, Any]] = []
    for row in measure(texts, sizes, args.peer or list(PEERS)):
        if not rows:
            print(f"{'case':<24}{'size':<14}{'peer':<12}{'ours':>12}{'theirs':>12}{'ratio':>9}  unit")
        record = row.record()
        rows.append(record)
        print(
            f"{record['case']:<24}{record['size']:<14}{record['peer']:<12}"
            f"{record['ours']:>12.3f}{record['theirs']:>12.3f}{record['ratio'] or 0:>8.2f}x  {record['unit']}",
            flush=True,
        )
    head = describe(("agentspec", "arctic-inference", "sglang", "numpy"))
    head |= {"tokenizer": tokenizer.name, "max_draft_tokens": MAX_DRAFT_TOKENS}
    write_json(args.json, {"head": head, "rows": rows})
    return 0


def parse_sizes(text: str) -> dict[str, int]:
    """`100k,1m` -> {"100k": 100000, "1m": 1000000}; raises ConfigError unless they ascend."""
    sizes: dict[str, int] = {}
    for word in text.lower().split(","):
        digits = word.rstrip("km")
        unit = _UNITS.get(word[len(digits) :], 1 if word == digits else 0)
        size = int(digits) * unit if digits.isdecimal() else 0
        if size < 1000 or size <= max(sizes.values(), default=0):
            raise ConfigError(f"--sizes must be ascending numbers from 1k, such as 100k,1m, got {text!r}")
        sizes[word] = size
    return sizes


def measure(texts: Texts, sizes: dict[str, int], peers: Sequence[str]) -> Iterator[Row]:
    """All cases, with sizes in ascending order; an index grows from one size to the next.

    Raises:
        ConfigError: A peer is not installed.
    """
    others = {name: make(MAX_DRAFT_TOKENS) for peer in peers for name, make in PEERS[peer].items()}
    indexes = GlobalIndexes({"ours": Ours(engine(MAX_DRAFT_TOKENS)), **others}, texts.outputs)
    for label, size in sizes.items():
        with Progress(f"building {label}", size) as progress:
            inserts = indexes.grow(size, progress.update)
        yield from insert_rows(inserts, label)
        yield from memory_rows(indexes, label)
        yield from draft_rows(indexes.sides, texts.requests, label)
