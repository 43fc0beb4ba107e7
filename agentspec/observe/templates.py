"""Checks whether an answer has the same tokens when a later prompt repeats it."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from agentspec.analysis.replay.encoding import without_surrogates
from agentspec.analysis.replay.tokenizer import Tokenizer
from agentspec.errors import ConfigError

Render = Callable[[Sequence[dict[str, Any]]], str]


@dataclass(slots=True)
class ComingBack:
    """The number of answers that a later prompt repeats, by how their tokens compare."""

    same: int = 0
    """All tokens are the same."""
    edges: int = 0
    """All tokens but the first and the last are the same."""
    others: int = 0
    """The text is the same, but its tokens differ."""
    changed: int = 0
    """The text differs, because the template strips or rewrites it."""
    failed: list[str] = field(default_factory=list)
    """The conversations that the template refused, with the reasons."""

    @property
    def total(self) -> int:
        return self.same + self.edges + self.others + self.changed


def chat_template(folder: Path) -> Render | None:
    """What a model's chat template makes of messages; None where the folder has none. Raises ConfigError if the package
    transformers, which reads it, is missing or cannot."""
    if importlib.util.find_spec("transformers") is None:
        raise ConfigError(
            "chat templates need the package transformers, which is not installed; pass the tokenizer's file"
        )
    try:
        # Whatever the model's own class: the template and the special tokens are the files' own.
        loaded = importlib.import_module("transformers").PreTrainedTokenizerFast.from_pretrained(str(folder))
    except Exception as error:
        raise ConfigError(
            f"the tokenizer in {folder} cannot be loaded by transformers: {error}; pass the tokenizer's file"
        ) from error
    if not getattr(loaded, "chat_template", None):
        return None

    def render(messages: Sequence[dict[str, Any]]) -> str:
        return str(loaded.apply_chat_template(list(messages), tokenize=False))

    return render


def compare(messages: Sequence[dict[str, Any]], render: Render, tokenizer: Tokenizer, into: ComingBack) -> None:
    """Looks for each assistant message in the prompt made of all messages. The message's original tokens are assumed to
    be those of its text alone."""
    answers = [m["content"] for m in messages if m["role"] == "assistant" and isinstance(m.get("content"), str)]
    answers = [without_surrogates(answer) for answer in answers if answer]
    if not answers:
        return
    try:
        text = without_surrogates(render(messages))
    except Exception as error:  # noqa: BLE001 - a template raises what it likes
        into.failed.append(f"{type(error).__name__}: {error}")
        return
    prompt = tokenizer.encode(text)
    for answer in answers:
        tokens = tokenizer.encode(answer)
        if answer not in text:
            into.changed += 1
        elif _occurs(tokens, prompt):
            into.same += 1
        elif len(tokens) > 2 and _occurs(tokens[1:-1], prompt):
            into.edges += 1
        else:
            into.others += 1


def _occurs(part: NDArray[np.int32], whole: NDArray[np.int32]) -> bool:
    data, wanted = whole.tobytes(), part.tobytes()
    at = data.find(wanted)
    # Skip byte offsets that are not at the start of a token.
    while at >= 0 and at % part.itemsize:
        at = data.find(wanted, at + 1)
    return at >= 0
