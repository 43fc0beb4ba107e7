"""Reads settings. A flag overrides an environment variable, which overrides the settings file."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import yaml
from pydantic import TypeAdapter, ValidationError
from pydantic.fields import FieldInfo
from pydantic_settings import (
    BaseSettings,
    EnvSettingsSource,
    InitSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
)

from agentspec.errors import ConfigError
from agentspec.integrations.sglang.settings import (
    FIELDS,
    FLAG_PREFIX,
    FLAGS,
    MEASUREMENTS,
    VARIABLE_PREFIX,
    Settings,
    default_of,
    flag_of,
    meaning,
    places,
    variable_of,
)
from agentspec.store.secrets import NAMESPACE_KEY_VARIABLE, PASSWORD_VARIABLE, STORE_KEY_VARIABLE

# Names of the settings file, which cannot itself be set in that file.
CONFIG = "config"
CONFIG_FLAG = FLAG_PREFIX + CONFIG
CONFIG_VARIABLE = VARIABLE_PREFIX + CONFIG.upper()
CONFIG_MEANING = "File with any of these settings: YAML if its name ends in `.yaml` or `.yml`, else JSON."
SECRET_VARIABLES = {
    PASSWORD_VARIABLE: "The store's password itself.",
    STORE_KEY_VARIABLE: "The key itself that encrypts stored outputs.",
    NAMESPACE_KEY_VARIABLE: "The key itself that hides tenants' names in the store.",
}
"""Secrets come from files or from these variables, never from a flag. They are not settings."""

_DESTINATION = "agentspec_"
_YAML = (".yaml", ".yml")


class _NoFlag(argparse._StoreAction):
    """Refuses a flag that does not exist, for a setting without one, and names the remedy.

    SGLang's own --config FILE passes on only keys whose flags store a value, and refuses others without a remedy.
    """

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: str | Sequence[object] | None,
        option_string: str | None = None,
    ) -> NoReturn:
        # The value is not shown, because it may be a secret that was meant for a flag with a similar name.
        parser.exit(2, f"{parser.prog}: error: {_no_flag(self.dest.removeprefix(_DESTINATION))}\n")


def _no_flag(name: str) -> str:
    in_file = f", or write the key into a file and pass {CONFIG_FLAG} FILE" if name in FIELDS else ""
    return f"{name} must be set by {places(name)}, got the flag {flag_of(name)}; set the variable{in_file}"


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Adds the flags `--agentspec-*`. They have no defaults, so that only given flags are in the result."""
    group = parser.add_argument_group(
        "agentspec",
        "settings of --speculative-algorithm AGENTSPEC; `agentspec settings` lists these and all others",
    )
    for name in FLAGS:
        group.add_argument(
            flag_of(name),
            dest=_DESTINATION + name,
            default=argparse.SUPPRESS,
            help=f"{meaning(name)} (default {default_of(name)}; variable {variable_of(name)})",
        )
    group.add_argument(
        CONFIG_FLAG,
        dest=_DESTINATION + CONFIG,
        default=argparse.SUPPRESS,
        metavar="FILE",
        help=f"{CONFIG_MEANING} (variable {CONFIG_VARIABLE})",
    )
    for name in (*FIELDS, *MEASUREMENTS):
        if name not in FLAGS:
            group.add_argument(
                flag_of(name),
                dest=_DESTINATION + name,
                action=_NoFlag,
                nargs="?",
                default=argparse.SUPPRESS,
                help=argparse.SUPPRESS,
            )


def pop_flags(args: argparse.Namespace) -> dict[str, str]:
    """Removes the flags of `add_flags` from `args` and returns those that were given."""
    given = {}
    for name in (*FLAGS, CONFIG):
        key = _DESTINATION + name
        if hasattr(args, key):
            given[name] = str(getattr(args, key))
            delattr(args, key)
    return given


