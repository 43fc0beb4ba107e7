"""`agentspec settings`: every setting of the SGLang plugin."""

from __future__ import annotations

import argparse
import textwrap
from typing import NamedTuple

from agentspec.integrations.sglang.setting_sources import CONFIG_FLAG, CONFIG_MEANING, CONFIG_VARIABLE, SECRET_VARIABLES
from agentspec.integrations.sglang.settings import (
    FIELDS,
    FLAGS,
    MEASUREMENTS,
    default_of,
    flag_of,
    meaning,
    requirement,
    variable_of,
)

_MARKDOWN_HEAD = f"""\
# Settings of the SGLang plugin

`agentspec settings --markdown` writes this page. A flag wins over an environment variable, a variable over the settings
file (`{CONFIG_FLAG} FILE`), and the file over the default. Unknown names and values out of range stop the server at start.
"""

_MEASUREMENTS_HEAD = """\
## For measurements

Only measurements and tests of agentspec need these variables. They are neither flags nor keys of the file.
"""


class Row(NamedTuple):
    """The ways to set one setting, and its meaning; "" for a way that it lacks."""

    key: str
    flag: str
    variable: str
    type: str
    default: str
    meaning: str


def rows() -> list[Row]:
    """All settings, those with a flag first, then the variables that hold secrets."""
    ordered = (*FLAGS, *(name for name in FIELDS if name not in FLAGS))
    return [
        Row("", CONFIG_FLAG, CONFIG_VARIABLE, "text", "empty", CONFIG_MEANING),
        *(
            Row(
                name,
                flag_of(name) if name in FLAGS else "",
                variable_of(name),
                requirement(name),
                default_of(name),
                meaning(name),
            )
            for name in ordered
        ),
        *(Row("", "", variable, "text", "empty", text) for variable, text in SECRET_VARIABLES.items()),
    ]


def measurement_rows() -> list[Row]:
    """The variables for measurements."""
    return [Row("", "", variable_of(name), requirement(name), default_of(name), meaning(name)) for name in MEASUREMENTS]


def as_markdown() -> str:
    """A page with a table of the settings and one of the variables for measurements."""
    lines = ["| key of the file | flag | variable | type | default | meaning |", "|---|---|---|---|---|---|"]
    for row in rows():
        names = (f"`{name}`" if name else "" for name in (row.key, row.flag, row.variable))
        lines.append(f"| {' | '.join((*names, row.type, row.default, row.meaning))} |")
    measured = ["| variable | type | default | meaning |", "|---|---|---|---|"]
    measured += [f"| `{row.variable}` | {row.type} | {row.default} | {row.meaning} |" for row in measurement_rows()]
    return "\n".join([_MARKDOWN_HEAD, *lines, "", _MEASUREMENTS_HEAD, *measured]) + "\n"


def as_text() -> str:
    """The settings for a terminal, and after them the variables for measurements."""
    blocks = []
    measured = set(map(variable_of, MEASUREMENTS))
    for row in (*rows(), *measurement_rows()):
        ways = ", ".join(filter(None, (row.flag, row.variable)))
        purpose = "For measurements only. " if row.variable in measured else ""
        told = textwrap.fill(purpose + row.meaning, 100, initial_indent="    ", subsequent_indent="    ")
        blocks.append(f"{ways} ({row.type}; default {row.default})\n{told}")
    return "\n".join(blocks) + "\n"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--markdown", action="store_true", help="write the page docs/configuration-table.md")


def run(args: argparse.Namespace) -> int:
    """Prints the settings."""
    print(as_markdown() if args.markdown else as_text(), end="")
    return 0
