"""Finds the tokenizer of a served model in a file, a model's folder or a package, and reads it."""

from __future__ import annotations

import base64
import binascii
import hashlib
import importlib
import importlib.util
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from agentspec.errors import ConfigError
from agentspec.fingerprint import tokenizer_file

# A .tiktoken file has no split pattern; this one is Qwen's, whose ranks come in such a file.
_QWEN_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
# Tokens that end a turn; the first one that a tokenizer.json contains is used.
_TURN_ENDS = (
    *("<|im_end|>", "<|eot_id|>", "<end_of_turn>", "<|end|>"),
    *("</s>", "<|end_of_text|>", "<|endoftext|>", "<eos>", "[EOS]"),
)
_KINDS = "a tekken .json, a Hugging Face tokenizer.json or a .tiktoken file"
_PATTERNS = ("tokenizer.json", "*.tiktoken", "tekken*.json")
_PACKAGE_NAME = re.compile(r"[A-Za-z_][\w.-]*")


@dataclass(frozen=True, slots=True, eq=False)
class Tokenizer:
    """Converts text to token ids. It adds no special tokens, and recognizes them in text only for tokenizer.json
    files."""

    name: str
    """File name and the first twelve hex digits of its SHA-256."""
    vocab_size: int
    """Token ids are in [0, vocab_size)."""
    end_of_turn: int
    """The id that ends each output."""
    _encode: Callable[[str], list[int]]
    _offset: int = 0
    _decode: Callable[[list[int]], str] | None = None
    """Decodes ids as `_encode` returns them. Ids that `_encode` never returns are omitted."""

    def encode(self, text: str) -> NDArray[np.int32]:
        """The token ids of a text, int32[n]. Raises UnicodeEncodeError if it has a lone surrogate."""
        ids = np.array(self._encode(text), dtype=np.int32)
        return ids + np.int32(self._offset) if self._offset else ids

    def decode(self, tokens: NDArray[np.int32]) -> str:
        """Decodes tokens, int32[n], for display. Special tokens are omitted and broken characters are replaced. Raises
        ConfigError if the tokenizer only encodes."""
        if self._decode is None:
            raise ConfigError(f"the tokenizer {self.name} cannot decode; pass {_KINDS}")
        return self._decode((tokens - self._offset).tolist())


def load_tokenizer(name: str | Path | None = None) -> Tokenizer:
    """Loads the tokenizer that tokenizer_path() finds. Raises ConfigError if there is none, its kind is unknown, or the
    package that reads it is missing."""
    path = tokenizer_path(name)
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"the tokenizer must be {_KINDS}, but {path} cannot be read: {error.strerror}") from error
    label = f"{path.name} {hashlib.sha256(data).hexdigest()[:12]}"
    if path.suffix == ".tiktoken":
        return _load_tiktoken(path, label, data)
    try:
        content = json.loads(data)
    except ValueError as error:
        raise ConfigError(f"the tokenizer must be {_KINDS}, but {path} is no JSON: {error}") from error
    if isinstance(content, dict) and isinstance(content.get("vocab"), list) and "config" in content:
        return _load_tekken(path, label, content)
    if isinstance(content, dict) and isinstance(content.get("model"), dict):
        return _load_hugging_face(label, data)
    raise ConfigError(f"the tokenizer must be {_KINDS}, but {path} is another JSON; pass the tokenizer's own file")


def default_tokenizer_path() -> Path:
    """The newest tekken file of the installed mistral_common; raises ConfigError if there is none."""
    found = importlib.util.find_spec("mistral_common")
    folders = list(found.submodule_search_locations or []) if found else []
    files = sorted(file for folder in folders for file in Path(folder).glob("data/tekken_*.json"))
    if not files:
        raise ConfigError(
            "without --tokenizer the tekken file of the package mistral_common is used, which is not installed; "
            f"`pip install mistral-common tiktoken`, or pass --tokenizer with {_KINDS}"
        )
    return files[-1]


