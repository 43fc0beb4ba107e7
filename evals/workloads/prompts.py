"""The served model's tokenizer, for chat messages and for recorded calls."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from agentspec.analysis.replay import Tokenizer, load_tokenizer
from agentspec.errors import ConfigError
from agentspec.workflows.text_to_sql import Message


def chat_encoder(model: Path) -> Callable[[Sequence[Message]], list[int]]:
    """A function that renders messages with the chat template of the model in a folder, generation prompt included."""
    from transformers import PreTrainedTokenizerFast

    tokenizer: Any = PreTrainedTokenizerFast.from_pretrained(model)

    def encode(messages: Sequence[Message]) -> list[int]:
        text = tokenizer.apply_chat_template(list(messages), tokenize=False, add_generation_prompt=True)
        ids: list[int] = tokenizer(text, add_special_tokens=False)["input_ids"]
        return ids

    return encode


def served_tokenizer(model: Path) -> Tokenizer:
    """The tokenizer of the model in a folder, with the end of turn that the model uses.

    Raises:
        ConfigError: The folder lacks a file of the tokenizer, or the end of sequence is no token of the model.
    """
    from transformers import PreTrainedTokenizerFast

    tokenizer = load_tokenizer(model / "tokenizer.json")
    try:
        vocab_size = int(json.loads((model / "config.json").read_text(encoding="utf-8"))["vocab_size"])
    except (OSError, ValueError, KeyError) as error:
        raise ConfigError(f"{model} must be the folder of a model, with its config.json: {error!r}") from error
    end = PreTrainedTokenizerFast.from_pretrained(model).eos_token_id
    # A server crashes on an id without an embedding, and the prompts of a replay are full of ends of turns.
    if end is None or not 0 <= end < vocab_size:
        raise ConfigError(f"the tokenizer of {model} must have an end of sequence below {vocab_size}, got {end}")
    return replace(tokenizer, end_of_turn=int(end), vocab_size=vocab_size)
