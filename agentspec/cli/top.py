"""`agentspec top`: shows what a running server drafts, verifies and keeps."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator
from typing import Any

from agentspec.cli.options import add_server_options, client, option, switch
from agentspec.errors import ConfigError, ServerError
from agentspec.observe.client import ServerClient, ServerState
from agentspec.observe.counts import change
from agentspec.observe.summary import Summary, summarise
from agentspec.observe.view import plain, sections, title


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("url", metavar="URL", help="the server, such as http://localhost:30000")
    option(parser, "--interval S", "seconds between two readings (default 2)", type=float, default=2.0)
    switch(parser, "--once", "print one reading as plain text: the counts since the server's start")
    switch(parser, "--json", "print one reading as JSON")
    add_server_options(parser)
    parser.epilog = (
        "Rates are differences of two readings, so the first screen counts from the server's start. The live view needs "
        "the package rich (`pip install 'sglang-agentspec[top]'`). Exit status: 0, 2 for an error."
    )


def run(args: argparse.Namespace) -> int:
    """Shows a server once, or until the user interrupts. Raises ConfigError if an argument is wrong, or rich is
    missing, and ServerError if nothing answers at first, it is not an SGLang server, or agentspec is not active in
    it."""
    if not args.interval > 0:
        raise ConfigError(f"--interval must be > 0 seconds, got {args.interval}")
    asked = client(args.url, args)
    if args.json or args.once:
        state = asked.state()
        summaries = _summaries(state, None)
        if args.json:
            print(json.dumps({"url": state.url, "ranks": summaries}, default=vars))
        else:
            print("\n\n".join(plain(rank, len(summaries), of) for rank, of in enumerate(summaries)))
        return 0
    try:
        _show_live(asked, args.interval)
    except KeyboardInterrupt:
        pass
    return 0


def _summaries(state: ServerState, earlier: ServerState | None) -> list[Summary]:
    """The counts of each rank since the earlier reading, or since its start."""
    blocks = state.blocks()
    before: list[dict[str, Any] | None] = [None] * len(blocks)
    seconds = 0.0
    if earlier is not None and len(earlier.ranks) == len(blocks):
        before, seconds = earlier.ranks, state.time - earlier.time
    return [summarise(now, change(now, then, seconds)) for now, then in zip(blocks, before, strict=True)]


def _readings(asked: ServerClient, interval: float) -> Iterator[list[Summary] | ServerError]:
    """A reading per interval, or an error while the server does not answer, for example during a restart."""
    earlier = asked.state()
    yield _summaries(earlier, None)
    while True:
        time.sleep(interval)
        try:
            state = asked.state()
            yield _summaries(state, earlier)
            earlier = state
        except ServerError as error:
            yield error


def _show_live(asked: ServerClient, interval: float) -> None:
    try:
        from rich.console import Console, Group, RenderableType
        from rich.live import Live
        from rich.panel import Panel
        from rich.table import Table
        from rich.text import Text
    except ImportError:
        raise ConfigError(
            "the live view needs the package rich, which is not installed; `pip install 'sglang-agentspec[top]'`, or pass --once"
        ) from None

    def panel(rank: int, num_ranks: int, of: Summary) -> RenderableType:
        table = Table.grid(padding=(0, 2))
        for name, pairs in sections(of):
            for at, (label, value) in enumerate(pairs):
                table.add_row(Text("" if at else name, style="bold"), Text(label, style="dim"), Text(value))
        return Panel(table, title=Text(title(rank, num_ranks, of)), title_align="left")

    console = Console()
    if not console.is_terminal:
        print("this is no terminal: a reading is printed each interval", file=sys.stderr)
        for reading in _readings(asked, interval):
            shown = [str(reading)] if isinstance(reading, ServerError) else _texts(reading)
            print("\n\n".join(shown), end="\n\n", flush=True)
        return
    # The first reading comes before the screen is taken over, so that an error is visible.
    readings = _readings(asked, interval)
    latest: list[RenderableType] = []
    reading = next(readings)
    with Live(console=console, screen=True, auto_refresh=False) as live:
        while True:
            if isinstance(reading, ServerError):
                live.update(Group(*latest, Text(str(reading), style="bold red")), refresh=True)
            else:
                latest = [panel(rank, len(reading), of) for rank, of in enumerate(reading)]
                live.update(Group(*latest), refresh=True)
            reading = next(readings)


def _texts(summaries: list[Summary]) -> list[str]:
    return [plain(rank, len(summaries), of) for rank, of in enumerate(summaries)]
