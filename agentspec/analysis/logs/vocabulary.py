"""The tokenizer of a report, found by its file, a model's folder or the name of an installed package."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

from agentspec.analysis.replay.tokenizer import Tokenizer, default_tokenizer_path, load_tokenizer
from agentspec.errors import ConfigError
from agentspec.fingerprint import tokenizer_file

_PATTERNS = ("tokenizer.json", "*.tiktoken", "tekken*.json")
_PACKAGE_NAME = re.compile(r"[A-Za-z_][\w.-]*")


def find_tokenizer(name: str | None) -> Tokenizer:
    """Loads a tokenizer.

    Args:
        name: A tokenizer's file, the folder of a served model, or an installed package that contains a tokenizer, such
            as mistral_common; None stands for mistral_common.

    Raises:
        ConfigError: No tokenizer has that name, or it cannot be read.
    """
    if name is None:
        return load_tokenizer(default_tokenizer_path())
    if Path(name).exists():
        file = tokenizer_file(name)
        if file is None:
            raise ConfigError(
                f"a model's folder must have a tokenizer.json, tekken.json or .tiktoken file, got {name}; "
                "pass the tokenizer's own file"
            )
        return load_tokenizer(file)
    file = _file_in_package(name)
    if file is None:
        raise ConfigError(
            f"--tokenizer must be a file, a model's folder or an installed package with a tokenizer in it, got {name!r}; "
            "give the path of the served model's tokenizer.json"
        )
    return load_tokenizer(file)


def _file_in_package(name: str) -> Path | None:
    if not _PACKAGE_NAME.fullmatch(name) or name.startswith("."):
        return None
    try:
        found = importlib.util.find_spec(name.replace("-", "_"))
    except (ImportError, ValueError):
        return None
    for folder in (found.submodule_search_locations or []) if found else []:
        for pattern in _PATTERNS:
            # Where a package has several, the last one by name is the newest.
            files = sorted(Path(folder).rglob(pattern))
            if files:
                return files[-1]
    return None
