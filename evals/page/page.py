"""`agentspec eval-page`: every table of results in the docs, and the README's plot, made from the files of figures.

Data: every JSON file in a folder of evals/results; see offline_rows.py, served_rows.py and real_rows.py
for what is shown of each.
Metric: none of its own; goals met and missed are counted.
Pattern: equal files give equal pages, so that a test can find a page that is out of date.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from agentspec.errors import ConfigError
from agentspec.evals.options import Options
from agentspec.evals.page import offline_rows, readme_plot, real_rows, sensitivity, served_rows
from agentspec.evals.page.plot import THEMES, picture_file
from agentspec.evals.page.row import Content, Files, Goal, Reader, Row, markdown

RESULTS = Path(__file__).resolve().parents[1] / "results"
ROOT = RESULTS.parents[1]
README = ROOT / "README.md"
BENCHMARKS = ROOT / "docs" / "benchmarks.md"
COMMITS = "commits.json"
END = "<!-- /results -->"
_BLOCK = re.compile(r"<!-- results: (\S+) -->\n.*?" + re.escape(END), re.DOTALL)
# A run of the report on a real log: its command, then what it printed.
_REPORT = ("report", "example.txt")
_SENSITIVITY = "sensitivity"
_REPORT_LINES = ("entropy", "cold", "warm", "speed-up")

_NOTE = (
    "Made by `agentspec eval-page` from the JSON files in these folders; not to be edited. The figures, with their commands "
    "and commits, are in [docs/benchmarks.md](../../docs/benchmarks.md). Older runs are in git: "
    "`git show 269c849:evals/results/archive/README.md` lists them."
)

TITLES = {
    "real": "A real model",
    "emulated": "Emulated H200",
    "predictions": "Predicted outputs",
    "curve": "Accepted against drafted",
    "engine": "The engine beside its peers",
    "store": "The store",
    "fleet": "A fleet",
    "gpu": "A real H200",
    "report": "The report's figures",
    "simulation": "Simulated serving",
}
"""In the order of the page."""
_READERS: dict[str, Reader] = {**served_rows.READERS, **offline_rows.READERS, "real": real_rows.real_rows}


class Topic(NamedTuple):
    """A folder of results."""

    name: str
    files: Files
    rows: list[Row]

    @property
    def goals(self) -> list[Goal]:
        return [goal for row in self.rows for goal in row.goals]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options = Options(parser)
    options.flag("--check", "write nothing; exit with 1 if a page is out of date")
    options.folder("--results", "folder of the results (default: evals/results)", RESULTS)
    options.file("--readme", "page with the plot (default: README.md of the project)", README)
    options.file("--benchmarks", "page with the tables (default: docs/benchmarks.md of the project)", BENCHMARKS)


def run(args: argparse.Namespace) -> int:
    """Writes the pages and the plot, or with --check tests whether they are up to date.

    Raises:
        ConfigError: There are no results, or a page asks for a table that does not exist.
    """
    wanted = pages(args.results, args.readme, args.benchmarks)
    lagging = [file for file, text in wanted.items() if not file.exists() or file.read_text(encoding="utf-8") != text]
    for file in lagging:
        print(f"{file.name} {'lags behind the files; run agentspec eval-page' if args.check else 'written'}")
        if not args.check:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(wanted[file], encoding="utf-8")
    return 1 if args.check and lagging else 0


def pages(results: Path, readme: Path, benchmarks: Path) -> dict[Path, str]:
    """The required content of each file, by path.

    Raises:
        ConfigError: There are no results, or a page asks for a table that does not exist.
    """
    topics = read_topics(results)
    commits = read_commits(results)
    tables = {topic.name: table(topic, commits, "../evals/results") for topic in topics}
    plotted = readme_plot.read(results)
    figures = {"goals": goals_sentence(topics, ""), "report": report_block(results), "plot": plotted.caption(commits)}
    wanted = {results / "README.md": summary(topics, commits)}
    wanted[readme] = with_blocks(readme, figures)
    emulated = next((topic.files for topic in topics if topic.name == "emulated"), {})
    pictures = {theme: picture_file(_SENSITIVITY, theme).removeprefix("docs/") for theme in THEMES}
    varied = sensitivity.block(emulated, pictures)
    wanted[benchmarks] = with_blocks(
        benchmarks, {**tables, "goals": goals_sentence(topics, "../"), _SENSITIVITY: varied}
    )
    for theme in THEMES:
        wanted[readme.parent / picture_file(readme_plot.PICTURE, theme)] = plotted.svg(theme)
        drawn = sensitivity.svg(emulated, theme)
        if drawn is not None:
            wanted[readme.parent / picture_file(_SENSITIVITY, theme)] = drawn
    return wanted


def read_topics(results: Path) -> list[Topic]:
    """The folders of results, in the order of the page; unknown ones come last.

    Raises:
        ConfigError: The folder does not exist, or a file is no JSON object.
    """
    if not results.is_dir():
        raise ConfigError(
            f"--results must be a folder of figures, but {results} is none; a source tree has evals/results"
        )
    names = sorted(path.name for path in results.iterdir() if path.is_dir())
    order = [*[name for name in TITLES if name in names], *[name for name in names if name not in TITLES]]
    topics = []
    for name in order:
        files = {}
        for path in sorted((results / name).glob("*.json")):
            try:
                files[path.name] = dict(json.loads(path.read_text(encoding="utf-8")))
            except (ValueError, TypeError) as error:
                raise ConfigError(f"{path} is no file of figures: {error}") from error
        topics.append(Topic(name, files, topic_rows(name, files)))
    return topics


def topic_rows(topic: str, files: Files) -> list[Row]:
    """The rows of a topic; [] if it has no reader."""
    rows = list(_READERS[topic](files)) if topic in _READERS and files else []
    return [*rows, *sensitivity.rows(files)] if topic == "emulated" else rows


def read_commits(results: Path) -> dict[str, str]:
    """The commit of each file, by its path below `results`: the commit in the file itself, else the one in
    `commits.json`.

    An entry of `commits.json` holds only for the bytes that it was written for, so that a rewritten file has no commit.
    """
    noted = results / COMMITS
    known = dict(json.loads(noted.read_text(encoding="utf-8"))) if noted.exists() else {}
    commits = {}
    for path in results.glob("*/*.json"):
        name = path.relative_to(results).as_posix()
        data = path.read_bytes()
        own = _recorded_commit(json.loads(data))
        commit, digest = known.get(name, ("", ""))
        commits[name] = own or (commit if hashlib.sha256(data).hexdigest()[:12] == digest else "")
    return commits


def _recorded_commit(content: Any) -> str:
    for head in heads_of(content):
        for part in (head, head.get("versions") or {}, head.get("hardware") or {}):
            if part.get("commit"):
                return str(part["commit"])[:7]
    return ""


def heads_of(content: Content) -> list[Mapping[str, Any]]:
    """The mappings that hold command, versions and machine; several if runs were put together."""
    return list(content.get("heads") or content.get("records") or [content.get("head") or content])


def machine_of(content: Content) -> str:
    hardware = heads_of(content)[0].get("hardware") or {}
    parts = (
        hardware.get("processor") or hardware.get("machine"),
        f"{hardware.get('cores')} cores",
        hardware.get("gpu"),
    )
    return ", ".join(str(part) for part in parts if part) if hardware else ""


def summary(topics: Sequence[Topic], commits: Mapping[str, str]) -> str:
    """One screen in Markdown: goals met and missed by topic, then what was missed."""
    lines = []
    for topic in topics:
        met = sum(goal.met for goal in topic.goals)
        machines = dict.fromkeys(filter(None, map(machine_of, topic.files.values())))
        told = dict.fromkeys(commits.get(f"{topic.name}/{name}", "") or "not recorded" for name in topic.files)
        lines.append(
            (
                f"[{_title(topic.name)}]({topic.name})",
                str(met) if topic.goals else "none set",
                str(len(topic.goals) - met) if topic.goals else "",
                "; ".join(machines),
                ", ".join(told) or "not measured yet",
            )
        )
    missed = []
    for topic in topics:
        some = [(row, [goal.text for goal in row.goals if not goal.met]) for row in topic.rows]
        told_rows = [f"  - {row.workload}; {row.system}: {'; '.join(goals)}" for row, goals in some if goals]
        missed += [f"- **{_title(topic.name)}**", *told_rows] if told_rows else []
    shown = {(topic.name, row.file) for topic in topics for row in topic.rows}
    others = [f"[{name}]({t.name}/{name})" for t in topics for name in t.files if (t.name, name) not in shown]
    table = "\n".join(markdown(("topic", "goals met", "missed", "machine", "commit"), lines))
    parts = ["# Results", _NOTE, goals_sentence(topics), table, "## Missed", "\n".join(missed)]
    parts += [f"Files that no table shows: {', '.join(others)}."] if others else []
    return "\n\n".join(parts) + "\n"


def goals_sentence(topics: Sequence[Topic], link: str | None = None) -> str:
    """The number of goals met over all topics. With `link`, the path to the project root, it also links to the missed
    ones."""
    goals = [goal for topic in topics for goal in topic.goals]
    met = sum(goal.met for goal in goals)
    sentence = f"Of the {len(goals)} goals that the evals set, {met} are met and {len(goals) - met} are missed."
    if link is None:
        return sentence
    return f"{sentence} [evals/results/README.md]({link}evals/results/README.md) lists every goal that was missed."


def report_block(results: Path) -> str:
    """The lines that `agentspec report` printed about a real log."""
    path = results.joinpath(*_REPORT)
    if not path.exists():
        return ""
    command, _, printed = path.read_text(encoding="utf-8").partition("\n")
    lines = [line for line in printed.splitlines() if line.startswith(_REPORT_LINES)]
    return "\n".join(["```text", command, *lines[:5], "```"])


def table(topic: Topic, commits: Mapping[str, str], root: str) -> str:
    """The topic's rows in Markdown; `root` is the path to the folder of results."""
    head = ("workload", "system", "figure", "baseline", "goals, met or missed", "command", "commit")
    lines = [
        (
            *(row.workload, row.system, row.figure, row.baseline),
            "; ".join(f"{goal.text}: {'met' if goal.met else '**missed**'}" for goal in row.goals),
            f"[{_command(topic.files[row.file]) or row.file}]({root}/{topic.name}/{row.file})",
            commits.get(f"{topic.name}/{row.file}", "") or "not recorded",
        )
        for row in topic.rows
    ]
    return "\n".join(markdown(head, lines)) if topic.rows else "Not measured yet."


def _command(content: Content) -> str:
    """The first words of the command; the file has all of them."""
    words = list(heads_of(content)[0].get("command") or ())
    number = 3 if words[:1] == ["python"] or words[1:2] == ["bench"] else 2
    return f"`{' '.join(words[:number])}`" if words else ""


def with_blocks(path: Path, blocks: Mapping[str, str]) -> str:
    """The page with every block between its marks replaced.

    Raises:
        ConfigError: The page asks for a block that does not exist, or has none.
    """
    text = path.read_text(encoding="utf-8")
    names = [match[1] for match in _BLOCK.finditer(text)]
    unknown = [name for name in names if name not in blocks]
    if unknown or not names:
        raise ConfigError(
            f"{path} needs marks such as <!-- results: {next(iter(blocks))} --> and {END}, between which tables are "
            f"written; known are {', '.join(blocks)}, got {', '.join(unknown) or 'none'}"
        )
    return _BLOCK.sub(lambda match: f"<!-- results: {match[1]} -->\n{blocks[match[1]]}\n{END}", text)


def _title(topic: str) -> str:
    return TITLES.get(topic, topic)