def resolve(flags: Mapping[str, str], environment: Mapping[str, str]) -> Settings:
    """Merges flags, environment variables and the settings file. `flags`: the result of `pop_flags`. `environment`: the
    process's environment. Only `AGENTSPEC_*` is read. Raises ConfigError if a variable or key is unknown, a file is
    unreadable, or a value does not parse or is out of range."""
    variables = {
        name: text
        for name, text in environment.items()
        if name.startswith(VARIABLE_PREFIX) and name not in SECRET_VARIABLES
    }
    default_path = variables.pop(CONFIG_VARIABLE, "")
    path, named_by = (flags[CONFIG], CONFIG_FLAG) if flags.get(CONFIG) else (default_path, CONFIG_VARIABLE)
    given = {name.removeprefix(VARIABLE_PREFIX).lower(): f"the variable {name}" for name in variables}
    _check_known(given, {name: variable_of(name) for name in (*FIELDS, *MEASUREMENTS)})
    in_file = _read_file(Path(path), named_by) if path else {}

    class Sourced(Settings, BaseSettings):
        model_config = SettingsConfigDict(env_prefix=VARIABLE_PREFIX)

        @classmethod
        def settings_customise_sources(
            cls,
            settings_cls: type[BaseSettings],
            init_settings: PydanticBaseSettingsSource,
            *_: PydanticBaseSettingsSource,
            **unused: PydanticBaseSettingsSource,
        ) -> tuple[PydanticBaseSettingsSource, ...]:
            return init_settings, _Variables(settings_cls, variables), InitSettingsSource(settings_cls, in_file)

    sourced = Sourced(**{name: _typed(name, text) for name, text in flags.items() if name != CONFIG})
    return Settings.model_construct(**sourced.as_dict())


class _Variables(EnvSettingsSource):
    """A source that takes the given environment variables and converts each to the type of its field."""

    def __init__(self, settings_cls: type[BaseSettings], variables: Mapping[str, str]) -> None:
        super().__init__(settings_cls)
        self.env_vars = {name.lower(): text for name, text in variables.items()}

    def prepare_field_value(self, field_name: str, field: FieldInfo, value: Any, value_is_complex: bool) -> object:
        return None if value is None else _typed(field_name, value)


def _typed(name: str, text: str) -> Any:
    """Converts a text to the type of its field. If it cannot, it returns the text, which the model then refuses."""
    kind: Any = Settings.model_fields[name].annotation
    try:
        return TypeAdapter(kind).validate_strings(text)
    except ValidationError:
        return text


def _read_file(path: Path, named_by: str) -> dict[str, object]:
    is_yaml = path.suffix.lower() in _YAML
    kind, read = ("YAML", yaml.safe_load) if is_yaml else ("JSON", json.loads)
    try:
        content = read(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read the settings file {path}: {error.strerror}; check {named_by}") from error
    except (ValueError, yaml.YAMLError) as error:
        # YAML's own message shows the line, which may contain a password.
        mark = getattr(error, "problem_mark", None)
        what = f"{getattr(error, 'problem', None)} in line {mark.line + 1}" if mark else str(error)
        raise ConfigError(f"the settings file {path} is not {kind}: {what}") from None
    if is_yaml and content is None:
        return {}
    if not isinstance(content, dict):
        raise ConfigError(f"the settings file {path} must hold one {kind} object, got {type(content).__name__}")
    _check_known({str(name): f"the key {name} of {path}" for name in content}, {name: name for name in FIELDS})
    return content


def _check_known(given: Mapping[str, str], known: Mapping[str, str]) -> None:
    """Raises ConfigError for each name in `given` that is not in `known`. Values: how messages call them."""
    problems = []
    for name, called in given.items():
        if name in MEASUREMENTS and name not in known:
            problems.append(f"{called} must be {places(name)}; set it and remove the key")
        elif name not in known:
            problems.append(f"{called} is unknown; known are {', '.join(known.values())}")
    if problems:
        raise ConfigError("\n".join(problems))


def resolve_for_process(marked: Mapping[str, Any] | None) -> Settings:
    """The settings in a scheduler process: those that the launcher resolved, or those of this process's environment."""
    return Settings(**marked) if marked is not None else resolve({}, os.environ)
