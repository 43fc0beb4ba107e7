"""`agentspec bench look-ahead`: how often a draft that was prepared during a verification could be used after it.

Dataset: recorded sessions of agents, as for `agentspec replay`.
Metric: hit rate, the share of steps after which the text is one that was foreseen; an upper bound.
Pattern: teacher-forced replay, one request at a time. A step verifies a draft as a server's. Meanwhile the tree grows on
by the likeliest nodes. Each of these is a text for which a draft could be made in advance: what is accepted, and the
bonus token after it. So a step is a hit if the larger tree holds the bonus token after the accepted path. A look-ahead
has to make as many drafts in each step as the tree has grown by.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

from agentspec.analysis.replay import Call, accepted_nodes, load_tokenizer, read_trace
from agentspec.analysis.replay.engine_system import as_draft
from agentspec.config import EngineConfig
from agentspec.engine import Engine
from agentspec.environment import describe
from agentspec.errors import ConfigError
from agentspec.evals.files import write_json
from agentspec.evals.options import Options
from agentspec.progress import Progress

_ID = "replay"
_LEAST_PROB = 2e-4
"""Of the larger tree's nodes."""


@dataclass(frozen=True, slots=True)
class Foresight:
    """How often the larger tree held the text after a step."""

    trace: str
    max_draft_tokens: int
    ahead: int
    steps: int
    accepted_per_step: float
    hit_rate: float


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options = Options(parser)
    options.add("traces", nargs="+", metavar="TRACE", help="PATH, or PATH@START:STOP for a slice of sessions")
    options.numbers("--max-draft-tokens", (15, 63), "greatest numbers of drafted tokens a step")
    options.numbers("--ahead", (64, 256), "numbers of texts that are foreseen in each step")
    options.file("--tokenizer", "tokenizer as for `agentspec replay`")
    options.file("--json", "write the figures to FILE")


def run(args: argparse.Namespace) -> int:
    """Replays each trace with each width and look-ahead, and prints a row for each.

    Raises:
        ConfigError: A number is below 1, or a file cannot be read.
    """
    for name in ("max_draft_tokens", "ahead"):
        if min(getattr(args, name)) < 1:
            raise ConfigError(f"--{name.replace('_', '-')} must be at least 1, got {min(getattr(args, name))}")
    tokenizer = load_tokenizer(args.tokenizer)
    rows = []
    print(f"{'set':28} {'N':>4} {'ahead':>6} {'steps':>8} {'accepted':>9} {'hit rate':>9}")
    for argument in args.traces:
        trace = read_trace(argument, tokenizer)
        for width in args.max_draft_tokens:
            for ahead in args.ahead:
                row = foresight(trace.name, trace.calls, width, ahead)
                rows.append(row)
                print(
                    f"{row.trace:28} {width:4} {ahead:6} {row.steps:8} {row.accepted_per_step:9.2f} {row.hit_rate:9.3f}",
                    flush=True,
                )
    if args.json:
        head = {**describe(("agentspec", "numpy")), "tokenizer": tokenizer.name}
        write_json(args.json, {"head": head, "rows": [asdict(row) for row in rows]})
    return 0


def foresight(name: str, calls: Sequence[Call], max_draft_tokens: int, ahead: int) -> Foresight:
    """Replays the calls with a server's drafts, and beside them with trees of `ahead` more nodes."""
    served = EngineConfig.served(max_draft_tokens)
    small, large = (
        Engine(config)
        for config in (served, replace(served, max_draft_tokens=max_draft_tokens + ahead, min_token_prob=_LEAST_PROB))
    )
    steps = accepted = hits = 0
    with Progress(f"{name} N={max_draft_tokens} ahead={ahead}", len(calls)) as progress:
        for number, call in enumerate(calls, 1):
            truth = call.output.tolist()
            for engine in (small, large):
                engine.open(_ID, call.prompt)
                engine.extend(_ID, call.output[:1])
            done = 1
            while done < len(truth):
                verified, foreseen = (as_draft(engine.draft([_ID]).row(0)) for engine in (small, large))
                length = len(accepted_nodes(verified, truth[done:-1]))
                hits += len(accepted_nodes(foreseen, truth[done:])) > length
                steps += 1
                accepted += length
                for engine in (small, large):
                    engine.extend(_ID, call.output[done : done + length + 1])
                done += length + 1
            for engine in (small, large):
                engine.close(_ID)
            progress.update(number, "calls")
    return Foresight(name, max_draft_tokens, ahead, steps, accepted / max(steps, 1), hits / max(steps, 1))
