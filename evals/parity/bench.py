"""`agentspec bench parity`: whether servers answer as plain SGLang does, token by token.

Dataset: requests of every kind, mixed, to the small model; see requests.py.
Metric: answers and tokens compared, and how many answers differ; at temperature > 0, whether both distributions agree.
Pattern: plain SGLang answers every request once. Then each server answers the same requests, with 1 to 16 clients, as
fast as they can and with gaps. A server that drafted nothing proves nothing, which is an error.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from agentspec.environment import describe
from agentspec.errors import ConfigError
from agentspec.evals.files import work_folder, write_json
from agentspec.evals.options import Options, check_names
from agentspec.evals.parity.client import Answer, ask
from agentspec.evals.parity.random_options import draw_option_rounds
from agentspec.evals.parity.requests import Round, draw_rounds
from agentspec.evals.parity.rows import Compared, difference, is_right, row_of, table
from agentspec.evals.parity.servers import (
    PARITY_SYSTEMS,
    Variant,
    check_drafted,
    check_variant,
    drafted_tokens,
    num_retractions,
    parity_server,
)
from agentspec.evals.text_to_sql import MODEL_FOLDER
from agentspec.integrations.servers.server import RunningServer, Server
from agentspec.progress import Progress, say

DEFAULT_TOKENS = 100_000
_PACKAGES = ("agentspec", "sglang", "torch", "transformers")
_SCHEDULES = {"on": True, "off": False}
_REQUESTS = ("kinds", "options")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options = Options(parser)
    options.names(
        "--systems",
        ("suffix", "eagle3", "standalone"),
        f"systems to compare with plain SGLang, out of {','.join(PARITY_SYSTEMS)}",
    )
    options.names("--overlap", ("on", "off"), "overlap schedule: on, off")
    options.numbers("--tp", (1,), "numbers of tensor-parallel ranks")
    options.number("--tokens", DEFAULT_TOKENS, "compare at least N tokens of each server")
    requests = "kinds: requests of every kind; options: greedy requests with random sampling parameters (default kinds)"
    options.add("--requests", choices=_REQUESTS, default="kinds", help=requests)
    options.numbers("--seed", (0,), "seeds of the requests, one run after another")
    python = "interpreter of the environment with SGLang (default: this one)"
    options.add("--python", default=sys.executable, metavar="FILE", help=python)
    options.file("--json", "write the figures and the first differences to FILE")
    options.folder("--logs", "keep the servers' logs in FOLDER")
    parser.epilog = "Every other argument goes to the compared servers."


def run(args: argparse.Namespace) -> int:
    """Runs the bench and prints its table; 1 if anything differs.

    Raises:
        ConfigError: An argument is out of range.
        ServerError: A server failed, hung, drafted nothing, or does not run as it was asked to.
    """
    variants = list(_variants(args))
    asked = {"model": MODEL_FOLDER.name, "requests": args.requests, "tokens": args.tokens}
    facts = {**asked, **describe(_PACKAGES)}
    rows: list[dict[str, Any]] = []
    with work_folder(args.logs) as (_, logs):
        for seed in args.seed:
            # Where requests have penalties, plain SGLang's answers depend on the overlap schedule.
            for (ranks, overlap), group in itertools.groupby(
                variants, key=lambda variant: (variant.ranks, variant.overlap or args.requests == "kinds")
            ):
                plain = Variant(system="plain", ranks=ranks, overlap=overlap, python=args.python)
                rounds, expected = _reference(args, plain, logs, seed)
                for variant in group:
                    log = logs / f"{seed}-{variants.index(variant)}-{variant.system}.log"
                    with parity_server(variant, log) as server:
                        row = measure(server, variant, rounds, expected, seed)
                    if row["first_differences"]:
                        with parity_server(plain, logs / f"{seed}-again.log") as server:
                            row["upstream"] = mark_upstream(server, row["first_differences"], rounds, expected)
                    rows.append({"seed": seed, **row})
                    say(_line(rows[-1]))
                    write_json(args.json, {"rows": rows, **facts})
    print(table(rows))
    return 0 if all(is_right(row) for row in rows) else 1


def reference(
    server: RunningServer, tokens: int, seed: int, drawn: Iterator[Round] | None = None
) -> tuple[list[Round], list[list[Answer]]]:
    """Rounds whose answers by `server` have at least `tokens` tokens, and the answers, asked 16 at a time.

    Args:
        drawn: Endless rounds to take these from (default: those of every kind of request).

    Raises:
        ServerError: A request got no answer.
    """
    rounds: list[Round] = []
    answers: list[list[Answer]] = []
    total = 0
    with Progress("plain", tokens) as progress:
        for round_ in drawn or draw_rounds(seed):
            rounds.append(round_)
            answers.append(ask(server, Round(16, 0.0, round_.asks), seed))
            total += sum(len(choice.tokens) for answer in answers[-1] for choice in answer.choices)
            progress.update(total, "tokens")
            if total >= tokens:
                return rounds, answers
    raise AssertionError("rounds have no end")


def compare(
    server: RunningServer,
    rounds: Sequence[Round],
    expected: Sequence[Sequence[Answer]],
    seed: int,
    label: str = "",
    *,
    may_refuse: bool = False,
) -> Compared:
    """Asks a server the rounds and compares; raises ServerError if a request got no answer.

    Args:
        may_refuse: Whether the server may refuse requests that plain SGLang answers.
    """
    compared = Compared(may_refuse=may_refuse)
    total = sum(len(choice.tokens) for answers in expected for answer in answers for choice in answer.choices)
    with Progress(label, total) as progress:
        for number, (round_, theirs) in enumerate(zip(rounds, expected, strict=True)):
            compared.add(round_.asks, theirs, ask(server, round_, seed + number))
            progress.update(compared.tokens, f"tokens, {compared.num_differences} differences")
    return compared


def measure(
    server: Server,
    variant: Variant,
    rounds: Sequence[Round],
    expected: Sequence[Sequence[Answer]],
    seed: int,
) -> dict[str, Any]:
    """The row of a server; raises as compare() and the checks do."""
    check_variant(server, variant)
    # SGLang's own draft models need room at the end of the context and refuse prompts that leave none.
    may_refuse = not PARITY_SYSTEMS[variant.system].is_ours
    compared = compare(server, rounds, expected, seed, variant.label, may_refuse=may_refuse)
    row = {"server": variant.label, **row_of(compared)}
    row["drafted"], row["accepted"] = drafted_tokens(server, compared.accepted_tokens)
    row["rows_without_draft"] = (server.agentspec_state() or {}).get("rows_without_draft", {})
    row["retractions"] = num_retractions(server)
    check_drafted(server, variant, row["accepted"])
    return row


def mark_upstream(
    server: RunningServer,
    differences: Sequence[dict[str, Any]],
    rounds: Sequence[Round],
    expected: Sequence[Sequence[Answer]],
) -> int:
    """Finds differences that plain SGLang shows against itself: the same request in another batch gets another answer.
    Sets `is_upstream` of each difference, and returns for how many it is true.

    Each request is sent alone, and among the others of its round in the reverse order. Where one of both answers differs
    from the first one, what another server answered proves nothing.

    Args:
        server: Plain SGLang, started again.
        differences: As Compared keeps them.
        rounds: What was asked.
        expected: The answers of plain SGLang at first.

    Raises:
        ServerError: A request got no answer.
    """
    reverse: dict[int, list[Answer]] = {}
    for found in differences:
        number, place = found["round"], found["place"]
        round_, first = rounds[number], expected[number][place]
        if number not in reverse:
            backward = Round(round_.clients, round_.gap, round_.asks[::-1])
            reverse[number] = ask(server, backward, seed=number)[::-1]
        (alone,) = ask(server, Round(1, 0.0, (round_.asks[place],)), seed=number)
        again = (alone, reverse[number][place])
        found["is_upstream"] = any(bool(answer.note or difference(first, answer)) for answer in again)
    return sum(found["is_upstream"] for found in differences)


def _reference(
    args: argparse.Namespace, plain: Variant, logs: Path, seed: int
) -> tuple[list[Round], list[list[Answer]]]:
    rounds = draw_rounds(seed)
    if args.requests == "options":
        rounds = draw_option_rounds(seed, with_penalties=not plain.overlap)
    with parity_server(plain, logs / f"{seed}-{plain.label}-{plain.ranks}.log") as server:
        return reference(server, args.tokens, seed, rounds)


def _variants(args: argparse.Namespace) -> Iterator[Variant]:
    if args.tokens < 1 or min(args.tp) < 1:
        raise ConfigError(f"--tokens and --tp must be at least 1, got {args.tokens} and {args.tp}")
    check_names("--systems", args.systems, PARITY_SYSTEMS)
    check_names("--overlap", args.overlap, _SCHEDULES)
    for ranks, overlap, system in itertools.product(args.tp, args.overlap, args.systems):
        yield Variant(system=system, overlap=_SCHEDULES[overlap], ranks=ranks, arguments=args.rest, python=args.python)


def _line(row: dict[str, Any]) -> str:
    shown = f"{row['differences']} differences"
    if row.get("upstream"):
        shown += f", {row['upstream']} of them plain SGLang's own"
    return f"  {row['server']}, seed {row['seed']}: {row['tokens']:,} tokens, {shown}"
