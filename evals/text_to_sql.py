"""Execution accuracy of a model on held-out text-to-SQL questions.

Dataset: questions of the six shipped databases whose gold SQL was kept out of training.
Metric: execution accuracy; correct, wrong, truncated and error add up to all questions.
Pattern: a chain of agents (link, write, check, repair) over an OpenAI-compatible server, or in this process.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import Any

from agentspec.environment import describe
from agentspec.evals.files import write_json
from agentspec.evals.options import Program
from agentspec.evals.sql_databases import temporary_databases
from agentspec.evals.tables import aligned
from agentspec.workflows.text_to_sql import (
    OUTCOMES,
    STAGES,
    Answer,
    ChainConfig,
    OpenAIChat,
    answer_questions,
    draw_questions,
)

MODEL_FOLDER = Path(__file__).resolve().parent / "models" / "tiny-sql"


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line; the exit status is 1 if any call of the model failed."""
    program = Program("text_to_sql", "Execution accuracy on held-out questions.")
    program.add("--base-url", required=True, help="OpenAI-compatible server, e.g. http://127.0.0.1:30000/v1")
    program.text("--model", "tiny-sql", "model name sent to the server")
    program.number("--questions", 200, "number of questions")
    program.flag("--stream", "stream the answers of the server")
    program.number("--skip", 0, "leave out the first N questions")
    program.number("--seed", 0, "seed of the questions")
    program.number("--concurrency", 16, "questions in flight")
    program.number("--max-repairs", 2, "repair rounds a question")
    program.number("--max-tokens", 256, "answer tokens a call")
    program.file("--json", "write the full report to FILE")
    options = program.parse(arguments)
    config = ChainConfig(
        concurrency=options.concurrency, max_repairs=options.max_repairs, max_tokens=options.max_tokens
    )
    with temporary_databases() as databases:
        drawn = draw_questions(databases, split="heldout", seed=options.seed)
        questions = list(islice(drawn, options.skip, options.skip + options.questions))
        print(f"{len(questions)} held-out questions, seed {options.seed}", file=sys.stderr)
        start = time.perf_counter()
        answers = asyncio.run(_run(options, questions, databases, config))
        seconds = time.perf_counter() - start
    report = {
        **describe(("agentspec", "openai", "torch", "transformers")),
        "seed": options.seed,
        "chain": asdict(config),
        "seconds": round(seconds, 2),
        **summarize(answers),
        "tasks": [
            {
                "id": f"heldout-{options.seed}-{number}",
                "outcome": answer.outcome,
                "detail": answer.detail,
                **{name: round(getattr(answer, name), 6) for name in ("seconds", "model_seconds")},
            }
            for number, answer in enumerate(answers, options.skip)
        ],
        "answers": [_record(answer) for answer in answers],
    }
    print(table(report))
    write_json(options.json, report)
    return 1 if report["outcomes"]["error"] else 0


async def _run(options: argparse.Namespace, questions: Any, databases: Any, config: ChainConfig) -> list[Answer]:
    from openai import AsyncOpenAI

    async with AsyncOpenAI(base_url=options.base_url, api_key=os.environ.get("OPENAI_API_KEY", "none")) as client:
        chat = OpenAIChat(client, options.model, streams=options.stream)
        return await answer_questions(chat, questions, databases, config)


def summarize(answers: Sequence[Answer]) -> dict[str, Any]:
    """Counts by outcome, database and intent, and tokens by stage; `accuracy` is the share of correct answers."""
    outcomes = Counter(answer.outcome for answer in answers)
    by_database: dict[str, Counter[str]] = defaultdict(Counter)
    by_intent: dict[str, Counter[str]] = defaultdict(Counter)
    tokens: dict[str, list[tuple[int, int]]] = {stage: [] for stage in STAGES}
    for answer in answers:
        by_database[answer.question.database][answer.outcome] += 1
        by_intent[answer.question.intent][answer.outcome] += 1
        for call in answer.calls:
            if not call.completion.error:
                tokens[call.stage].append((call.completion.prompt_tokens, call.completion.completion_tokens))
    return {
        "questions": len(answers),
        "accuracy": outcomes["correct"] / len(answers) if answers else 0.0,
        "outcomes": {outcome: outcomes[outcome] for outcome in OUTCOMES},
        "databases": {name: dict(counts) for name, counts in sorted(by_database.items())},
        "intents": {name: dict(counts) for name, counts in sorted(by_intent.items())},
        "stages": {stage: _stage_tokens(pairs) for stage, pairs in tokens.items()},
    }


def _stage_tokens(pairs: list[tuple[int, int]]) -> dict[str, float]:
    prompts, completions = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    count = max(1, len(pairs))
    return {
        "calls": len(pairs),
        "prompt_mean": round(sum(prompts) / count, 1),
        "prompt_max": max(prompts, default=0),
        "completion_mean": round(sum(completions) / count, 1),
        "completion_max": max(completions, default=0),
    }


def table(report: dict[str, Any]) -> str:
    """The summary for people."""
    outcomes = [["database", *OUTCOMES, "accuracy"]]
    for name, counts in [*report["databases"].items(), ("all", report["outcomes"])]:
        share = counts.get("correct", 0) / (sum(counts.values()) or 1)
        outcomes.append([name, *(str(counts.get(outcome, 0)) for outcome in OUTCOMES), f"{share:.1%}"])
    stages = [["stage", "calls", "prompt", "answer (tokens, mean/max)"]]
    for stage, row in report["stages"].items():
        tokens = [f"{row[f'{kind}_mean']:g}/{row[f'{kind}_max']:g}" for kind in ("prompt", "completion")]
        stages.append([stage, str(row["calls"]), *tokens])
    return "\n".join([*aligned(outcomes), "", *aligned(stages)])


def _record(answer: Answer) -> dict[str, Any]:
    asked = answer.question
    return {
        "database": asked.database,
        "intent": asked.intent,
        "question": asked.text,
        "gold": asked.sql,
        "sql": answer.sql,
        "outcome": answer.outcome,
        "detail": answer.detail,
        "calls": [{"stage": call.stage, **asdict(call.completion)} for call in answer.calls],
    }


if __name__ == "__main__":
    raise SystemExit(main())
