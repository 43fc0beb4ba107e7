"""`agentspec eval-page`: the page of results and the table in the README, made from the files of figures.

Data: every JSON file in a folder of evals/results; see result_rows for what is shown of each.
Metric: none of its own; no figure is written here.
Pattern: the same files give the same page, so that a test can tell a page that lags behind.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from agentspec.errors import ConfigError
from agentspec.evals.result_rows import TOPICS, Content, Row, side_by_side, topic_rows

RESULTS = Path(__file__).resolve().parent / "results"
README = RESULTS.parents[1] / "README.md"
BEGIN, END = "<!-- results -->", "<!-- /results -->"
_MARKED = re.compile(re.escape(BEGIN) + ".*?" + re.escape(END), re.DOTALL)

_TITLES = {
    "eval": "Tasks end to end on real servers",
    "engine": "The engine beside its peers",
    "emulated": "Tasks on an emulated H200",
    "hybrid": "Suffix drafts and a model drafter in one batch",
    "load": "More and more clients",
    "fidelity": "Simulated and real latencies",
    "store": "The store",
    "control": "What deciding costs",
    "drafter-state": "A head after suffix steps",
    "report": "The report's figures",
    "simulation": "Simulated serving",
    "specdec": "SpecDec++ on the small pair",
    "text-to-sql": "Staged text-to-SQL agents",
}

_NOTE = (
    "Made by `agentspec eval-page` from the JSON files in these folders; not to be edited. Commands and versions are those "
    "of each file; what figures mean and how they were measured is in the folder's own page."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--check", action="store_true", help="write nothing; 1 where a page lags behind the files")
    parser.add_argument("--results", type=Path, default=RESULTS, metavar="FOLDER", help="default: evals/results")
    parser.add_argument("--readme", type=Path, default=README, metavar="FILE", help="default: the project's README.md")


def run(args: argparse.Namespace, rest: Sequence[str]) -> int:
    """Writes both pages, or with --check tells whether they are what would be written.

    Raises:
        ConfigError: An argument is unknown, there are no results, or the README has no marks.
    """
    if rest:
        raise ConfigError(f"unknown arguments {' '.join(rest)}; see agentspec eval-page --help")
    topics = read_topics(args.results)
    wanted = {
        args.results / "README.md": page(topics),
        args.readme: with_table(args.readme.read_text(encoding="utf-8"), readme_table(topics)),
    }
    lagging = [path for path, text in wanted.items() if not path.exists() or path.read_text(encoding="utf-8") != text]
    for path in lagging:
        print(f"{path.name} {'lags behind the files; run agentspec eval-page' if args.check else 'written'}")
        if not args.check:
            path.write_text(wanted[path], encoding="utf-8")
    return 1 if args.check and lagging else 0


def read_topics(results: Path) -> dict[str, dict[str, Any]]:
    """Of each folder its JSON files' contents by their names, topics in the order of the page.

    Raises:
        ConfigError: There is no such folder, or a file is no JSON object.
    """
    if not results.is_dir():
        raise ConfigError(
            f"--results must be a folder of figures, but {results} is none; a source tree has evals/results"
        )
    topics: dict[str, dict[str, Any]] = {}
    folders = sorted(path for path in results.iterdir() if path.is_dir())
    for folder in sorted(folders, key=lambda path: TOPICS.index(path.name) if path.name in TOPICS else len(TOPICS)):
        topics[folder.name] = {}
        for path in sorted(folder.glob("*.json")):
            try:
                topics[folder.name][path.name] = dict(json.loads(path.read_text(encoding="utf-8")))
            except (ValueError, TypeError) as error:
                raise ConfigError(f"{path} is no file of figures: {error}") from error
    return topics


def page(topics: Mapping[str, Mapping[str, Any]]) -> str:
    """The page in Markdown: a table for each topic, each row with its command and machine."""
    parts = [
        "# Results",
        _NOTE,
    ]
    for topic, files in topics.items():
        parts.append(f"## {_title(topic)}")
        if not files:
            parts.append(f"Not measured yet: see [{topic}]({topic}).")
            continue
        parts.append(f"More in [{topic}]({topic}).")
        parts.append(_table(topic, topic_rows(topic, files), files))
        if topic == "eval":
            parts += _beside(files, topics.get("engine", {}))
    return "\n\n".join(parts) + "\n"


def readme_table(topics: Mapping[str, Mapping[str, Any]]) -> str:
    """What matters most of each topic that was measured."""
    lines = ["| topic | figure | measured | baseline | machine |", "|---|---|---|---|---|"]
    for topic, files in topics.items():
        rows = topic_rows(topic, files)
        if rows:
            row = rows[0]
            machine = next(iter(commands_of(files[row.file])), ("", "", ""))[1]
            cells = [f"[{_title(topic)}](evals/results/{topic})", row.figure, row.measured, row.baseline, machine]
            lines.append(f"| {' | '.join(map(_cell, cells))} |")
    return "\n".join(lines)


def with_table(readme: str, table: str) -> str:
    """The README with the table between its marks.

    Raises:
        ConfigError: The marks are missing.
    """
    if not _MARKED.search(readme):
        raise ConfigError(f"the README needs the marks {BEGIN} and {END}, between which the table is written")
    return _MARKED.sub(lambda _: f"{BEGIN}\n{table}\n{END}", readme)


def commands_of(content: Content) -> Iterable[tuple[str, str, str]]:
    """Command, machine and versions of a file; several where runs were put together."""
    heads = content.get("heads") or [content.get("head") or content]
    if "records" in content:
        heads = content["records"]
    found: dict[tuple[str, str, str], None] = {}
    for head in heads:
        hardware = head.get("hardware") or {}
        machine = ", ".join(
            str(part)
            for part in (
                hardware.get("processor") or hardware.get("machine"),
                f"{hardware['cores']} cores" if hardware.get("cores") else None,
                hardware.get("gpu"),
            )
            if part
        )
        versions = ", ".join(f"{name} {value}" for name, value in (head.get("versions") or {}).items() if value)
        found[" ".join(head.get("command") or ()), machine, versions] = None
    return found


def _title(topic: str) -> str:
    return _TITLES.get(topic, topic)


def _table(topic: str, rows: Sequence[Row], files: Mapping[str, Any]) -> str:
    lines = ["| figure | measured | baseline | from | machine |", "|---|---|---|---|---|"]
    for row in rows:
        machines = ", ".join(dict.fromkeys(machine for _, machine, _ in commands_of(files[row.file])))
        cells = (row.figure, row.measured, row.baseline, f"[{row.file}]({topic}/{row.file})", machines)
        lines.append(f"| {' | '.join(map(_cell, cells))} |")
    commands = ["Commands:", ""]
    for name, content in files.items():
        for command, _, versions in commands_of(content):
            told = f"`{command}`" if command else f"see [{topic}]({topic})"
            commands.append(f"- {name}: {told} ({versions})")
    return "\n".join([*lines, "", *commands])


def _beside(files: Mapping[str, Any], engine: Mapping[str, Any]) -> list[str]:
    """Replay tasks on the server beside drafters offline; nothing where one of both is missing."""
    records = [record for content in files.values() for record in content["records"]]
    rows = side_by_side(records, engine["replay.json"]) if "replay.json" in engine else []
    if not rows:
        return []
    lines = [
        "| trace | suffix | hybrid | NGRAM | agentspec offline | ArcticInference's best offline | NGRAM offline |",
        "|---|---|---|---|---|---|---|",
        *(f"| {' | '.join(row)} |" for row in rows),
    ]
    tokenizers = {head["tokenizer"] for head in engine["replay.json"]["heads"]}
    models = {record["model"] for record in records}
    note = (
        f"Accept lengths on the same traces: on the server, whose tokens are {', '.join(sorted(models))}'s, and of drafters "
        f"offline (`agentspec replay`, tokens of {', '.join(sorted(tokenizers))}, at most 16 drafted), so that columns of one "
        "side are to be compared with each other alone. vLLM's suffix decoding: "
        "[commands for a GPU host](../peers/README.md), not run here."
    )
    return [note, "\n".join(lines)]


def _cell(text: str) -> str:
    return text.replace("|", "/").replace("\n", " ")
