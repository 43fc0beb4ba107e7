"""What the docs tell people to type exists: commands, their flags, settings, links and the example of the engine."""

from __future__ import annotations

import contextlib
import io
import re
import runpy
import shlex
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest
from every import every
from programs import output_of

from agentspec.cli import main
from agentspec.integrations.sglang import setting_sources
from agentspec.integrations.sglang.settings import FIELDS, FLAGS, MEASUREMENTS, flag_of

ROOT = Path(__file__).parents[1]
ALL_PAGES = sorted(
    path
    for folder in ("", "docs", "store", "integrations", "workflows", "evals")
    for path in ((ROOT / folder).rglob("*.md") if folder else ROOT.glob("*.md"))
)
# Pages in folders of results name the commands of the day on which the results were made.
PAGES = [path for path in ALL_PAGES if "results" not in path.parts]
# Modules whose --help runs in a separate process.
MODULE = re.compile(r"agentspec\.[\w.]+$")
SETTING = re.compile(r"--agentspec-[a-z-]+[a-z]")
# Commands that pass further arguments to SGLang unchanged.
PASSES_ON = {"serve"}


class Command(NamedTuple):
    page: Path
    line: str
    words: tuple[str, ...]
    """The words of the command, which begin with `agentspec` or the name of a module."""


def code_lines(text: str) -> Iterator[str]:
    """The shell commands in fenced or indented blocks, with continued lines joined."""
    blocks = re.findall(r"^[ ]*```bash\n(.*?)^[ ]*```", text, re.DOTALL | re.MULTILINE)
    blocks += ["\n".join(re.findall(r"^ {4}((?:agentspec|python -m) .*(?:\n {4,}--.*)*)", text, re.MULTILINE))]
    for block in blocks:
        for line in re.sub(r"\\\n\s*|\n\s+(?=--)", " ", block).splitlines():
            # The line may begin with variables that are set for one command.
            yield re.sub(r"^(\w+=\S+ )+", "", line.strip())


def commands() -> list[Command]:
    found = []
    for page in PAGES:
        for line in code_lines(page.read_text(encoding="utf-8")):
            for part in re.split(r" && | \|\| |; ", line):
                try:
                    words = shlex.split(part, comments=True)
                except ValueError:
                    continue
                if words[:1] == ["agentspec"]:
                    found.append(Command(page, part, tuple(words)))
                elif "-m" in words and MODULE.match(words[(at := words.index("-m") + 1) if words[-1] != "-m" else 0]):
                    found.append(Command(page, part, tuple(words[at:])))
    return found


@cache
def help_of(*words: str) -> str:
    """What --help of a command or a module prints.

    Raises:
        AssertionError: There is no such command.
    """
    if words[0] == "agentspec":
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed), pytest.raises(SystemExit) as end:
            main([*words[1:], "--help"])
        assert not end.value.code, printed.getvalue()
        return printed.getvalue()
    return output_of(sys.executable, "-P", "-m", *words, "--help")


def subcommands(text: str) -> set[str]:
    """The names that the usage of a command lists."""
    return set(re.findall(r"^ {4}([a-z][\w-]*)(?= |$)", text, re.MULTILINE))


def flags_of(words: tuple[str, ...]) -> list[str]:
    # A quoted word with spaces is the value of a flag, such as the options of another command.
    return [word.partition("=")[0] for word in words if re.match(r"--?[a-z][^ ]*$", word)]


@pytest.mark.parametrize("command", commands(), ids=lambda command: f"{command.page.name}: {command.line[:60]}")
def test_every_command_exists_with_its_flags(command: Command) -> None:
    name = list(command.words[:1])
    rest = list(command.words[1:])
    # Subcommands come before every flag.
    while rest and re.match(r"[a-z]", rest[0]) and (names := subcommands(help_of(*name))):
        assert rest[0] in names, f"{' '.join(name)} has no {rest[0]}, only {', '.join(sorted(names))}"
        name.append(rest.pop(0))
    known = help_of(*name)
    for flag in flags_of(command.words):
        if flag.startswith("--agentspec-"):
            assert flag in shown_flags(), flag
        elif not PASSES_ON & set(name):
            assert re.search(rf"(^|[\s\[,|]){re.escape(flag)}([\s\],=|]|$)", known), f"{flag} of {' '.join(name)}"


def test_commands_were_found() -> None:
    assert len(commands()) > 60
    assert {"report", "eval", "store", "agentspec.workflows.swe"} <= {word for one in commands() for word in one.words}


def shown_flags() -> set[str]:
    """The flags without those that are only there to be refused."""
    return {setting_sources.CONFIG_FLAG, *map(flag_of, FLAGS)}


@every("page", PAGES)
def test_every_setting_that_a_page_names_exists(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert set(SETTING.findall(text)) <= shown_flags()
    variables = {word.removeprefix("AGENTSPEC_").lower() for word in re.findall(r"\bAGENTSPEC_[A-Z_]+[A-Z]\b", text)}
    assert variables <= {*FIELDS, *MEASUREMENTS, "config", "store_password", "store_key", "namespace_key"}


def test_the_page_of_settings_has_every_flag_and_leads_to_the_rest() -> None:
    text = (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8")
    flags = re.findall(r"^\| `(--agentspec-[a-z-]+)`", text, re.MULTILINE)
    assert sorted(flags) == sorted([setting_sources.CONFIG_FLAG, *map(flag_of, FLAGS)])
    assert "(configuration-table.md)" in text


@every("page", ALL_PAGES)
def test_links_lead_somewhere(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for target, anchor in re.findall(r"\]\(([^)#\s]*)(#[^)\s]+)?\)", text):
        if re.match(r"[a-z]+:", target):
            continue
        linked = (page.parent / target) if target else page
        assert linked.exists(), f"{page.name}: {target}"
        if anchor and linked.suffix == ".md":
            titles = re.findall(r"^#+ (.+)$", linked.read_text(encoding="utf-8"), re.MULTILINE)
            assert anchor[1:] in {anchor_of(title) for title in titles}, f"{page.name}: {target}{anchor}"


def anchor_of(title: str) -> str:
    """The anchor that GitHub makes for a title."""
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")


@every("page", PAGES)
def test_nobody_is_told_to_install_another_project(page: Path) -> None:
    """The package `agentspec` of the public index belongs to another project."""
    text = page.read_text(encoding="utf-8")
    assert not re.search(r"pip install [^\n]*\bagentspec\b(?<!sglang-agentspec)", text)
    assert not re.search(r"(?<!sglang-)agentspec\[", text)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_examples_in_python_run(page: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for block in re.findall(r"^```python\n(.*?)^```", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE):
        (tmp_path / "example.py").write_text(block, encoding="utf-8")
        runpy.run_path(str(tmp_path / "example.py"))
        told = re.findall(r"^print\(.*\)  # ([^:\n]+)", block, re.MULTILINE)
        assert capsys.readouterr().out.splitlines() == told
