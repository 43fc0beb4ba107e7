"""Where settings come from: flag over environment variable over JSON file over default."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

from agentspec.errors import ConfigError
from agentspec.integrations.sglang.settings import FIELDS, FLAG_PREFIX, Settings
from agentspec.store.secrets import NAMESPACE_KEY_VARIABLE, PASSWORD_VARIABLE, STORE_KEY_VARIABLE

VARIABLE_PREFIX = "AGENTSPEC_"
# Names of the JSON file, which cannot itself be set in that file.
CONFIG_FLAG = "config"
CONFIG_VARIABLE = "AGENTSPEC_CONFIG"
# Secrets come from files or from these variables, never from a flag, and are no part of the settings.
SECRET_VARIABLES = (PASSWORD_VARIABLE, STORE_KEY_VARIABLE, NAMESPACE_KEY_VARIABLE)


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Adds `--agentspec-*` to `parser`; their defaults are absent, so that only given flags count."""
    group = parser.add_argument_group("agentspec", "settings of --speculative-algorithm AGENTSPEC")
    for name, f in FIELDS.items():
        group.add_argument(
            FLAG_PREFIX + name.replace("_", "-"),
            dest="agentspec_" + name,
            default=argparse.SUPPRESS,
            type=f.metadata["parse"],
            # A switch needs no value.
            nargs="?" if f.default is False else None,
            const=True if f.default is False else None,
            help=f"{f.metadata['help']} (default {f.default}; variable {VARIABLE_PREFIX}{name.upper()})",
        )
    group.add_argument(
        FLAG_PREFIX + CONFIG_FLAG,
        dest="agentspec_" + CONFIG_FLAG,
        default=argparse.SUPPRESS,
        metavar="FILE",
        help=f"JSON file with any of these settings (variable {CONFIG_VARIABLE})",
    )


def pop_flags(args: argparse.Namespace) -> dict[str, Any]:
    """Takes what `add_flags` parsed out of `args`; only flags that were given are in the result."""
    given = {}
    for name in (*FIELDS, CONFIG_FLAG):
        key = "agentspec_" + name
        if hasattr(args, key):
            given[name] = getattr(args, key)
            delattr(args, key)
    return given


def resolve(flags: Mapping[str, Any], environment: Mapping[str, str]) -> Settings:
    """Merges the three places a setting may come from.

    Args:
        flags: as `pop_flags` returns them.
        environment: the process's environment; of it only `AGENTSPEC_*` is read.

    Raises:
        ConfigError: an unknown variable or key, an unreadable file, a value that does not parse or is out of range.
    """
    variables = {
        name: value
        for name, value in environment.items()
        if name.startswith(VARIABLE_PREFIX) and name not in SECRET_VARIABLES
    }
    path = flags.get(CONFIG_FLAG) or variables.pop(CONFIG_VARIABLE, None)
    variables.pop(CONFIG_VARIABLE, None)
    values: dict[str, Any] = _read_file(Path(path)) if path else {}
    for variable, text in variables.items():
        name = variable.removeprefix(VARIABLE_PREFIX).lower()
        if name not in FIELDS:
            raise ConfigError(f"unknown variable {variable}; {_known(VARIABLE_PREFIX, str.upper)}")
        try:
            values[name] = FIELDS[name].metadata["parse"](text)
        except ValueError:
            kind = FIELDS[name].metadata["parse"].__name__
            raise ConfigError(
                f"{variable} must be of type {kind}, got {text!r}: {FIELDS[name].metadata['help']}"
            ) from None
    values.update({name: value for name, value in flags.items() if name != CONFIG_FLAG})
    return Settings(**values)


def _read_file(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read the settings file {path}: {error.strerror}; check {CONFIG_VARIABLE}") from error
    except ValueError as error:
        raise ConfigError(f"the settings file {path} is not JSON: {error}") from error
    if not isinstance(content, dict):
        raise ConfigError(f"the settings file {path} must hold one JSON object, got {type(content).__name__}")
    unknown = sorted(set(content) - set(FIELDS))
    if unknown:
        raise ConfigError(f"unknown settings {', '.join(unknown)} in {path}; {_known('', str.lower)}")
    return cast(dict[str, Any], content)


def _known(prefix: str, case: Callable[[str], str]) -> str:
    return "known are " + ", ".join(prefix + case(name) for name in FIELDS)


def resolve_for_process(marked: Mapping[str, Any] | None) -> Settings:
    """The settings in a scheduler process: those the launcher resolved, else from this process's environment."""
    return Settings(**marked) if marked is not None else resolve({}, os.environ)