def _package(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ConfigError(f"this tokenizer needs the package {name}: {error}; `pip install {name}`") from error


def _load_tekken(path: Path, name: str, content: dict[str, Any]) -> Tokenizer:
    try:
        config = content["config"]
        special = int(config["default_num_special_tokens"])
        vocab_size = int(config["default_vocab_size"])
        ranks = {
            base64.b64decode(entry["token_bytes"]): int(entry["rank"])
            for entry in content["vocab"][: vocab_size - special]
        }
        pattern = config["pattern"]
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigError(f"{path} looks like a tekken file but is not whole: {error!r}; get it again") from error
    encoding = _package("tiktoken").Encoding(name, pat_str=pattern, mergeable_ranks=ranks, special_tokens={})
    # The special tokens lie below the ranks. The third of them is </s>.
    return Tokenizer(name, vocab_size, 2, encoding.encode_ordinary, special, _byte_decoder(ranks))


def _load_tiktoken(path: Path, name: str, data: bytes) -> Tokenizer:
    try:
        pairs = [line.split() for line in data.splitlines() if line.strip()]
        ranks = {base64.b64decode(token, validate=True): int(rank) for token, rank in pairs}
    except (ValueError, binascii.Error) as error:
        raise ConfigError(f"each line of {path} must be a token in base64 and its rank: {error}") from error
    if sorted(ranks.values()) != list(range(len(ranks))):
        raise ConfigError(f"the ranks in {path} must be 0 to {len(ranks) - 1}, each once; get the file again")
    encoding = _package("tiktoken").Encoding(name, pat_str=_QWEN_PATTERN, mergeable_ranks=ranks, special_tokens={})
    # The special tokens follow the ranks. The first of them ends a text.
    return Tokenizer(name, len(ranks) + 1, len(ranks), encoding.encode_ordinary, 0, _byte_decoder(ranks))


def _byte_decoder(ranks: dict[bytes, int]) -> Callable[[list[int]], str]:
    tokens = {rank: token for token, rank in ranks.items()}
    return lambda ids: b"".join(tokens.get(rank, b"") for rank in ids).decode("utf-8", "replace")


def _load_hugging_face(name: str, data: bytes) -> Tokenizer:
    inner = _package("tokenizers").Tokenizer.from_buffer(data)
    known = (inner.token_to_id(token) for token in _TURN_ENDS)
    vocab_size = int(inner.get_vocab_size(with_added_tokens=True))
    # Ids may have gaps, so the number of ids may be less than the largest id.
    vocab_size = max(vocab_size, 1 + max(inner.get_vocab(with_added_tokens=True).values(), default=0))
    end = next((token for token in known if token is not None), None)
    if end is None:
        end, vocab_size = vocab_size, vocab_size + 1

    def encode(text: str) -> list[int]:
        # Raises what the other tokenizers do; this one raises TypeError.
        text.encode()
        ids: list[int] = inner.encode(text, add_special_tokens=False).ids
        return ids

    def decode(ids: list[int]) -> str:
        text: str = inner.decode(ids, skip_special_tokens=True)
        return text

    return Tokenizer(name, vocab_size, end, encode, 0, decode)


def tokenizer_path(name: str | Path | None) -> Path:
    """The tokenizer's file: `name` is it, the folder of a served model, or an installed package that has one; None: the
    newest tekken of mistral_common. Raises ConfigError if there is none."""
    if name is None:
        return default_tokenizer_path()
    file = tokenizer_file(name)
    if file is None and Path(name).is_dir():
        raise ConfigError(
            f"a model's folder must have a tokenizer.json, tekken.json or .tiktoken file, got {name}; "
            "pass the tokenizer's own file"
        )
    file = file or _file_in_package(str(name))
    if file is None:
        raise ConfigError(
            f"--tokenizer must be a file, a model's folder or an installed package with a tokenizer in it, got {str(name)!r}; "
            "give the path of the served model's tokenizer.json"
        )
    return file


def _file_in_package(name: str) -> Path | None:
    if not _PACKAGE_NAME.fullmatch(name) or name.startswith("."):
        return None
    try:
        found = importlib.util.find_spec(name.replace("-", "_"))
    except (ImportError, ValueError):
        return None
    for folder in (found.submodule_search_locations or []) if found else []:
        for pattern in _PATTERNS:
            # If a package has several, the last one by name is the newest.
            files = sorted(Path(folder).rglob(pattern))
            if files:
                return files[-1]
    return None
