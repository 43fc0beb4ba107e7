"""`agentspec demo`: plain SGLang, SGLang's NGRAM and agentspec in turn on the same text-to-SQL work.

Dataset: held-out questions of the text-to-SQL workflow; each runs through its chain of agents over the OpenAI API.
Metric: wall seconds, tokens a second, accept length, verified rows; outputs compared call by call.
Pattern: for each system one fresh server and two passes. The cold pass starts with nothing learnt; the warm pass
asks other questions of the same databases, so nothing in it is a repeated request.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from agentspec.errors import ConfigError, ServerError
from agentspec.evals.environment import describe
from agentspec.evals.server import Server
from agentspec.evals.systems import SYSTEMS
from agentspec.evals.text_to_sql import MODEL_FOLDER
from agentspec.workflows.text_to_sql import (
    DATABASES,
    Answer,
    ChainConfig,
    Completion,
    Database,
    OpenAIChat,
    Question,
    answer_questions,
    create_all,
    draw_questions,
)

SHOWN = ("none", "ngram", "agentspec")
PASSES = ("cold", "warm")


@dataclass(frozen=True)
class PassResult:
    """One pass of one system. Tokens are answer tokens; the first of each request comes from its prefill."""

    name: str
    requests: int
    tokens: int
    seconds: float
    tokens_per_second: float
    accept_length: float
    verify_steps: int
    accuracy: float

    def record(self, pass_name: str) -> dict[str, Any]:
        return {"name": self.name, "pass": pass_name, **{k: v for k, v in asdict(self).items() if k != "name"}}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", type=Path, default=MODEL_FOLDER, help="model folder (default: the shipped tiny-sql)")
    parser.add_argument(
        "--system",
        action="append",
        choices=[name for name in SYSTEMS if name != "none"],
        help="system beside plain SGLang; may be repeated (default: ngram and agentspec)",
    )
    parser.add_argument("--questions", type=int, default=24, help="questions a pass (default %(default)s)")
    parser.add_argument("--concurrency", type=int, default=2, help="questions in flight (default %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the questions (default %(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures to FILE")
    parser.add_argument("--logs", type=Path, metavar="FOLDER", help="keep the servers' logs in FOLDER")


def run(args: argparse.Namespace, rest: Sequence[str]) -> int:
    """Runs the demo; 1 where outputs differ, a call failed, or agentspec drafted nothing.

    Raises:
        ConfigError: an argument is out of range or unknown, or the model is missing.
        ServerError: a server did not start.
    """
    if rest:
        raise ConfigError(f"unknown arguments {' '.join(rest)}; see agentspec demo --help")
    if args.questions < 1 or args.concurrency < 1:
        raise ConfigError(
            f"--questions and --concurrency must be at least 1, got {args.questions} and {args.concurrency}"
        )
    with tempfile.TemporaryDirectory(prefix="agentspec-demo-") as folder:
        logs = args.logs or Path(folder)
        logs.mkdir(parents=True, exist_ok=True)
        paths = create_all(DATABASES, Path(folder))
        databases = {database: paths[database.name] for database in DATABASES}
        works = draw_passes(databases, args.questions, args.seed)
        results: list[tuple[str, PassResult]] = []
        outputs: dict[str, list[Any]] = {}
        names = ("none", *dict.fromkeys(args.system)) if args.system else SHOWN
        for name in names:
            outputs[name] = []
            for pass_name, result, answers in run_system(name, args, works, databases, logs):
                results.append((pass_name, result))
                outputs[name].append([output_of(answer) for answer in answers])
    differing = [name for name in names if outputs[name] != outputs["none"]]
    print("\n" + table(results, identical=not differing))
    if args.json:
        report = {
            "systems": [result.record(pass_name) for pass_name, result in results],
            "identical": not differing,
            **context(args),
        }
        args.json.write_text(json.dumps(report, indent=2) + "\n")
    if differing:
        print(f"outputs of {', '.join(differing)} differ from plain SGLang's", file=sys.stderr)
    return 1 if differing else 0


def draw_passes(databases: dict[Database, Path], number: int, seed: int) -> dict[str, list[Question]]:
    """Held-out questions for each pass; the passes share no question."""
    drawn = list(islice(draw_questions(databases, split="heldout", seed=seed), number * len(PASSES)))
    return {name: drawn[i * number : (i + 1) * number] for i, name in enumerate(PASSES)}


def run_system(
    name: str,
    args: argparse.Namespace,
    works: dict[str, list[Question]],
    databases: dict[Database, Path],
    logs: Path,
) -> Iterator[tuple[str, PassResult, list[Answer]]]:
    """Starts one system's server and yields its passes.

    Raises:
        ServerError: the server does not start, a call fails, or agentspec is inactive or drafted nothing.
    """
    _say(f"{SYSTEMS[name].label}: starting the server")
    system = SYSTEMS[name]
    log = logs / f"{name}.log"
    with Server(args.model, system.algorithm, log=log, arguments=system.arguments, on_wait=_waiting) as server:
        _say(f"{SYSTEMS[name].label}: ready after {server.start_seconds:.0f} s")
        # The first decode steps pay for lazy set-up in every system; what they taught is dropped.
        ask(server, works["cold"][:1], databases, args.concurrency)
        server.flush()
        for pass_name, questions in works.items():
            started = time.perf_counter()
            answers = ask(server, questions, databases, args.concurrency)
            result = measure(name, answers, time.perf_counter() - started)
            _say(
                f"{SYSTEMS[name].label}: {pass_name} pass, {result.requests} requests in {result.seconds:.1f} s, "
                f"{result.tokens_per_second:.0f} tokens/s, accept length {result.accept_length:.2f}"
            )
            yield pass_name, result, answers
        if name == "agentspec":
            check_active(server.agentspec_state())


def check_active(state: dict[str, Any] | None) -> None:
    """Refuses figures that agentspec had no part in: SGLang serves on without a plugin that failed to load."""
    if state is None or not state.get("active"):
        raise ServerError(
            "agentspec is not active in the server, so its figures would be NGRAM's; see the server's log"
        )
    if not state["counters"]["drafted_tokens"]:
        raise ServerError(f"agentspec drafted nothing, so there is nothing to show: {state['counters']}")


def ask(
    server: Server,
    questions: Sequence[Question],
    databases: dict[Database, Path],
    concurrency: int,
    *,
    learn: bool = True,
) -> list[Answer]:
    """The server's answers; without `learn` agentspec keeps nothing of them."""
    custom = None if learn else {"agentspec": {"no_store": True}}
    return asyncio.run(_ask(server, questions, ChainConfig(concurrency=concurrency), databases, custom))


