"""The tiny target with what drafts for it, loaded for chains in this process."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tokenizers import Tokenizer

from agentspec.errors import ConfigError
from agentspec.evals.research.tiny_sql.chains import Drafter, Eagle3Drafter, StandaloneDrafter
from agentspec.evals.research.tiny_sql.eagle3 import load_head
from agentspec.evals.research.tiny_sql.model import TinyLlama, load_model


@dataclass(frozen=True)
class Drafters:
    """A target, its tokenizer, drafters by name, and the target's layers that they need (see `own_texts`)."""

    target: TinyLlama
    tokenizer: Tokenizer
    drafters: dict[str, Drafter]
    capture: tuple[int, ...]


def load_drafters(target_folder: Path, folders: Mapping[str, Path]) -> Drafters:
    """Loads checkpoints as `make model` writes them; `folders` maps "standalone" and "eagle3" to theirs.

    Raises:
        ConfigError: A checkpoint is not there.
    """
    for folder in (target_folder, *folders.values()):
        if not (folder / "model.safetensors").is_file():
            raise ConfigError(f"{folder} must hold a checkpoint as `make model` writes it, got no model.safetensors")
    target = load_model(target_folder)
    drafters: dict[str, Drafter] = {}
    # Two layers' outputs would do for a text that no EAGLE-3 head reads; one is the least that can be put together.
    capture: tuple[int, ...] = (0,)
    for name, folder in folders.items():
        if name == "eagle3":
            head = load_head(folder, target.shape)
            capture = head.shape.capture
            drafters[name] = Eagle3Drafter(head, target.embed_tokens.weight.detach())
        else:
            drafters[name] = StandaloneDrafter(load_model(folder))
    tokenizer = Tokenizer.from_file(str(target_folder / "tokenizer.json"))
    return Drafters(target, tokenizer, drafters, capture)
