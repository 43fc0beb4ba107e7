"""`agentspec bench store`: how fast replicas share, and how long a starting server takes.

Dataset: recorded calls and the Python source installed here (see micro/texts.py).
Metric: a figure a case, with its target if it has one; see the module of each.
Pattern: real stores, an SQLite file and a local redis-server; replicas are processes.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np

from agentspec.analysis.replay import Call, Tokenizer, load_tokenizer, read_trace
from agentspec.environment import describe
from agentspec.errors import ConfigError
from agentspec.evals.files import write_json
from agentspec.evals.micro.engine import parse_sizes
from agentspec.evals.micro.store.cpu import CPU_ROWS, cpu_rows
from agentspec.evals.micro.store.load import LOAD_ROWS, load_rows
from agentspec.evals.micro.store.ready import ready_rows
from agentspec.evals.micro.store.redis_server import redis_version
from agentspec.evals.micro.store.replica import KINDS
from agentspec.evals.micro.store.rows import Row
from agentspec.evals.micro.texts import Tokens, gather_texts
from agentspec.evals.options import Options

_PACKAGES = ("agentspec", "numpy", "redis", "zstandard")
# The outputs of the load are windows of a text with this many tokens.
_LOAD_TEXT_TOKENS = 2_000_000


@dataclass(kw_only=True)
class Bench:
    """The inputs of the cases, made when the first case needs them."""

    traces: Sequence[str] = ()
    tokenizer_path: Path | None = None
    seconds: float = 60.0
    """Of load."""
    size: str = "10m"
    """Tokens of a full store, as parse_sizes() reads them."""

    @cached_property
    def tokenizer(self) -> Tokenizer:
        return load_tokenizer(self.tokenizer_path)

    @cached_property
    def calls(self) -> dict[str, Sequence[Call]]:
        """The calls of each trace."""
        traces = [read_trace(argument, self.tokenizer) for argument in self.traces]
        return {trace.name: trace.calls for trace in traces}

    def outputs(self, num_tokens: int) -> list[Tokens]:
        """Finished outputs with `num_tokens` tokens in all."""
        calls = [call for some in self.calls.values() for call in some]
        texts = gather_texts(calls, self.tokenizer, output_tokens=num_tokens, num_requests=0, request_tokens=1)
        return texts.outputs

    def text(self) -> Tokens:
        """One long text to cut outputs from."""
        return np.concatenate(self.outputs(_LOAD_TEXT_TOKENS))


@dataclass(frozen=True, slots=True)
class Case:
    """The rows that one piece of work gives."""

    rows: tuple[str, ...]
    measure: Callable[[Bench, Path], Iterator[Row]]


def cases(size: str) -> list[Case]:
    """All cases in order. Those whose figures a busy machine distorts most come first."""
    found = []
    for kind in reversed(KINDS):
        suffix = "" if kind == "redis" else f"_{kind}"
        for names, rows in ((LOAD_ROWS, load_rows), (CPU_ROWS, cpu_rows)):
            found.append(Case(tuple(name + suffix for name in names), partial(_of_load, rows, kind)))
        found.append(Case((f"ready_{size}_{kind}_s", f"ready_{size}_{kind}_log_s"), partial(_of_start, kind)))
    return found


def _of_load(
    rows: Callable[[str, Tokens, float, Path], Iterator[Row]], kind: str, bench: Bench, folder: Path
) -> Iterator[Row]:
    return rows(kind, bench.text(), bench.seconds, folder)


def _of_start(kind: str, bench: Bench, folder: Path) -> Iterator[Row]:
    return ready_rows(kind, bench.size, bench.outputs(parse_sizes(bench.size)[bench.size]), folder)


def choose(found: Sequence[Case], names: Sequence[str]) -> list[Case]:
    """The cases with a row of one of the names or, if no row has the name, with a row whose name begins with it; all if
    no name is given.

    Raises:
        ConfigError: No row's name begins with a name.
    """
    rows = [row for case in found for row in case.rows]
    wanted: set[str] = set()
    for name in names:
        chosen = {name} if name in rows else {row for row in rows if row.startswith(name)}
        if not chosen:
            raise ConfigError(
                f"--case must be a row's name or its beginning, got {name!r}; the rows are {', '.join(rows)}"
            )
        wanted |= chosen
    return [case for case in found if not names or wanted & set(case.rows)]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options = Options(parser)
    case = "measure the row NAME, or all rows with this prefix, and rows of the same work (default: all)"
    options.choices("--case", (), case)
    options.number("--seconds", 60.0, "duration of the load")
    texts = "recorded calls to take texts from, as in agentspec replay (default: the Python source installed here)"
    options.add("--tokens", nargs="+", default=[], metavar="TRACE", help=texts)
    options.file("--tokenizer", "as in agentspec replay")
    options.text("--size", "10m", "tokens in the store that a starting server loads")
    options.file("--json", "write the figures to FILE, case by case")
    options.folder("--logs", "keep the logs of servers and stores in FOLDER")


def run(args: argparse.Namespace) -> int:
    """Runs the cases and prints a row for each figure; 1 if a target is missed.

    Raises:
        ConfigError: An argument is out of range, a file cannot be read, or there is no redis-server.
        ServerError, StoreError: A server or a store failed, so that there is nothing to show.
    """
    if not args.seconds > 0:
        raise ConfigError(f"--seconds must be above 0, got {args.seconds:g}")
    if len(parse_sizes(args.size)) != 1:
        raise ConfigError(f"--size must be one number of tokens, such as 10m, got {args.size!r}")
    chosen = choose(cases(args.size), args.case or [])
    bench = Bench(traces=args.tokens, tokenizer_path=args.tokenizer, seconds=args.seconds, size=args.size)
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="agentspec-bench-") as temporary:
        folder = args.logs or Path(temporary)
        for i, case in enumerate(chosen):
            for row in case.measure(bench, folder / f"{i:02d}-{case.rows[0]}"):
                if not rows:
                    print(f"{'case':<32}{'value':>12}  {'unit':<32}target")
                rows.append(row)
                print(_line(row), flush=True)
                write_json(args.json, {"head": _head(bench), "rows": [one.record() for one in rows]})
    return 1 if any(row.is_met is False for row in rows) else 0


def _line(row: Row) -> str:
    verdict = {True: "met", False: "MISSED", None: ""}[row.is_met]
    target = "" if row.target is None else f"<= {row.target:g} {verdict}"
    return f"{row.case:<32}{row.value:>12.4f}  {row.unit:<32}{target}".rstrip()


def _head(bench: Bench) -> dict[str, Any]:
    return {
        **describe(_PACKAGES),
        "redis_server": redis_version(),
        "tokenizer": bench.tokenizer.name,
        "texts": {name: len(calls) for name, calls in bench.calls.items()},
    }
