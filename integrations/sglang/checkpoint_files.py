"""Reads the config, the names of tensors and the tokens of a checkpoint's folder without loading the model."""

from __future__ import annotations

import json
import pickletools
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np
from safetensors import SafetensorError, safe_open

from agentspec.errors import ConfigError

_CONFIG = "config.json"
_WHOLE_NUMBERS = ("I64", "I32")


def find_folder(name: str) -> Path | None:
    """The folder of a model: `name` itself, or its snapshot in the Hugging Face cache.

    It is None if neither is on this machine, or if `name` is a single file, such as a GGUF model.
    """
    path = Path(name).expanduser()
    if path.is_dir():
        return path
    if path.exists() or path.is_absolute():
        return None
    try:
        from huggingface_hub import try_to_load_from_cache
        from huggingface_hub.errors import HFValidationError
    except ImportError:
        return None
    try:
        cached = try_to_load_from_cache(name, _CONFIG)
    except HFValidationError:
        return None
    return Path(cached).parent if isinstance(cached, str) else None


def read_config(folder: Path) -> dict[str, object]:
    """Reads the folder's config.json. Raises ConfigError if the file is missing or does not hold a JSON object."""
    path = folder / _CONFIG
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(
            f"{folder} must be a model's folder, and there is no {_CONFIG} in it; check the path"
        ) from None
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot read {path}: {error}; it must be a model's configuration in JSON") from error
    if not isinstance(config, dict):
        raise ConfigError(f"{path} must hold one JSON object, got {type(config).__name__}")
    return cast(dict[str, object], config)


def text_config(config: Mapping[str, object]) -> Mapping[str, object]:
    """The part of a config that describes the language model. Multimodal models have a section of its own for it."""
    nested = config.get("text_config")
    return nested if isinstance(nested, Mapping) else config


def has_weights(folder: Path) -> bool:
    """Whether the folder holds weights in a format whose tensor names can be read."""
    return any(folder.glob("*.safetensors")) or any(folder.glob("*.bin"))


def has_tensor(folder: Path, name: str) -> bool:
    """Whether the folder's weights have a tensor whose dotted name is `name` or ends with it. Raises ConfigError if a
    weights file is damaged."""
    return _find_safetensor(folder, name) is not None or any(
        _is_named(key, name) for file in sorted(folder.glob("*.bin")) for key in _pickled_strings(file)
    )


def read_tensor(folder: Path, name: str) -> np.ndarray[Any, Any] | None:
    """Reads a small tensor of int64 or int32 from a safetensors file; None if it is missing or has another dtype.
    Raises ConfigError if the file is damaged."""
    found = _find_safetensor(folder, name)
    if found is None:
        return None
    path, key = found
    with safe_open(path, "numpy") as file:
        is_number = file.get_slice(key).get_dtype() in _WHOLE_NUMBERS
        return cast(np.ndarray[Any, Any], file.get_tensor(key)) if is_number else None


def token_ids(folder: Path) -> dict[str, int] | None:
    """Token -> id, from the folder's tokenizer.json; None if the file is missing or has another form."""
    path = folder / "tokenizer.json"
    try:
        tokenizer = json.loads(path.read_text(encoding="utf-8"))
        vocabulary = tokenizer["model"]["vocab"]
        # A unigram model lists its tokens with their scores.
        ids = (
            dict(vocabulary) if isinstance(vocabulary, dict) else {token: i for i, (token, _) in enumerate(vocabulary)}
        )
        return ids | {token["content"]: token["id"] for token in tokenizer.get("added_tokens", [])}
    except (OSError, KeyError, TypeError, ValueError):
        return None


def _is_named(key: str, name: str) -> bool:
    return key == name or key.endswith("." + name)


def _find_safetensor(folder: Path, name: str) -> tuple[Path, str] | None:
    """The file that holds the tensor, and the tensor's name there."""
    for path in sorted(folder.glob("*.safetensors")):
        try:
            with safe_open(path, "numpy") as file:
                found = next((key for key in file.keys() if _is_named(key, name)), None)  # noqa: SIM118
        except (OSError, SafetensorError) as error:
            raise ConfigError(f"{path} must be a safetensors file: {error}; copy it again") from error
        if found is not None:
            return path, found
    return None


def _pickled_strings(path: Path) -> set[str]:
    """All strings in a file of torch.save. The pickle is read as a list of instructions and never executed."""
    try:
        with zipfile.ZipFile(path) as archive:
            pickles = [name for name in archive.namelist() if name.endswith("data.pkl")]
            return {
                argument
                for name in pickles
                for _, argument, _ in pickletools.genops(archive.read(name))
                if isinstance(argument, str)
            }
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        raise ConfigError(
            f"{path} must be weights that torch.save wrote: {error}; convert them to safetensors"
        ) from error
