"""The small model as the staged text-to-SQL agents, on databases that it has never seen.

Dataset: questions over random databases of known words ("new"), of unseen words ("unseen"), and over the six shipped ones.
Metric: execution accuracy of the answer, of a single draft, of the drafts' vote, and after combine; calls and tokens by
stage. Pattern: the workflow of `agentspec.workflows.text_to_sql` with the model in this process, or on a server.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from agentspec.environment import describe
from agentspec.evals.files import write_json
from agentspec.evals.research.tiny_sql_staged.corpus import WORKFLOW
from agentspec.evals.research.tiny_sql_staged.questions import KINDS, held_out_questions
from agentspec.workflows.text_to_sql.agents.answers import UnusableAnswer, read_select
from agentspec.workflows.text_to_sql.agents.client import OpenAIChat, SamplingModel
from agentspec.workflows.text_to_sql.agents.stages import WAYS
from agentspec.workflows.text_to_sql.agents.voting import vote
from agentspec.workflows.text_to_sql.records import Record, RecordFile
from agentspec.workflows.text_to_sql.run import run_tasks
from agentspec.workflows.text_to_sql.sql.execute import execute
from agentspec.workflows.text_to_sql.sql.score import is_ordered, same_result
from agentspec.workflows.text_to_sql.sql.sources import Databases
from agentspec.workflows.text_to_sql.summary import summary_of, table

MODEL_FOLDER = Path(__file__).resolve().parents[1] / "models" / "tiny-sql-staged"
STEPS = ("single draft", "vote", "after combine", "answer")


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line; the exit status is 1 if any call of the model failed."""
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.base_url is None:
        if not (options.model_path / "config.json").exists():
            parser.error(f"--model-path {options.model_path} holds no model; `make staged-model` trains one")
        # Set before torch loads OpenMP: threads that wait without spinning lose little on a busy machine.
        os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    reports = {}
    for kind in options.kind or KINDS:
        with tempfile.TemporaryDirectory(prefix="staged-sql-") as folder:
            tasks, databases = held_out_questions(kind, options.questions, Path(folder), seed=options.seed)
            start = time.monotonic()
            records = asyncio.run(_run(options, tasks, databases))
            steps = accuracy_by_step(records, databases)
            seconds = time.monotonic() - start
        reports[kind] = {"seconds": round(seconds, 1), "accuracy_by_step": steps, **summary_of(records)}
        print(f"--- {kind}: {len(databases.paths)} databases, {seconds:.0f} s")
        print(table(reports[kind]))
        print("accuracy of " + ", ".join(f"{step} {share:.1%}" for step, share in steps.items()), flush=True)
    write_json(options.json, {"kinds": reports, **describe(("agentspec", "torch", "transformers"))})
    return 1 if any(report["outcomes"]["error"] for report in reports.values()) else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m agentspec.evals.research.staged_sql", description=__doc__)
    add = parser.add_argument
    add("--kind", action="append", choices=KINDS, help="kind of questions; may be repeated (default: all)")
    add("--questions", type=int, default=100, help="number of questions of each kind (default: %(default)s)")
    add("--seed", type=int, default=0, help="of databases and questions (default: %(default)s)")
    add("--model-path", type=Path, default=MODEL_FOLDER, help="model folder (default: the shipped one)")
    add("--base-url", help="OpenAI-compatible server that has the model, in place of this process")
    add("--model", default="tiny-sql-staged", help="model name sent to the server (default: %(default)s)")
    add("--concurrency", type=int, default=32, help="questions in flight (default: %(default)s)")
    add("--out", type=Path, help="append a record a question to this file; `agentspec replay` reads it")
    add("--json", type=Path, help="write the figures to this file")
    return parser


async def _run(options: argparse.Namespace, tasks: Any, databases: Databases) -> list[Record]:
    file = RecordFile(options.out) if options.out else None

    def keep(record: Record) -> None:
        if file:
            file.append(record)

    async def ask(model: SamplingModel) -> list[Record]:
        return await run_tasks(
            model,
            tasks,
            databases,
            WORKFLOW,
            run=options.model,
            concurrency=options.concurrency,
            on_record=keep,
        )

    if options.base_url is None:
        from agentspec.evals.research.tiny_sql_staged.chat import SampledChat

        return await ask(SampledChat(options.model_path, seed=options.seed))
    from openai import AsyncOpenAI

    async with AsyncOpenAI(base_url=options.base_url, api_key=os.environ.get("OPENAI_API_KEY", "none")) as client:
        return await ask(OpenAIChat(client, options.model))


def accuracy_by_step(records: Sequence[Record], databases: Databases) -> dict[str, float]:
    """Execution accuracy of single drafts (their mean), of the vote's first result, after combine, and of the answer.

    A draft that is no statement is wrong. Questions that failed are wrong in every step.
    """
    sums = dict.fromkeys(STEPS, 0.0)
    for record in records:
        path = databases.paths[record["task"]]
        gold = execute(path, record["gold"])
        ordered = is_ordered(record["gold"])
        drafts = [execute(path, sql) for sql in _statements(record, "draft")]
        right = [same_result(gold, draft, ordered=ordered) for draft in drafts]
        counted = vote(drafts)
        chosen = right[counted.order[0]] if counted.order else False
        sums["single draft"] += sum(right) / record["config"]["drafts"]
        sums["vote"] += chosen
        combined = _statements(record, "combine")
        if combined:
            chosen = same_result(gold, execute(path, combined[-1]), ordered=ordered)
        sums["after combine"] += chosen
        sums["answer"] += record["outcome"] == "correct"
    return {step: total / max(1, len(records)) for step, total in sums.items()}


def _statements(record: Record, stage: str) -> list[str]:
    """The usable answers of a stage; drafts in the order of their approaches."""
    found = []
    for call in record["calls"]:
        if call["stage"] != stage:
            continue
        asked = call["messages"][1]["content"]
        place = next((number for number, way in enumerate(WAYS) if asked.endswith(way)), 0)
        try:
            found.append((place, read_select(call["output"])))
        except UnusableAnswer:
            continue
    return [sql for _, sql in sorted(found, key=lambda pair: pair[0])]


if __name__ == "__main__":
    raise SystemExit(main())
