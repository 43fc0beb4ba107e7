"""Options of the commands of evals, a line each, and checks of their values. A help text ends with the default."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

from agentspec.cli.options import listed, names, numbers
from agentspec.errors import AgentspecError, ConfigError
from agentspec.progress import say


class Options:
    """Adds options to a parser; `add` adds one as argparse does."""

    def __init__(self, parser: argparse.ArgumentParser) -> None:
        self.add = parser.add_argument
        self._parser = parser

    def number(self, flag: str, default: float, text: str) -> None:
        """An integer, or a float if the default is one."""
        self.add(flag, type=type(default), default=default, metavar="N", help=f"{text} (default %(default)s)")

    def flag(self, flag: str, text: str) -> None:
        self.add(flag, action="store_true", help=text)

    def file(self, flag: str, text: str, default: Path | None = None) -> None:
        self.add(flag, type=Path, default=default, metavar="FILE", help=text)

    def folder(self, flag: str, text: str, default: Path | None = None, *, required: bool = False) -> None:
        self.add(flag, type=Path, default=default, required=required, metavar="FOLDER", help=text)

    def names(self, flag: str, default: Sequence[str], text: str) -> None:
        self.add(flag, type=names, default=tuple(default), metavar="LIST", help=f"{text} (default {','.join(default)})")

    def numbers(self, flag: str, default: Sequence[int], text: str) -> None:
        """Ascending integers."""
        shown = ",".join(map(str, default))
        self.add(flag, type=numbers, default=tuple(default), metavar="LIST", help=f"{text} (default {shown})")

    def text(self, flag: str, default: str, text: str) -> None:
        self.add(flag, default=default, help=f"{text} (default %(default)s)")

    def choices(self, flag: str, known: Collection[str], text: str) -> None:
        """Names with commas, which may be repeated; None if it is not given, and any name where none is known."""
        listed(self._parser, f"{flag} NAME", text, known)


class Program(Options):
    """The options of a program that is started by its module.

    Args:
        name: Of the module, below agentspec.evals.
        about: What it does, for --help.
    """

    def __init__(self, name: str, about: str) -> None:
        super().__init__(argparse.ArgumentParser(prog=f"python -m agentspec.evals.{name}", description=about))
        self.parse = self._parser.parse_args

    def run(self, run: Callable[[argparse.Namespace], int], words: Sequence[str] | None) -> int:
        """The exit status: what `run` gives for the arguments, or 2 with a line that says what is wrong.

        `words`: the arguments; None: those of the process.
        """
        given = self.parse(words)
        try:
            return run(given)
        except AgentspecError as error:
            say(str(error))
            return 2


def check_names(what: str, given: Collection[str], known: Collection[str]) -> None:
    """Raises ConfigError unless names are given and all of them are known; `what` is the option or what it names."""
    unknown = [name for name in given if name not in known]
    if unknown or not given:
        raise ConfigError(f"{what} must be one of {', '.join(known)}, got {', '.join(unknown) or 'none'}")
