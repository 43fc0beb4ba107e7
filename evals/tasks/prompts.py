"""Chat messages as the token ids of the served model's prompt."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from agentspec.workflows.text_to_sql import Message


def chat_encoder(model: Path) -> Callable[[Sequence[Message]], list[int]]:
    """What renders messages by the chat template of the model in a folder, its generation prompt included."""
    from transformers import PreTrainedTokenizerFast

    tokenizer: Any = PreTrainedTokenizerFast.from_pretrained(model)

    def encode(messages: Sequence[Message]) -> list[int]:
        text = tokenizer.apply_chat_template(list(messages), tokenize=False, add_generation_prompt=True)
        ids: list[int] = tokenizer(text, add_special_tokens=False)["input_ids"]
        return ids

    return encode
