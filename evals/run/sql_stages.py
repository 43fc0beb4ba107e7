"""How many statements of each text-to-SQL stage are right: `python -m agentspec.evals.run.sql_stages`.

Dataset: the records of a run, `--out` of `python -m agentspec.workflows.text_to_sql`, and its summary, `--json`.
Metric: execution accuracy of the statements that each stage wrote, by the run's own scorer, and how many questions have at
least one draft that is right.
Pattern: nothing is asked again; the figures are added to the summary.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from agentspec.environment import describe
from agentspec.evals.files import write_json
from agentspec.evals.options import Options, run_program
from agentspec.progress import Progress
from agentspec.workflows.text_to_sql.agents.answers import UnusableAnswer, read_select
from agentspec.workflows.text_to_sql.sql.scorers import Grader
from agentspec.workflows.text_to_sql.sql.sources import find_databases

_WRITING = ("draft", "combine", "repair")


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m agentspec.evals.run.sql_stages", description=(__doc__ or "").partition("\n\n")[2]
    )
    options = Options(parser)
    options.add("records", type=Path, help="the records of the run")
    options.add("summary", type=Path, help="the summary of the run")
    options.folder("--databases", "the run's databases", required=True)
    options.file("--json", "write the summary with the new figures to FILE")
    return run_program(parser, _run, words)


def _run(given: argparse.Namespace) -> int:
    paths = find_databases(given.databases)
    records = [json.loads(line) for line in given.records.read_text(encoding="utf-8").splitlines()]
    summary = json.loads(given.summary.read_text(encoding="utf-8"))
    with Grader(summary["config"]["scorer"], summary["config"]["sql_timeout_s"]) as grader:
        right = statements_right(records, paths, grader)
    for stage in _WRITING:
        summary["stages"][stage] |= {"graded": len(right[stage]), "right": sum(right[stage])}
    summary["questions_with_a_right_draft"] = sum(right["any draft"])
    summary["graded_by"] = describe(())["command"]
    write_json(given.json, summary)
    for stage, found in right.items():
        print(f"{stage:<10}{sum(found):>5} of {len(found)}")
    return 0


def statements_right(
    records: Sequence[Mapping[str, Any]], paths: Mapping[str, Path], grader: Grader
) -> dict[str, list[bool]]:
    """Whether each statement of a stage is right; of "any draft", whether one of a question's drafts is."""
    found: dict[str, list[bool]] = {stage: [] for stage in (*_WRITING, "any draft")}
    with Progress("questions", len(records)) as progress:
        for number, record in enumerate(records):
            progress.update(number, record["session"])
            # Drafts are often the same.
            known: dict[str, bool] = {}
            drafts = []
            for call in record["calls"]:
                if call["stage"] not in _WRITING:
                    continue
                sql = _statement(call["output"])
                if sql not in known:
                    known[sql] = grader.grade(paths[record["task"]], record["gold"], sql)[0] == "correct"
                found[call["stage"]].append(known[sql])
                drafts += [known[sql]] if call["stage"] == "draft" else []
            found["any draft"].append(any(drafts))
    return found


def _statement(answer: str) -> str:
    """The statement of an answer; "" if it holds none that may run."""
    try:
        return read_select(answer)
    except UnusableAnswer:
        return ""


if __name__ == "__main__":
    sys.exit(main())
