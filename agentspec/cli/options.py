"""Options that several commands share, and lists on the command line."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentspec.errors import ConfigError

if TYPE_CHECKING:
    from agentspec.analysis.replay.engine_system import Corpora
    from agentspec.observe.client import ServerClient


def option(to: argparse._ActionsContainer, form: str, text: str, **more: Any) -> None:
    """Adds an option to a parser or to a group of one.

    Args:
        form: The flag, and a name for its value if it should have one, such as "--out FILE".
        text: Its help.
        more: As for add_argument().
    """
    flag, _, value = form.partition(" ")
    to.add_argument(flag, metavar=value or None, help=text, **more)


def switch(to: argparse._ActionsContainer, flag: str, text: str) -> None:
    """Adds a flag without a value."""
    to.add_argument(flag, action="store_true", help=text)


def listed(
    to: argparse._ActionsContainer,
    form: str,
    text: str,
    known: Collection[str] = (),
    type: Callable[[str], tuple[Any, ...]] | None = None,
) -> None:
    """Adds an option whose value is a list with commas and which may be repeated; None where it is not given.

    Args:
        form: The flag, and a name for its value.
        text: Its help.
        known: The names that it takes; empty: any.
        type: Makes the values of a list (default: names()).
    """

    def checked(given: str) -> tuple[str, ...]:
        found = names(given)
        if known and not set(found) <= set(known):
            raise argparse.ArgumentTypeError(f"must be of {', '.join(known)}, got {given}")
        return found

    option(to, form, f"{text}; a list with commas, and may be repeated", action="extend", type=type or checked)


def add_server_options(parser: argparse.ArgumentParser) -> None:
    option(parser, "--api-key-file FILE", "file with the server's API key", type=Path)
    option(parser, "--timeout S", "seconds to wait for an answer (default %(default)s)", type=float, default=10.0)


def add_tokenizer(parser: argparse.ArgumentParser) -> None:
    text = (
        "the served model's tokenizer: a tokenizer.json, tekken .json or .tiktoken file, the model's folder, or an "
        "installed package with a tokenizer (default: mistral_common's newest tekken)"
    )
    option(parser, "--tokenizer NAME|PATH", text)


def add_corpora(parser: argparse.ArgumentParser) -> None:
    text = "draft from this file of `agentspec corpus build` too; may be repeated"
    option(parser, "--corpus FILE", text, action="append", type=Path, default=[])


def corpora_of(args: argparse.Namespace) -> Corpora | None:
    """The corpora of --corpus, built with the tokenizer of --tokenizer; None without one."""
    from agentspec.analysis.replay.engine_system import Corpora
    from agentspec.analysis.replay.tokenizer import tokenizer_path
    from agentspec.fingerprint import fingerprint

    if not args.corpus:
        return None
    return Corpora(tuple(args.corpus), fingerprint(tokenizer_path(args.tokenizer)))


def client(url: str, args: argparse.Namespace) -> ServerClient:
    """A client of the server. Raises ConfigError if the URL, the timeout or the key file is invalid."""
    from agentspec.observe.client import ServerClient

    if not args.timeout > 0:
        raise ConfigError(f"--timeout must be > 0 seconds, got {args.timeout}")
    return ServerClient(url, api_key=read_key_file("--api-key-file", args.api_key_file), timeout=args.timeout)


def read_key_file(flag: str, path: Path | None) -> str:
    """The key in the file that `flag` names; "" without a file. Raises ConfigError if it cannot be read."""
    if path is None:
        return ""
    try:
        return path.read_text(encoding="utf-8").strip()
    except (OSError, ValueError) as error:
        raise ConfigError(f"{flag} must be a file with the key in it: {error}") from error


def names(text: str) -> tuple[str, ...]:
    """The words of a comma-separated list, in order, without repeats."""
    return tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))


def numbers(text: str) -> tuple[int, ...]:
    """The integers of a comma-separated list, ascending, without repeats. Raises ArgumentTypeError for any other text."""
    try:
        return tuple(sorted({int(word) for word in text.split(",")}))
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be whole numbers with commas, such as 1,8,64, got {text!r}") from None