async def _ask(
    server: Server,
    questions: Sequence[Question],
    config: ChainConfig,
    databases: dict[Database, Path],
    custom_params: dict[str, Any] | None,
) -> list[Answer]:
    from openai import AsyncOpenAI

    extra: dict[str, Any] = {"return_spec_tokens_details": True}
    if custom_params is not None:
        extra["custom_params"] = custom_params
    async with AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        model = OpenAIChat(client, "tiny-sql", extra_body=extra)
        return await answer_questions(model, list(questions), databases, config)


def measure(name: str, answers: Sequence[Answer], seconds: float) -> PassResult:
    """The figures of one pass.

    accept_length is (tokens - requests) / verify_steps: each request's first token comes from its prefill. A plain
    server's decode step is a verify step of width one.

    Raises:
        ServerError: a call failed, or a speculative server did not tell its verify steps.
    """
    completions = [call.completion for answer in answers for call in answer.calls]
    failed = [completion.error for completion in completions if completion.error]
    if failed:
        raise ServerError(
            f"{len(failed)} of {len(completions)} calls to {SYSTEMS[name].label} failed; the first: {failed[0]}"
        )
    tokens = sum(completion.completion_tokens for completion in completions)
    decoded = tokens - len(completions)
    steps = decoded if name == "none" else sum(verify_steps(completion) for completion in completions)
    if decoded and not steps:
        raise ServerError(f"{SYSTEMS[name].label} reported no verify steps; is speculative decoding on?")
    return PassResult(
        name=name,
        requests=len(completions),
        tokens=tokens,
        seconds=round(seconds, 3),
        tokens_per_second=round(tokens / seconds, 1),
        accept_length=round(decoded / steps, 3) if steps else 0.0,
        verify_steps=steps,
        accuracy=round(sum(answer.outcome == "correct" for answer in answers) / len(answers), 3),
    )


def verify_steps(completion: Completion) -> int:
    """The number of verify steps that SGLang reports with an answer."""
    return _find_number(completion.extra, "spec_verify_ct")


def _find_number(value: Any, key: str) -> int:
    if isinstance(value, dict):
        found = value.get(key)
        return found if isinstance(found, int) else sum(_find_number(part, key) for part in value.values())
    if isinstance(value, list):
        return sum(_find_number(part, key) for part in value)
    return 0


def output_of(answer: Answer) -> list[tuple[str, str, int, str]]:
    """What must be the same whatever drafts: each call's text, length and end."""
    return [
        (call.stage, call.completion.text, call.completion.completion_tokens, call.completion.finish_reason)
        for call in answer.calls
    ]


def table(results: Sequence[tuple[str, PassResult]], *, identical: bool) -> str:
    """The figures for people; ratios are over plain SGLang in the same pass."""
    plain = {pass_name: result for pass_name, result in results if result.name == "none"}
    header = f"{'system':<20}{'pass':<6}{'requests':>9}{'tokens':>8}{'seconds':>9}{'tokens/s':>10}{'speed-up':>10}"
    lines = [header + f"{'accept length':>15}{'steps':>8}{'SQL correct':>13}"]
    for pass_name, r in results:
        ratio = r.tokens_per_second / plain[pass_name].tokens_per_second
        lines.append(
            f"{SYSTEMS[r.name].label:<20}{pass_name:<6}{r.requests:>9}{r.tokens:>8}{r.seconds:>9.2f}{r.tokens_per_second:>10.1f}"
            f"{ratio:>9.2f}x{r.accept_length:>15.2f}{r.verify_steps:>8}{r.accuracy:>13.1%}"
        )
    lines.append(f"identical outputs: {'yes' if identical else 'NO'}")
    return "\n".join(lines)


def context(args: argparse.Namespace) -> dict[str, Any]:
    """What the figures depend on."""
    described = describe(("agentspec", "sglang", "torch", "transformers", "openai"))
    return {**described, "questions": args.questions, "concurrency": args.concurrency, "seed": args.seed}


def _say(message: str) -> None:
    print(message, file=sys.stderr, flush=True)


def _waiting(seconds: float) -> None:
    if sys.stderr.isatty():
        print(f"\r  waiting {seconds:.0f} s", end="\r", file=sys.stderr, flush=True)
