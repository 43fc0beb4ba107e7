"""`agentspec demo`: plain SGLang, SGLang's NGRAM and agentspec on the same text-to-SQL work.

Dataset: held-out questions of the text-to-SQL workflow; each runs through its chain of agents over the OpenAI API.
Metric: wall seconds, tokens a second, accept length, verified rows; outputs are compared call by call.
Pattern: each system has a new server. All servers stay alive and are asked in turns, a few questions each. In the cold
pass nothing is learnt yet. The warm pass asks other questions of the same databases, so that no request repeats.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentspec.environment import describe
from agentspec.errors import ConfigError, ServerError
from agentspec.evals.files import work_folder, write_json
from agentspec.evals.options import Options
from agentspec.evals.run.demo_passes import (
    DEMONSTRATED,
    PASSES,
    PassResult,
    ask,
    check_active,
    draw_passes,
    measure,
    output_of,
)
from agentspec.evals.run.turns import ask_in_turns
from agentspec.evals.sql_databases import databases_in
from agentspec.evals.text_to_sql import MODEL_FOLDER
from agentspec.integrations.servers.server import Server
from agentspec.progress import say, waiting
from agentspec.workflows.text_to_sql import Answer, Database, Question

SHOWN = ("none", "ngram", "agentspec", "hybrid")
# Questions in a turn for each one in flight. Fewer are in flight at the end of a turn, which should be a small part of it.
_QUESTIONS_OF_TURN = 4


@dataclass(frozen=True, slots=True)
class Turn:
    """The answers of one server before the next server has its turn."""

    pass_name: str
    seconds: float
    answers: list[Answer]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options = Options(parser)
    options.folder("--model", "model to serve (default: the shipped tiny-sql)", MODEL_FOLDER)
    system = (
        "system to compare with plain SGLang (default: ngram, agentspec and, with the shipped model, hybrid: agentspec "
    )
    options.choices("--system", [n for n in DEMONSTRATED if n != "none"], f"{system}with an EAGLE-3 head)")
    options.number("--questions", 24, "questions in each pass")
    options.number("--concurrency", 2, "questions in flight")
    options.number("--seed", 0, "seed of the questions")
    options.file("--json", "write the figures to FILE")
    options.folder("--logs", "keep the servers' logs in FOLDER")


def run(args: argparse.Namespace, rest: Sequence[str]) -> int:
    """Runs the demo; 1 if outputs differ.

    Raises:
        ConfigError: An argument is out of range or unknown, or the model is missing.
        ServerError: A server did not start, a call failed, or agentspec drafted nothing.
    """
    if rest:
        raise ConfigError(f"unknown arguments {' '.join(rest)}; see agentspec demo --help")
    if args.questions < 1 or args.concurrency < 1:
        raise ConfigError(
            f"--questions and --concurrency must be at least 1, got {args.questions} and {args.concurrency}"
        )
    names = ("none", *dict.fromkeys(args.system)) if args.system else _shown(args.model)
    with work_folder(args.logs) as (folder, logs):
        databases = databases_in(folder)
        works = draw_passes(databases, args.questions, args.seed)
        turns, errors = ask_in_turns(
            names, lambda stack, name: _turns(stack, name, args, works, databases, logs), _say_done
        )
    if errors:
        raise ServerError("; ".join(f"{DEMONSTRATED[name].label}: {error}" for name, error in errors.items()))
    results = [(pass_name, _measured(name, turns[name], pass_name)) for name in names for pass_name in PASSES]
    outputs = {name: [(t.pass_name, output_of(answer)) for t in turns[name] for answer in t.answers] for name in names}
    differing = [name for name in names if outputs[name] != outputs["none"]]
    print("\n" + table(results, identical=not differing))
    systems = [result.record(pass_name) for pass_name, result in results]
    write_json(args.json, {"systems": systems, "identical": not differing, **context(args)}, indent=2)
    if differing:
        print(f"outputs of {', '.join(differing)} differ from plain SGLang's", file=sys.stderr)
    return 1 if differing else 0


def _shown(model: Path) -> tuple[str, ...]:
    """The default systems. The shipped EAGLE-3 head fits the shipped model only."""
    return SHOWN if model == MODEL_FOLDER else tuple(name for name in SHOWN if not DEMONSTRATED[name].has_drafter)


def _turns(
    stack: ExitStack,
    name: str,
    args: argparse.Namespace,
    works: Mapping[str, Sequence[Question]],
    databases: dict[Database, Path],
    logs: Path,
) -> Iterator[Turn]:
    """Starts the server of a system, which the stack stops, and asks it turn by turn.

    Raises:
        ServerError: The server does not start, or agentspec is inactive or drafted nothing.
    """
    system = DEMONSTRATED[name]
    say(f"{system.label}: starting the server")
    server = stack.enter_context(
        Server(
            args.model,
            system.algorithm,
            log=logs / f"{name}.log",
            arguments=system.arguments,
            environment=system.variables,
            on_wait=waiting,
        )
    )
    say(f"{system.label}: ready after {server.start_seconds:.0f} s")
    # The first decode steps pay for lazy set-up in every system. The flush drops what the server learnt from them.
    ask(server, works["cold"][:1], databases, args.concurrency)
    server.flush()
    size = _QUESTIONS_OF_TURN * args.concurrency
    for pass_name, questions in works.items():
        for first in range(0, len(questions), size):
            started = time.perf_counter()
            answers = ask(server, questions[first : first + size], databases, args.concurrency)
            yield Turn(pass_name, time.perf_counter() - started, answers)
    if system.is_ours:
        check_active(server.agentspec_state())


def _say_done(turns: Mapping[str, Sequence[Turn]]) -> None:
    """Prints the figures of the turn that has ended."""
    latest = {name: done[-1] for name, done in turns.items() if done}
    rates = [f"{name} {measure(name, t.answers, t.seconds).tokens_per_second:.0f}" for name, t in latest.items()]
    say(f"{next(iter(latest.values())).pass_name}: tokens/s {', '.join(rates)}" if latest else "no server is left")


def _measured(name: str, turns: Sequence[Turn], pass_name: str) -> PassResult:
    of_pass = [turn for turn in turns if turn.pass_name == pass_name]
    return measure(name, [answer for turn in of_pass for answer in turn.answers], sum(t.seconds for t in of_pass))


def table(results: Sequence[tuple[str, PassResult]], *, identical: bool) -> str:
    """The figures for people; ratios are relative to plain SGLang in the same pass."""
    plain = {pass_name: result for pass_name, result in results if result.name == "none"}
    header = f"{'system':<20}{'pass':<6}{'requests':>9}{'tokens':>8}{'seconds':>9}{'tokens/s':>10}{'speed-up':>10}"
    lines = [header + f"{'accept length':>15}{'steps':>8}{'SQL correct':>13}"]
    for pass_name, r in results:
        ratio = r.tokens_per_second / plain[pass_name].tokens_per_second
        lines.append(
            f"{DEMONSTRATED[r.name].label:<20}{pass_name:<6}{r.requests:>9}{r.tokens:>8}{r.seconds:>9.2f}{r.tokens_per_second:>10.1f}"
            f"{ratio:>9.2f}x{r.accept_length:>15.2f}{r.verify_steps:>8}{r.accuracy:>13.1%}"
        )
    lines.append(f"identical outputs: {'yes' if identical else 'NO'}")
    return "\n".join(lines)


def context(args: argparse.Namespace) -> dict[str, Any]:
    """What the figures depend on."""
    described = describe(("agentspec", "sglang", "torch", "transformers", "openai"))
    return {**described, "questions": args.questions, "concurrency": args.concurrency, "seed": args.seed}
