"""The model's byte-level BPE tokenizer and chat template."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from agentspec.workflows.text_to_sql.agents.prompts import Message

PAD, BEGIN, END = "<|pad|>", "<|begin|>", "<|end|>"
ROLES = ("system", "user", "assistant")
SPECIAL_TOKENS = (PAD, BEGIN, END, *(f"<|{role}|>" for role in ROLES))

# A name with its underscores is one piece and each digit is its own piece, so that a value copied from the question to
# the SQL has the same tokens in both.
_PIECES = r" ?[\p{L}_]+|\p{N}| ?[^\s\p{L}\p{N}_]+|\s"

CHAT_TEMPLATE = (
    "<|begin|>{% for message in messages %}<|{{ message['role'] }}|>{{ message['content'] }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def render(messages: Sequence[Message]) -> str:
    """The prompt text of a request, as the chat template renders it with its generation prompt."""
    turns = "".join(f"<|{message['role']}|>{message['content']}{END}" for message in messages)
    return f"{BEGIN}{turns}<|assistant|>"


def special_id(tokenizer: Tokenizer, token: str) -> int:
    """Id of a special token; KeyError if the tokenizer has no such token."""
    found = tokenizer.token_to_id(token)
    if found is None:
        raise KeyError(f"the tokenizer has no token {token!r}; it should be one of {SPECIAL_TOKENS}")
    return int(found)


def train_tokenizer(texts: Iterable[str], *, vocab_size: int) -> Tokenizer:
    """Trains a byte-level BPE with `vocab_size` entries, or fewer if the corpus is small."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_PIECES), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(  # type: ignore[no-untyped-call]
        vocab_size=vocab_size,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def save_tokenizer(tokenizer: Tokenizer, folder: Path, *, max_length: int) -> None:
    """Writes tokenizer.json and tokenizer_config.json, as AutoTokenizer reads them."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": BEGIN,
        "eos_token": END,
        "pad_token": PAD,
        "chat_template": CHAT_TEMPLATE,
        "clean_up_tokenization_spaces": False,
        "model_max_length": max_length,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")
