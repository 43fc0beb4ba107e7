"""`agentspec demo`: `agentspec eval text_to_sql` with few questions, on plain SGLang, its NGRAM and agentspec."""

from __future__ import annotations

import argparse

from agentspec.errors import ConfigError
from agentspec.evals.options import Options
from agentspec.evals.run import eval as evaluation
from agentspec.evals.run.cells import PASSES
from agentspec.evals.run.runner import DEFAULT_SYSTEMS, EVALUATED
from agentspec.evals.text_to_sql import MODEL_FOLDER
from agentspec.evals.workloads.live import CALLS_A_QUESTION


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options = Options(parser)
    options.folder("--model", "model to serve (default: the shipped tiny-sql)", MODEL_FOLDER)
    system = (
        "system to compare with plain SGLang (default: ngram and suffix; a draft model, as in hybrid, does not pay on a "
        "CPU)"
    )
    options.choices("--system", [name for name in EVALUATED if name != "none"], system)
    options.number("--questions", 24, "questions in each pass")
    options.number("--concurrency", 2, "questions in flight")
    options.number("--seed", 0, "seed of the questions")
    options.file("--json", "write the figures to FILE")
    options.folder("--logs", "keep the servers' logs in FOLDER")


def run(args: argparse.Namespace) -> int:
    """Runs the eval; 1 if a server or a call failed, or outputs differ.

    Raises:
        ConfigError: An argument is out of range, or the model is missing.
    """
    if args.questions < 1 or args.concurrency < 1:
        raise ConfigError(
            f"--questions and --concurrency must be at least 1, got {args.questions} and {args.concurrency}"
        )
    shown = [name for name in DEFAULT_SYSTEMS if not EVALUATED[name].has_drafter]
    calls = str(CALLS_A_QUESTION * args.questions)
    words = ["text_to_sql", "--model", str(args.model), "--passes", ",".join(PASSES), "--repeat", "1"]
    words += ["--concurrency", str(args.concurrency), "--requests", calls, "--learn", calls, "--seed", str(args.seed)]
    words += ["--system", ",".join(("none", *(args.system or shown)))]
    for option, value in (("--json", args.json), ("--logs", args.logs)):
        words += [option, str(value)] if value is not None else []
    parser = argparse.ArgumentParser(prog="agentspec eval")
    evaluation.add_arguments(parser)
    return evaluation.run(parser.parse_args(words))
